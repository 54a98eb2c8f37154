//! How one connection is served.

use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use portcullis_commands::Registry;
use portcullis_rpc::framing::line_for;

use crate::{FurtherWorkspace, mcp_attach::AttachTokens};

use super::notices::Notices;
use crate::model::Session;

/// How to serve one connection.
#[derive(Debug, Clone)]
pub struct Config {
    /// The connection in the log: what belongs to no ACP session is recorded
    /// under it. Each ACP session gets a session of its own with the same
    /// agent and user.
    pub session: Session,
    /// The workspace's canonical path; the editor is asked by it.
    pub workspace_root: PathBuf,
    /// The workspace's path as the user gave it, when that is another one.
    pub workspace_alias: Option<PathBuf>,
    /// Workspaces besides, each with a gateway of its own.
    pub further: Vec<FurtherWorkspace>,
    /// Absolute paths that the operator granted to the agent besides, to read or
    /// to write by itself.
    pub granted: Vec<PathBuf>,
    /// Names of the environment variables that the operator gave the agent.
    pub variables: Vec<String>,
    /// Where content comes from and goes to.
    pub source: SourceMode,
    /// True if a read waits for no more than the file, so that it may be
    /// served by the thread that heard it as long as nobody else waits.
    pub prompt: bool,
    /// Methods of the agent that reach the editor besides the usual ones, and
    /// keys of `_meta` that stay in the reply to `initialize`.
    pub forward: Vec<String>,
    /// The commands of the agent's sandbox, if the policy allows terminals.
    pub commands: Option<Arc<Registry>>,
    /// Longest line in bytes; [`line_for`] knows what a size of content needs.
    pub max_line: usize,
    /// How long the editor may take to answer the gate's own requests.
    pub editor_timeout: Duration,
    /// How long work under way, and the agent, may take to end once a side has
    /// closed.
    pub grace: Duration,
    /// Tokens for the gateway's own MCP server, which agents are told of;
    /// without it they are not.
    pub attach: Option<Arc<AttachTokens>>,
    /// Messages for the person who started the gateway.
    pub notices: Option<Arc<dyn Notices>>,
}

/// Where file content comes from and goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceMode {
    /// The editor's buffers when it offers them, else the disk.
    #[default]
    Auto,
    /// The disk only.
    Disk,
    /// The editor only; what it does not offer is refused.
    Editor,
    /// A mount: the agent is offered no files over ACP, and uses its own tools.
    Mount,
}

/// A text is not a [`SourceMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `auto`, `disk`, `editor` or `mount`")]
pub struct SourceModeError;

impl Config {
    /// The usual settings: source `auto`, nothing forwarded, no terminal, lines
    /// for 10 MiB of content.
    pub fn new(session: Session, workspace_root: PathBuf) -> Self {
        Self {
            session,
            workspace_root,
            workspace_alias: None,
            further: Vec::new(),
            granted: Vec::new(),
            variables: Vec::new(),
            source: SourceMode::Auto,
            prompt: true,
            forward: Vec::new(),
            commands: None,
            max_line: line_for(10 * 1024 * 1024),
            editor_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            attach: None,
            notices: None,
        }
    }
}

impl FromStr for SourceMode {
    type Err = SourceModeError;

    fn from_str(text: &str) -> Result<Self, SourceModeError> {
        match text {
            "auto" => Ok(Self::Auto),
            "disk" => Ok(Self::Disk),
            "editor" => Ok(Self::Editor),
            "mount" => Ok(Self::Mount),
            _ => Err(SourceModeError),
        }
    }
}
