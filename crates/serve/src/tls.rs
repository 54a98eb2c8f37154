//! TLS on accepted connections, in builds that have it.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// Accepts TLS connections with one certificate.
#[derive(Clone)]
pub(super) struct Acceptor(
    #[cfg(feature = "tls")] tokio_rustls::TlsAcceptor,
    #[cfg(not(feature = "tls"))] std::convert::Infallible,
);

/// The reason why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The build has no TLS.
    #[error("this build of portcullis has no TLS")]
    Missing,
    /// A file is not valid PEM.
    #[cfg(feature = "tls")]
    #[error("cannot read the {0}: {1}")]
    Pem(&'static str, tokio_rustls::rustls::pki_types::pem::Error),
    /// Certificate and key do not match.
    #[cfg(feature = "tls")]
    #[error("cannot use the certificate with its key: {0}")]
    Unusable(#[from] tokio_rustls::rustls::Error),
}

/// Checks if [`Front::set_tls`](super::Front::set_tls) would accept these.
///
/// # Errors
/// The reason why it would not.
pub fn check_tls(certificate: &str, key: &str) -> Result<(), TlsError> {
    Acceptor::new(certificate, key).map(drop)
}

#[cfg(feature = "tls")]
impl Acceptor {
    /// Returns an acceptor for a certificate chain and its private key, both PEM.
    /// TLS 1.2 and 1.3.
    pub(super) fn new(certificate: &str, key: &str) -> Result<Self, TlsError> {
        use std::sync::Arc;

        use tokio_rustls::{
            TlsAcceptor,
            rustls::{
                ServerConfig,
                crypto::aws_lc_rs,
                pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
            },
        };

        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TlsError::Pem("certificate", error))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| TlsError::Pem("certificate's key", error))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Performs the handshake.
    pub(super) async fn accept<S>(
        &self,
        stream: S,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static + use<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.0.accept(stream).await
    }
}

#[cfg(not(feature = "tls"))]
impl Acceptor {
    pub(super) fn new(_certificate: &str, _key: &str) -> Result<Self, TlsError> {
        Err(TlsError::Missing)
    }

    #[expect(clippy::unused_async, reason = "as in builds with TLS")]
    pub(super) async fn accept<S>(&self, _stream: S) -> io::Result<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match self.0 {}
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor(…)")
    }
}
