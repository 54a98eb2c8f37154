//! The configuration of `portcullis serve`: `[serve]`, `[[workspaces]]` and
//! `[[agents]]` of the operator's configuration file.
//!
//! It contains hashes of tokens, never a token. An unknown key, a missing file or a
//! contradiction refuses the whole file.

mod fields;
mod read;

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use portcullis_audit::Hash;

use crate::{
    model::AgentName,
    operator_files,
    policy::{Diagnostics, MAX_FILE},
};

pub use fields::FIELDS;

use super::file::{read, reason};

/// The prefix of tokens, by which they are recognized in wrong places.
pub const TOKEN_PREFIX: &str = "pcl_";

/// The configuration of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The listening addresses.
    pub listen: Vec<Listen>,
    /// True if it may serve other machines without TLS.
    pub plaintext: bool,
    /// TLS on all its TCP addresses.
    pub tls: Option<Tls>,
    /// Host names that requests may use, in lower case.
    pub hosts: Vec<String>,
    /// Origins of pages that may send requests.
    pub origins: Vec<String>,
    /// The directory of its own log; `None` for the default.
    pub state: Option<PathBuf>,
    /// Time after which a worker without sessions is stopped.
    pub idle: Duration,
    /// Time without messages after which an MCP session ends.
    pub session_idle: Duration,
    /// Its limits.
    pub limits: Limits,
    /// The export of request spans, if any.
    pub telemetry: Option<Telemetry>,
    /// The served workspaces.
    pub workspaces: Vec<WorkspaceConfig>,
    /// The agents.
    pub agents: Vec<AgentConfig>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            listen: vec![Listen::Tcp(([127, 0, 0, 1], 8750).into())],
            plaintext: false,
            tls: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            state: None,
            idle: Duration::from_secs(300),
            session_idle: Duration::from_secs(30 * 60),
            limits: Limits::default(),
            telemetry: None,
            workspaces: Vec::new(),
            agents: Vec::new(),
        }
    }
}

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A UNIX socket, to which only its owner may connect.
    Unix(PathBuf),
}

/// The text is no valid [`Listen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an address and a port such as `127.0.0.1:8750`, or `unix:` and an absolute path")]
pub struct ListenError;

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(ListenError),
            None => text.parse().map(Self::Tcp).map_err(|_| ListenError),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The chain, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// The export of request spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// The collector's address, for OTLP over HTTP.
    pub otlp: String,
    /// `service.name` of the resource.
    pub service: Option<String>,
    /// The percentage of requests.
    pub sample_percent: u64,
}

impl Telemetry {
    /// Returns the address for traces: `v1/traces` beneath the collector's address,
    /// unless that contains it.
    pub fn traces(&self) -> String {
        let base = self.otlp.trim_end_matches('/');
        if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") }
    }
}

/// The limits of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum of requests a second of one agent in one workspace.
    pub requests_per_second: u64,
    /// Maximum of bytes of content a second of one agent in one workspace, read or
    /// written.
    pub bytes_per_second: u64,
    /// Maximum of pending requests of one agent in one workspace.
    pub concurrent_requests: usize,
    /// Maximum of subscriptions to changes of one agent in one workspace.
    pub watches: usize,
    /// Maximum of sessions of one agent with one workspace.
    pub sessions: usize,
    /// Maximum of connections of all agents.
    pub connections: usize,
    /// Maximum of wrong tokens from one address in a minute.
    pub failed_logins: u32,
    /// Timeout for a request's head, in seconds.
    pub head_seconds: u64,
    /// Maximum size of a request's head, in bytes.
    pub head_bytes: usize,
    /// Timeout for a request's body, in seconds.
    pub body_seconds: u64,
    /// Maximum size of a message from a client, in bytes.
    pub message_bytes: usize,
    /// Memory for large messages in flight, in each process, in bytes.
    pub message_memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_second: 5_000,
            bytes_per_second: 1 << 30,
            concurrent_requests: 256,
            // Half of a gateway's maximum, so that no agent takes all.
            watches: 2_048,
            // Each session has threads in a worker.
            sessions: 256,
            connections: 8_192,
            failed_logins: 10,
            head_seconds: 10,
            head_bytes: 32 << 10,
            body_seconds: 30,
            // 100 MB in base64, with the JSON around it.
            message_bytes: 144 << 20,
            message_memory: 512 << 20,
        }
    }
}

/// A served workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceConfig {
    /// Its name in addresses and names of tools: see [`is_workspace_name`].
    pub name: String,
    /// The directory.
    pub root: PathBuf,
    /// A policy file or the name of an embedded policy.
    pub policy: String,
    /// The directory of its log and backups; `None` for the default.
    pub state: Option<PathBuf>,
    /// True if MCP clients get the reference server's tools.
    pub reference: bool,
    /// True if a client may ask its user for approvals.
    pub elicit: bool,
}

/// An agent of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// Its name in policies and logs.
    pub name: AgentName,
    /// SHA-256 of its token.
    pub token: [u8; 32],
    /// The workspaces that it may use; `None` for all.
    pub workspaces: Option<Vec<String>>,
    /// True if it may read the service's metrics.
    pub metrics: bool,
}

impl AgentConfig {
    /// Returns true if it may use the workspace of that name.
    pub fn may_use(&self, workspace: &str) -> bool {
        self.workspaces.as_ref().is_none_or(|names| names.iter().any(|name| name == workspace))
    }
}

/// Returns true for a valid workspace name: 1 to 32 ASCII letters, digits, `_` or
/// `-`, without a leading `-`.
pub fn is_workspace_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=32).contains(&name.len()) && !name.starts_with('-') && name.chars().all(good)
}

/// Formats the hash of a token as in files.
pub fn show_hash(hash: &[u8; 32]) -> String {
    format!("sha256:{}", Hash::from_bytes(*hash))
}

/// Parses the format of [`show_hash`].
pub fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let hash: Hash = text.strip_prefix("sha256:")?.to_ascii_lowercase().parse().ok()?;
    Some(*hash.as_bytes())
}

/// The reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration `{path}`: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the system.
        reason: String,
    },
    /// The file has errors.
    #[error("the configuration `{path}` cannot be used\n{diagnostics}")]
    Wrong {
        /// The file.
        path: String,
        /// All errors.
        diagnostics: Diagnostics,
    },
}

impl Service {
    /// Reads the file at `path`. Relative paths in it begin at its directory.
    ///
    /// # Errors
    /// When it cannot be read or used.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let unreadable = |reason: String| Error::Unreadable { path: shown.clone(), reason };
        let bytes = read(path).map_err(|error| unreadable(reason(&error)))?;
        if bytes.len() > MAX_FILE {
            return Err(unreadable(format!("larger than {} MiB", MAX_FILE >> 20)));
        }
        let text = String::from_utf8(bytes).map_err(|_| unreadable("not UTF-8".to_owned()))?;
        let path =
            operator_files::canonicalize(path).map_err(|error| unreadable(reason(&error)))?;
        let base = path.parent().unwrap_or(Path::new("/"));
        read::parse(&text, &shown, base)
            .map_err(|diagnostics| Error::Wrong { path: shown.clone(), diagnostics })
    }
}
