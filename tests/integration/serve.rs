//! `portcullis serve`: its processes, admission of clients, and their
//! separation.

mod ends;
mod fairness;
mod golden;
mod hostile;
mod limits;
mod log_copies;
mod login;
mod mcp;
mod mcp_memory;
mod memory;
mod partial_reload;
mod policy_locations;
mod processes;
mod reload;
mod revisions;
mod revoked;
mod rig;
mod sessions;
#[cfg(feature = "otlp")]
mod telemetry;
#[cfg(feature = "tls")]
mod tls;
