//! Configuration of a connection.

use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use portcullis_commands::Registry;
use portcullis_rpc::framing::line_for;

use crate::{FurtherWorkspace, mcp_attach::AttachTokens};

use super::{editor_user::EditorUser, notices::OperatorOutput};
use crate::model::{ClaimedToolCall, Session};

/// The configuration of one connection.
#[derive(Debug, Clone)]
pub struct Config {
    /// The connection's session in the log, with the agent and user. Each ACP session is a part of
    /// it, with limits and approvals of its own.
    pub session: Session,
    /// The workspace's canonical path, which requests to the editor use.
    pub workspace_root: PathBuf,
    /// The workspace's path as the user gave it, if it differs.
    pub workspace_alias: Option<PathBuf>,
    /// Further workspaces, each with a gateway of its own.
    pub further: Vec<FurtherWorkspace>,
    /// Absolute agent paths, which the agent reads or writes by itself.
    pub granted: Vec<PathBuf>,
    /// Names of the environment variables that the operator gave the agent.
    pub variables: Vec<String>,
    /// The source and destination of content.
    pub source: SourceMode,
    /// True if a read waits for no more than the file, so that the reader thread may serve it while
    /// no other request is in progress.
    pub prompt: bool,
    /// Methods of the agent that reach the editor in addition to the allowed ones, and keys of
    /// `_meta` that stay in the reply to `initialize`.
    pub forward: Vec<String>,
    /// The commands of the agent's sandbox, if the policy allows terminals.
    pub commands: Option<Arc<Registry>>,
    /// Maximum length of a line in bytes; [`line_for`] computes it from a size of content.
    pub max_line: usize,
    /// Timeout of the gateway's own requests to the editor.
    pub editor_timeout: Duration,
    /// Time for requests in progress, and for the agent, to end after a peer has closed.
    pub grace: Duration,
    /// Tokens for the gateway's own MCP server, which is added to the sessions of agents; `None`
    /// for no server.
    pub attach: Option<Arc<AttachTokens>>,
    /// The editor's user as somebody else asks: for programs in the sandbox.
    pub user: Arc<EditorUser>,
    /// Gets the tool call that the agent says is in progress, for the records of its mount.
    pub tool_call: Arc<ClaimedToolCall>,
    /// Messages for the person who started the gateway.
    pub notices: Option<Arc<dyn OperatorOutput>>,
}

/// Sources and destinations of file content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceMode {
    /// The editor's buffers if it offers them, else the disk.
    #[default]
    Auto,
    /// The disk only.
    Disk,
    /// The editor only; methods that it does not offer are refused.
    Editor,
    /// A mount: ACP offers the agent no files, and the agent uses its own tools.
    Mount,
}

/// The text is not a [`SourceMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `auto`, `disk`, `editor` or `mount`")]
pub struct SourceModeError;

impl Config {
    /// Makes the default configuration: source `auto`, nothing forwarded, no terminal, lines for 10
    /// MiB of content.
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
            user: Arc::default(),
            tool_call: Arc::default(),
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
