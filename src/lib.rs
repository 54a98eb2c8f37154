//! Portcullis: a filesystem gateway for untrusted AI agents.
//!
//! Each request of an agent for a file of the workspace needs a policy decision and
//! leaves an audit record; changes are backed up. The modules are layers; each
//! imports only from those below it (ARCHITECTURE.md has the picture, a test
//! enforces it).

#[cfg(not(target_os = "linux"))]
compile_error!("Portcullis needs Linux: Landlock, openat2 and namespaces enforce what it promises");

#[macro_use]
mod app;

pub mod cli;
pub mod config;
mod operator_files;

pub use portcullis_acp as acp;
pub use portcullis_commands as commands;
pub use portcullis_core as gateway;
pub use portcullis_egress as egress;
pub use portcullis_fuse as fuse;
pub use portcullis_git as git;
pub use portcullis_mcp as mcp;
pub use portcullis_mount as mount;
pub use portcullis_policy::{self as policy, model};
pub use portcullis_policy_tools as policy_tools;
pub use portcullis_review::{self as review, change, undo};
pub use portcullis_sandbox as sandbox;
pub use portcullis_serve as serve;
