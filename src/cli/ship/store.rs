//! A copy in object storage or behind HTTP: an object for each file. The open
//! segment is there in pieces, `tail/SEGMENT/OFFSET`, which in their order are
//! its bytes.

use std::sync::Arc;

use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, aws::AmazonS3Builder,
    http::HttpBuilder, path::Path,
};
use tokio::runtime::{Builder, Runtime};

use super::Store;
use crate::config::audit::Target;

pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
    /// Pieces of the open segment that were sent by this process.
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
                // Keys come from the environment, as everywhere, unless given.
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                for (name, value) in &target.options {
                    let key = name.parse().map_err(|_key| format!("unknown option `{name}`"))?;
                    builder = builder.with_config(key, value);
                }
                let store = builder.build().map_err(|error| error.to_string())?;
                (Arc::new(store), Path::from(prefix))
            }
            None => {
                let mut headers = http::HeaderMap::new();
                for (name, value) in &target.headers {
                    let wrong = |_| format!("the header `{name}` cannot be sent");
                    headers.insert(
                        http::HeaderName::try_from(name.as_str()).map_err(|_| wrong(()))?,
                        http::HeaderValue::try_from(value.as_str()).map_err(|_| wrong(()))?,
                    );
                }
                let plain = target.to.starts_with("http://");
                let options =
                    ClientOptions::new().with_default_headers(headers).with_allow_http(plain);
                let store = HttpBuilder::new()
                    .with_url(&target.to)
                    .with_client_options(options)
                    .build()
                    .map_err(|error| error.to_string())?;
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
            .map_err(|error| error.to_string())
    }
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

    fn sealed(&mut self, _segment: &str) -> Result<(), String> {
        // Those of a process before this one stay; the whole segment counts.
        for path in std::mem::take(&mut self.pieces) {
            self.runtime.block_on(self.store.delete(&path)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
