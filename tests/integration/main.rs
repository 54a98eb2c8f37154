//! Everything through the front door: one binary, a module per door.

mod acp;
mod acp_client;
mod acp_rig;
mod fast_agent;
