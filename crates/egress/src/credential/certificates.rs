//! Certificates in PEM.

use std::io;

use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// Returns the certificates of a PEM file, in DER.
///
/// # Errors
/// When the file has none, or is malformed.
pub fn certificates(pem: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| io::Error::other(error.to_string()))?;
    match found.is_empty() {
        true => Err(io::Error::other("there is no certificate in it")),
        false => Ok(found.iter().map(|certificate| certificate.to_vec()).collect()),
    }
}
