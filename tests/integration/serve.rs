//! `portcullis serve`: its processes, admission of clients, and their
//! separation.

mod copies;
mod ends;
mod golden;
mod hostile;
mod life;
mod limits;
mod login;
mod mcp;
mod memory;
mod misplaced;
mod refused;
mod reload;
mod revisions;
mod revoked;
mod rig;
mod sessions;
#[cfg(feature = "otlp")]
mod telemetry;
#[cfg(feature = "tls")]
mod tls;
mod turns;
