//! The HTTP proxy by which programs in a sandbox reach the network.
//!
//! It is a transport, as ACP, MCP and the mount are, in three processes that exchange packets:
//!
//! - The egress process ([`run_proxy`]) accepts connections in the sandbox's network, parses what
//!   programs send there, and copies bytes. It can make no socket and open no file.
//! - The gateway process ([`Egress`]) has the gateway decide on each connection: first on the name,
//!   then on the address.
//! - The connector ([`run_connector`]) resolves names and connects to the addresses that the gateway
//!   process names. It parses nothing that a program sent.
//!
//! Each credential of the operator's has a process of its own ([`run_credential`]), in builds with
//! TLS.

mod accept;
mod attempts;
mod body;
mod client_hello;
mod connector;
mod credential;
mod dialer;
mod first_bytes;
mod head;
mod link;
mod messages;
mod operator_output;
mod packet;
mod peer;
mod proxy;
mod refused;
mod reply;
mod routes;
mod service;
mod stream;
mod tunnel;

pub use connector::run_connector;
pub use credential::{CredentialKey, CredentialOrder, CredentialRoute};
#[cfg(feature = "tls")]
pub use credential::{certificates, run_credential};
pub use operator_output::{DeniedConnection, OperatorOutput, RuleKind};
pub use proxy::run_proxy;
pub use routes::Routes;
pub use service::{Egress, Links};
