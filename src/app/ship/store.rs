//! A copy in object storage or behind HTTP: an object for each file. The open
//! segment consists of pieces `tail/SEGMENT/OFFSET`, which are its bytes in their
//! order.

use std::{io, sync::Arc, time::Duration};

use object_store::{
    ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    http::HttpBuilder,
    path::Path,
};
use portcullis_audit::{LogFile, NEWEST};
use tokio::runtime::{Builder, Runtime};

use super::{
    client::{Connector, reason, without_credentials},
    target::Store,
};
use crate::config::audit::Target;

/// Timeouts of a connection, and of a complete request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
    /// Pieces of the open segment sent by this process.
    pieces: Vec<Path>,
}

impl Remote {
    pub(super) fn open(target: &Target) -> Result<Self, String> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start: {error}"))?;
        let (store, prefix): (Arc<dyn ObjectStore>, _) = match target.to.strip_prefix("s3://") {
            Some(place) => {
                let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
                // Credentials come from the environment, as usual, unless given.
                let mut builder = AmazonS3Builder::from_env()
                    .with_config(
                        AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
                        seconds(REQUEST_TIMEOUT),
                    )
                    .with_config(
                        AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout),
                        seconds(CONNECT_TIMEOUT),
                    )
                    .with_http_connector(Connector)
                    .with_bucket_name(bucket)
                    .with_retry(once());
                for (name, value) in &target.options {
                    let key = name.parse().map_err(|_key| format!("unknown option `{name}`"))?;
                    builder = builder.with_config(key, value);
                }
                let store = builder.build().map_err(|error| reason(&error))?;
                (Arc::new(store), Path::from(prefix))
            }
            None => {
                let (address, credentials) = without_credentials(&target.to)?;
                let mut headers = http::HeaderMap::new();
                if let Some(credentials) = credentials {
                    headers.insert(http::header::AUTHORIZATION, credentials);
                }
                for (name, value) in &target.headers {
                    let wrong = |_| format!("the header `{name}` cannot be sent");
                    headers.insert(
                        http::HeaderName::try_from(name.as_str()).map_err(|_| wrong(()))?,
                        http::HeaderValue::try_from(value.as_str()).map_err(|_| wrong(()))?,
                    );
                }
                let plain = target.to.starts_with("http://");
                let options = ClientOptions::new()
                    .with_default_headers(headers)
                    .with_connect_timeout(CONNECT_TIMEOUT)
                    .with_timeout(REQUEST_TIMEOUT)
                    .with_allow_http(plain)
                    // HTTP needs none, and the machine may have none.
                    .with_no_system_certificates(plain);
                let mut builder = HttpBuilder::new()
                    .with_http_connector(Connector)
                    .with_url(address)
                    .with_client_options(options)
                    .with_retry(once());
                for (name, value) in &target.options {
                    let key = name.parse().map_err(|_key| format!("unknown option `{name}`"))?;
                    builder = builder.with_config(key, value);
                }
                let store = builder.build().map_err(|error| reason(&error))?;
                (Arc::new(store), Path::default())
            }
        };
        Ok(Self { store, prefix, runtime, pieces: Vec::new() })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn send(&self, path: &Path, bytes: Vec<u8>) -> Result<(), String> {
        self.runtime
            .block_on(self.store.put(path, PutPayload::from(bytes)))
            .map(drop)
            .map_err(|error| reason(&error))
    }

    /// Returns the pieces of a segment: those that the store lists, and those sent
    /// by this process.
    fn pieces(&mut self, segment: &str) -> Vec<Path> {
        let mut pieces = std::mem::take(&mut self.pieces);
        let folder = self.path(&format!("tail/{segment}"));
        let listed = self.runtime.block_on(self.store.list_with_delimiter(Some(&folder)));
        if let Ok(listed) = listed {
            pieces.extend(listed.objects.into_iter().map(|object| object.location));
        }
        pieces.sort_unstable();
        pieces.dedup();
        pieces
    }
}

/// Disables retries: the caller tries again later, and reports the error meanwhile.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Formats a duration as the store's settings require.
fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs())
}

impl Store for Remote {
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        self.send(&self.path(name), bytes)
    }

    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String> {
        let path = self.path(&format!("tail/{segment}/{offset:012}"));
        self.send(&path, bytes)?;
        self.pieces.push(path);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Option<Option<Vec<u8>>>, String> {
        use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
        let path = self.path(NEWEST);
        let newest = self.runtime.block_on(async { self.store.get(&path).await?.bytes().await });
        match newest {
            Ok(note) => Ok(Some(Some(note.to_vec()))),
            Err(NotFound { .. }) => Ok(Some(None)),
            // A writer may lack the right to read.
            Err(PermissionDenied { .. } | Unauthenticated { .. }) => Ok(None),
            Err(error) => Err(format!("cannot read `{NEWEST}`: {}", reason(&error))),
        }
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, String> {
        match self.runtime.block_on(self.store.head(&self.path(name))) {
            Ok(file) => Ok(Some(file.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(format!("cannot look for `{name}`: {}", reason(&error))),
        }
    }

    fn has_open(&mut self, _segment: &str, _sent: u64) -> Result<bool, String> {
        // Listing many pieces would be costly.
        Ok(true)
    }

    fn read(&mut self, _segment: &str) -> Option<io::Result<LogFile>> {
        None
    }

    fn is_near(&self) -> bool {
        false
    }

    fn sealed(&mut self, segment: &str) -> Result<(), String> {
        // The complete segment counts, so a piece that cannot be removed is
        // harmless.
        for path in self.pieces(segment) {
            let _left = self.runtime.block_on(self.store.delete(&path));
        }
        Ok(())
    }
}
