//! A credential's process: passes requests to one host on, with a key that programs in the sandbox
//! do not have.
//!
//! Programs speak HTTP/1.1 without TLS to a port on the sandbox's loopback interface. The phantom
//! in their requests proves that they belong to this session; it is worth nothing elsewhere. The
//! process passes on what its [filter](filter) admits, over TLS, with the key in the phantom's
//! place. It cuts off a [reply](reply) that contains the key. It has no file right, makes no socket
//! and starts nothing: the gateway process opens each connection to the host and passes its socket
//! on.

#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "tls")]
mod filter;
#[cfg(feature = "tls")]
mod key_search;
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

/// The settings of a credential's process. The key is passed apart from them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CredentialOrder {
    /// The host, as the policy's parser of hosts writes it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The name of the header with the key.
    pub header: String,
    /// The text in front of the key in the header.
    pub prefix: String,
    /// The phantom that programs send in the key's place.
    pub phantom: String,
    /// The methods that are passed on.
    pub methods: Vec<String>,
    /// The paths that are passed on; one that ends with `/*` stands for every path beneath.
    pub paths: Vec<String>,
    /// The trusted root certificates, in DER.
    #[serde(skip)]
    pub roots: Vec<Vec<u8>>,
}

/// The host of a credential's process, and the URL by which programs reach it.
#[derive(Debug)]
pub struct CredentialRoute {
    /// The credential's id.
    pub id: String,
    /// The host and port to which the process connects.
    pub to: Connect,
    /// The URL of the process in the sandbox.
    pub url: String,
}

/// The key of a credential, overwritten with zeros when it is dropped.
pub type CredentialKey = Zeroizing<String>;
