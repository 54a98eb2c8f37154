//! The commands that the gateway has started in an agent's sandbox: ACP `terminal/*`, and the tool
//! `exec` of MCP.
//!
//! Each command is decided and recorded before it starts, its output is stored in bounded memory,
//! and its exit is recorded. A [`Starter`] starts it: this crate runs nothing itself. A command
//! belongs to the session that requested it, and ends with that.

mod command;
mod output;
mod registry;

use portcullis_core as gateway;
use portcullis_policy::model;
use portcullis_rpc::lock;

pub use command::{CommandLine, Exit, recorded_arguments};
pub use output::Part;
pub use registry::{Error, Event, MAX_COMMANDS, MAX_OUTPUT, Registry, Starter, State, View};
