//! A credential's process: the way to one host that adds a key which programs in the sandbox do not
//! have.
//!
//! Programs speak HTTP/1.1 without TLS to a port on the sandbox's loopback interface, and prove with
//! a phantom, which is worth nothing elsewhere, that they are of this session. The process passes on
//! what its [filter](filter) admits, over TLS, with the key in the phantom's place, and cuts off a
//! [reply](reply) that has the key in it. It has no file right, makes no socket and starts nothing:
//! the gateway process hands it each connection, to that one host.

#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "tls")]
mod filter;
#[cfg(feature = "tls")]
mod needles;
#[cfg(feature = "tls")]
mod query;
#[cfg(feature = "tls")]
mod reply;
#[cfg(feature = "tls")]
mod server;
#[cfg(feature = "tls")]
mod upstream;
#[cfg(feature = "tls")]
mod wire;

use portcullis_policy::model::Connect;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

#[cfg(feature = "tls")]
pub use certificates::certificates;
#[cfg(feature = "tls")]
pub use server::run_credential;

/// What a credential's process is told. The key itself comes apart from it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CredentialOrder {
    /// The host, as the policy's parser of hosts writes it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The name of the header that has the key.
    pub header: String,
    /// What stands before the key there.
    pub prefix: String,
    /// What programs send in the key's place.
    pub phantom: String,
    /// The methods that are passed on.
    pub methods: Vec<String>,
    /// The paths that are passed on; one that ends with `/*` is any path beneath.
    pub paths: Vec<String>,
    /// The certificates that are trusted, in DER.
    #[serde(skip)]
    pub roots: Vec<Vec<u8>>,
}

/// What a credential's process connects to.
#[derive(Debug)]
pub struct CredentialRoute {
    /// The credential's id.
    pub id: String,
    /// The one host, and its port.
    pub to: Connect,
    /// Where programs in the sandbox reach it.
    pub url: String,
}

/// The key.
pub type CredentialKey = Zeroizing<String>;
