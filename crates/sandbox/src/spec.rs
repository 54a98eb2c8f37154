//! Specification of a sandbox, and the report on it. Plain data.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    limits::{EnforcedLimits, ResourceLimits},
    sockets::SocketOrder,
    trusted_paths::TrustedPath,
};

/// Extent to which the kernel enforces the sandbox, as the self-test found.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Nothing.
    None,
    /// Landlock and seccomp; the names of existing files are visible.
    Partial,
    /// A root directory and namespaces of its own, Landlock and seccomp.
    Full,
}

impl Enforcement {
    /// Returns the word in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Partial => "partial",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Network access of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// A network namespace with a loopback interface: only its own programs.
    None,
    /// The host's network: TCP connections to some ports, on any host.
    Connect {
        /// The ports.
        ports: Vec<u16>,
        /// True if UDP is allowed too, for name resolution; before Landlock ABI 10, to any port.
        dns: bool,
        /// Ports to listen on, on every interface; 0 stands for any that the kernel picks.
        listen: Vec<u16>,
    },
}

/// A workspace besides the one in which the agent begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its canonical path.
    pub root: PathBuf,
    /// Its path as the operator gave it, absolute.
    pub alias: PathBuf,
}

/// A directory or file of the host that the agent gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The path, as the operator wrote it; absolute.
    pub path: PathBuf,
    /// True if it is an error that there is no such path: for paths on the command line, not for
    /// those of a policy that serves many machines.
    pub required: bool,
}

/// Specification of an agent and its sandbox.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The agent's program, as the operator wrote it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, already selected; `HOME`, `TMPDIR` and `USER` are added unless they are
    /// present.
    pub environment: BTreeMap<OsString, OsString>,
    /// The workspace, which the agent must not reach.
    pub workspace: PathBuf,
    /// Its path as the operator gave it, absolute: an editor may use this name.
    pub alias: Option<PathBuf>,
    /// Further workspaces, which it must not reach either.
    pub further: Vec<Workspace>,
    /// The state directory, which the agent must not reach.
    pub state: PathBuf,
    /// Policy and other files of the operator, which it must not change either.
    pub trusted: Vec<TrustedPath>,
    /// The agent's own persistent home directory; made if missing.
    pub home: PathBuf,
    /// Paths that it may read and execute.
    pub read: Vec<Grant>,
    /// Additional links in its root directory, each with its target.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Paths that it may also change.
    pub write: Vec<Grant>,
    /// Its network access.
    pub network: Network,
    /// The weakest enforcement that the operator accepts.
    /// [`Enforcement::None`] asks for none at all.
    pub floor: Enforcement,
    /// True if the sandbox, if it is confined, gets a connection to the gateway, and this program
    /// as its client.
    pub sandbox_socket: bool,
    /// Limits on the resources of its programs; an unconfined agent has none.
    pub limits: ResourceLimits,
    /// True if commands are started beside the agent, as the gateway orders.
    pub commands: bool,
    /// Soft limit of its open files, if it differs from that of this process.
    pub files: Option<u64>,
    /// The program's standard streams.
    pub streams: StandardStreams,
    /// True if a mount is made at the path of each workspace, for the caller to serve.
    pub mount: bool,
    /// True if the sandbox gets an HTTP proxy, for the caller to serve, provided it has a network
    /// of its own.
    pub proxy: bool,
    /// Further sockets that are to listen there, for somebody else to serve, where it has a proxy.
    pub listeners: Vec<Listener>,
    /// The number of sockets of the sandbox's network, where it has one of its own, that the caller
    /// connects to programs which listen there.
    pub unconnected: usize,
    /// True if the caller gets the tables of the sockets there.
    pub socket_tables: bool,
}

/// A socket that listens on the sandbox's loopback interface.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Its port.
    pub port: u16,
    /// The environment variables that programs get where there is such a socket.
    pub environment: BTreeMap<OsString, OsString>,
}

impl SandboxSpec {
    /// True if a sandbox that is made in this mode has a network of its own.
    fn has_network(&self, mode: Mode) -> bool {
        mode.is_full() && self.network == Network::None
    }

    /// True if a sandbox that is made in this mode has a proxy.
    pub(super) fn has_proxy(&self, mode: Mode) -> bool {
        self.proxy && self.has_network(mode)
    }

    /// Returns the sockets of a sandbox that is made in this mode.
    pub(super) fn sockets(&self, mode: Mode) -> SocketOrder {
        let (proxy, has_network) = (self.has_proxy(mode), self.has_network(mode));
        let listeners = self.listeners.iter().filter(|_| proxy);
        SocketOrder {
            proxy,
            listeners: listeners.map(|listener| listener.port).collect(),
            unconnected: if has_network { self.unconnected } else { 0 },
            tables: has_network && self.socket_tables,
        }
    }

    /// Returns all workspaces, each with the path that the operator gave.
    pub(super) fn workspaces(&self) -> impl Iterator<Item = (&Path, Option<&Path>)> {
        let further = self.further.iter();
        let further = further.map(|Workspace { root, alias }| (root.as_path(), Some(&**alias)));
        std::iter::once((self.workspace.as_path(), self.alias.as_deref())).chain(further)
    }
}

/// Kinds of a program's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardStreams {
    /// Pipes, for the caller to serve.
    Pipes,
    /// Pipes that this process copies from and to its own standard streams.
    Own,
    /// A pseudo-terminal in the sandbox, which the terminal of this process shows.
    Terminal {
        /// True if the environment's locale is UTF-8.
        is_utf8: bool,
    },
}

