//! How a client is served.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use portcullis_commands::Registry;

use super::{attach::AttachedClient, further::FurtherWorkspace, tools::Toolset};
use crate::{gateway::Question, model::Session};

/// Where a client runs, which decides what it can reach besides the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a cell, in which there are no files of the workspace.
    Cell,
    /// In a cell with a mount, in which they are files, too.
    Mounted,
    /// On this machine, perhaps beside the files.
    Host,
    /// Perhaps on another machine.
    Remote,
}

/// How to serve a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who is served.
    pub session: Session,
    /// The workspace's canonical path.
    pub root: PathBuf,
    /// Its path as the user gave it, when that is another one.
    pub alias: Option<PathBuf>,
    /// Workspaces that the tools reach by absolute paths.
    pub further: Vec<FurtherWorkspace>,
    /// The commands of the agent's sandbox, if the client is in one and can have any.
    pub commands: Option<Arc<Registry>>,
    /// The tools.
    pub toolset: Toolset,
    /// Where the client runs.
    pub place: Place,
    /// True if the client is asked where a rule asks for a person.
    pub elicit: bool,
    /// True if a read waits for no more than the file unless a rule asks, so that
    /// it may be carried out where the protocol is spoken as long as nobody else
    /// waits.
    pub prompt: bool,
    /// Longest line in bytes.
    pub max_line: usize,
    /// The client is attached: its session then belongs to another transport, goes
    /// on without it, and questions go to that door's person, not to the client.
    pub attached: Option<Arc<AttachedClient>>,
    /// The state directory, by which a person finds what waits.
    pub state: PathBuf,
    /// Tells the person who started the gateway that a question waits, and at the gateway of which
    /// state directory. It does not wait for anybody to read it.
    pub announce: fn(&Question, &Path),
}
