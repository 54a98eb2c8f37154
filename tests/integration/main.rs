//! Everything through the front door: one binary, a module per door or topic.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "tests say what went wrong by panicking, and look at the disk behind the gate's back"
)]

mod acp;
mod acp_client;
mod acp_rig;
mod attacks;
mod audit;
mod backup;
mod common;
mod crash;
mod fast_agent;
mod fast_agent_confined;
mod fs;
mod layers;
mod ledger;
mod limits;
mod links;
mod model;
mod oracle;
mod policy;
mod races;
mod relay;
mod sandbox;
