//! Everything through the front door: one binary, a module per door or topic.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests say what went wrong by panicking, and look at the disk behind the gate's back"
)]

mod common;
mod crash;
mod fs;
mod layers;
mod links;
mod races;
mod sandbox;
