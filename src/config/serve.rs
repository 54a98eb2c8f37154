//! What `portcullis serve` serves: `[serve]`, `[[workspaces]]` and `[[agents]]`
//! of the operator's configuration file.
//!
//! It holds hashes of tokens, never a token. Anything in it that is not
//! understood, that names what is not there, or that contradicts itself refuses
//! it as a whole.

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

use super::file::{read, why};

/// What a token begins with, so that one is recognised where it does not belong.
pub const TOKEN_PREFIX: &str = "pcl_";

/// A service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// Whether it may speak without TLS to other machines.
    pub plaintext: bool,
    /// TLS at all its TCP addresses.
    pub tls: Option<Tls>,
    /// Host names that requests may use, in lower case.
    pub hosts: Vec<String>,
    /// Origins of pages that may call.
    pub origins: Vec<String>,
    /// Where its own log is; `None` for the usual place.
    pub state: Option<PathBuf>,
    /// How long a worker without sessions is kept.
    pub idle: Duration,
    /// How long a session over MCP goes on in which nothing is said.
    pub session_idle: Duration,
    /// What bounds it.
    pub limits: Limits,
    /// Where spans of requests go, if anywhere.
    pub telemetry: Option<Telemetry>,
    /// What it serves.
    pub workspaces: Vec<Workspace>,
    /// Whom.
    pub agents: Vec<Agent>,
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

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A UNIX socket, which only its owner may connect to.
    Unix(PathBuf),
}

/// A text is no [`Listen`].
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

/// Files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The chain, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// Where spans of requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// The collector's address, for OTLP over HTTP.
    pub otlp: String,
    /// `service.name` of the resource.
    pub service: Option<String>,
    /// Of how many in a hundred requests.
    pub sample_percent: u64,
}

impl Telemetry {
    /// Where traces go: `v1/traces` beneath the address, unless that says it.
    pub fn traces(&self) -> String {
        let base = self.otlp.trim_end_matches('/');
        if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") }
    }
}

/// What bounds a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests a second of one agent in one workspace.
    pub requests_per_second: u64,
    /// Bytes of content a second of one agent in one workspace, read or written.
    pub bytes_per_second: u64,
    /// Requests of one agent in one workspace that are not answered yet.
    pub concurrent_requests: usize,
    /// Subscriptions to changes of one agent in one workspace.
    pub watches: usize,
    /// Sessions of one agent with one workspace.
    pub sessions: usize,
    /// Connections of everybody.
    pub connections: usize,
    /// Wrong tokens from one address in a minute.
    pub failed_logins: u32,
    /// Seconds for a request's head.
    pub head_seconds: u64,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Seconds for a request's body.
    pub body_seconds: u64,
    /// Bytes of one message from a client.
    pub message_bytes: usize,
    /// Bytes of memory for large messages under way, in each process.
    pub message_memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_second: 5_000,
            bytes_per_second: 1 << 30,
            concurrent_requests: 256,
            // Half of what a gate holds: nobody takes all.
            watches: 2_048,
            // Each is threads in a worker.
            sessions: 256,
            connections: 8_192,
            failed_logins: 10,
            head_seconds: 10,
            head_bytes: 32 << 10,
            body_seconds: 30,
            // 100 MB in base64, and what is around it.
            message_bytes: 144 << 20,
            message_memory: 512 << 20,
        }
    }
}

/// A workspace that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its name in addresses and names of tools: see [`is_workspace_name`].
    pub name: String,
    /// The directory.
    pub root: PathBuf,
    /// A policy file or the name of an embedded policy.
    pub policy: String,
    /// Where its log and backups are; `None` for the usual place.
    pub state: Option<PathBuf>,
    /// Whether MCP clients get the reference server's tools.
    pub reference: bool,
    /// Whether a client may answer for its user where a rule asks.
    pub elicit: bool,
}

/// An agent that may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The name under which policies and logs know it.
    pub name: AgentName,
    /// SHA-256 of its token.
    pub token: [u8; 32],
    /// The workspaces that it may use; `None` for all.
    pub workspaces: Option<Vec<String>>,
    /// Whether it may read the service's numbers.
    pub metrics: bool,
}

impl Agent {
    /// Whether it may use the workspace of that name.
    pub fn may_use(&self, workspace: &str) -> bool {
        self.workspaces.as_ref().is_none_or(|names| names.iter().any(|name| name == workspace))
    }
}

/// Whether a workspace may have that name: 1 to 32 ASCII letters, digits, `_`
/// or `-`, and no `-` at its beginning.
pub fn is_workspace_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=32).contains(&name.len()) && !name.starts_with('-') && name.chars().all(good)
}

/// Writes the hash of a token as files have it.
pub fn show_hash(hash: &[u8; 32]) -> String {
    format!("sha256:{}", Hash::from_bytes(*hash))
}

/// Reads what [`show_hash`] wrote.
pub fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let hash: Hash = text.strip_prefix("sha256:")?.to_ascii_lowercase().parse().ok()?;
    Some(*hash.as_bytes())
}

/// There is no service to be had from the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read the configuration `{path}`: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        why: String,
    },
    /// It cannot be used.
    #[error("the configuration `{path}` cannot be used\n{diagnostics}")]
    Wrong {
        /// The file.
        path: String,
        /// Everything that is wrong.
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
        let unreadable = |why: String| Error::Unreadable { path: shown.clone(), why };
        let bytes = read(path).map_err(|error| unreadable(why(&error)))?;
        if bytes.len() > MAX_FILE {
            return Err(unreadable(format!("larger than {} MiB", MAX_FILE >> 20)));
        }
        let text = String::from_utf8(bytes).map_err(|_| unreadable("not UTF-8".to_owned()))?;
        let path = operator_files::canonicalize(path).map_err(|error| unreadable(why(&error)))?;
        let base = path.parent().unwrap_or(Path::new("/"));
        read::parse(&text, &shown, base)
            .map_err(|diagnostics| Error::Wrong { path: shown.clone(), diagnostics })
    }
}
