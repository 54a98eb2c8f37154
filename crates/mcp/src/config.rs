//! Configuration of the service of one client.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use portcullis_commands::Registry;

use super::{attach::AttachedClient, further::FurtherWorkspace, tools::Toolset};
use crate::{gateway::Question, model::Session};

/// The location of a client, which decides what it can reach besides the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientLocation {
    /// A client in a sandbox without the files of the workspace.
    Sandbox,
    /// A client in a sandbox with a mount, which shows the files, too.
    Mounted,
    /// A client on this machine, possibly with access to the files.
    Host,
    /// Possibly on another machine.
    Remote,
}

/// The configuration for one client.
#[derive(Debug, Clone)]
pub struct Config {
    /// The session.
    pub session: Session,
    /// The workspace's canonical path.
    pub root: PathBuf,
    /// Its path as the user gave it, if different.
    pub alias: Option<PathBuf>,
    /// Further workspaces, which the tools reach by absolute paths.
    pub further: Vec<FurtherWorkspace>,
    /// The commands of the agent's sandbox, if the client is in one and may run any.
    pub commands: Option<Arc<Registry>>,
    /// The tools.
    pub toolset: Toolset,
    /// The location of the client.
    pub location: ClientLocation,
    /// True if the client is asked for approvals.
    pub elicit: bool,
    /// True if a read waits only for the file unless a rule asks, so that the protocol's thread
    /// may carry it out while no other request waits.
    pub prompt: bool,
    /// Longest line in bytes.
    pub max_line: usize,
    /// Set for an attached client: its session belongs to another transport and continues
    /// without it, and approvals are given at that transport, not by the client.
    pub attached: Option<Arc<AttachedClient>>,
    /// Set when the client loses the right to its requests: no operation begins then, also of the
    /// requests that were received before. The setter must end the client's input.
    pub revoked: Arc<AtomicBool>,
    /// The options of a command of the operator's that lead to the gateway.
    pub options: String,
    /// Announces a pending approval to the operator, with the options of the command that answers
    /// it. Does not block.
    pub announce: fn(&Question, &str),
}