/// An action that was tried in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The action.
    pub name: String,
    /// Its result before confinement: `ok` or the kernel's error, or `-` if it was not tried then.
    pub before: String,
    /// Its result in the finished sandbox.
    pub after: String,
    /// True if the result is the required one.
    pub passed: bool,
}

/// A grant that the file system denies to the agent's user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedGrant {
    /// The path.
    pub path: PathBuf,
    /// True if it was granted to be changed.
    pub write: bool,
}

/// Result of the self-test in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Extent to which the sandbox is enforced.
    pub enforcement: Enforcement,
    /// The kernel's Landlock ABI; 0 without Landlock.
    pub landlock_abi: u32,
    /// The namespaces of the sandbox's own.
    pub namespaces: Vec<String>,
    /// The agent's user, as the host sees it.
    pub uid: u32,
    /// True if the sandbox has a `/proc`.
    pub proc: bool,
    /// True if it has a mount at the workspace's path.
    pub mount: bool,
    /// The limits on the resources of its programs.
    pub limits: EnforcedLimits,
    /// The ports of the host's network that the agent may listen on.
    pub listen: Vec<u16>,
    /// Grants that the agent's user cannot use.
    pub denied: Vec<DeniedGrant>,
    /// Restrictions that this kernel cannot enforce, in words.
    pub gaps: Vec<String>,
    /// All actions that were tried.
    pub probes: Vec<Probe>,
    /// Success if the connection to the gateway can be used, or the reason why not; `None` if there
    /// is none.
    pub sandbox_socket: Option<Result<(), String>>,
}

impl Report {
    /// Returns the facts for the `start` record.
    pub fn facts(&self) -> BTreeMap<String, serde_json::Value> {
        let passed = self.probes.iter().filter(|probe| probe.passed).count();
        let mut facts = BTreeMap::from([
            ("enforcement".to_owned(), self.enforcement.as_str().into()),
            ("landlockAbi".to_owned(), self.landlock_abi.into()),
            ("namespaces".to_owned(), self.namespaces.clone().into()),
            ("agentUid".to_owned(), self.uid.into()),
            ("agentProc".to_owned(), self.proc.into()),
            ("gaps".to_owned(), self.gaps.clone().into()),
            ("selfTest".to_owned(), format!("{passed}/{}", self.probes.len()).into()),
        ]);
        if self.enforcement > Enforcement::None {
            facts.insert("agentLimits".to_owned(), json!(self.limits));
        }
        if self.mount {
            facts.insert("mount".to_owned(), true.into());
        }
        if !self.listen.is_empty() {
            facts.insert("agentListen".to_owned(), self.listen.clone().into());
        }
        if !self.denied.is_empty() {
            let paths = self.denied.iter().map(|grant| grant.path.to_string_lossy());
            facts.insert("deniedAgentPaths".to_owned(), paths.collect());
        }
        facts
    }

    /// Returns the probes without the required result.
    pub fn unexpected(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|probe| !probe.passed)
    }
}

/// Paths in the sandbox by which an MCP client reaches the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayAddress {
    /// This program.
    pub program: PathBuf,
    /// The socket, or the directory of named pipes.
    pub address: PathBuf,
    /// True if there are named pipes and a relay, rather than a socket.
    pub is_relayed: bool,
}

/// Modes of making a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Mode {
    /// The capabilities of the host's root, all dropped afterwards.
    Root {
        /// The user that the agent becomes.
        user: u32,
    },
    /// A user namespace made by a root without those capabilities, such as a
    /// container's, or where there is a mount; the broker maps its own user and the
    /// agent's.
    Mapped {
        /// The user that the agent becomes, as the broker sees it.
        user: u32,
        /// The same user as it sees itself.
        inner: u32,
    },
    /// A user namespace that an unprivileged user made for itself.
    User,
    /// No namespaces.
    Partial {
        /// The user to become, when started as root.
        user: Option<u32>,
    },
    /// No confinement.
    Open,
}

impl Mode {
    /// True if the sandbox has a root directory and namespaces of its own.
    pub(super) fn is_full(self) -> bool {
        matches!(self, Self::Root { .. } | Self::Mapped { .. } | Self::User)
    }

    /// True if anything is confined.
    pub(super) fn is_confined(self) -> bool {
        self != Self::Open
    }

    /// True if the host's root makes it.
    pub(super) fn is_root(self) -> bool {
        matches!(self, Self::Root { .. })
    }

    /// True if it has a user namespace of its own.
    pub(super) fn has_user_namespace(self) -> bool {
        matches!(self, Self::Mapped { .. } | Self::User)
    }

    /// Returns the user that the confined child becomes, in its own numbers.
    pub(super) fn becomes(self) -> Option<u32> {
        match self {
            Self::Root { user } => Some(user),
            Self::Mapped { inner, .. } => Some(inner),
            Self::User | Self::Partial { .. } | Self::Open => None,
        }
    }

    /// Returns the user that owns the agent's files, if it is not the operator.
    pub(super) fn user(self) -> Option<u32> {
        match self {
            Self::Root { user } | Self::Mapped { user, .. } => Some(user),
            Self::Partial { user } => user,
            Self::User | Self::Open => None,
        }
    }
}

/// The agent's user and group in its own view, where they must not be root.
pub(super) const INNER_USER: u32 = 1000;

/// Directory of the agent's temporary files in a full sandbox.
pub(super) const TEMPORARY: &str = "/tmp";
