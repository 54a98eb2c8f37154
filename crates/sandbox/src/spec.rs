//! What a cell is to be, and what it turned out to be. Plain data.

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
    trusted_paths::TrustedPath,
};

/// What the kernel enforces on the agent, as the self-test inside found it.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Nothing.
    None,
    /// Landlock and seccomp; what files exist can still be seen.
    Partial,
    /// A root directory and namespaces of its own, Landlock and seccomp.
    Full,
}

impl Enforcement {
    /// The word in the log.
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

/// What the agent may reach over the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Nothing but its own programs: a network namespace with a loopback interface.
    None,
    /// The host's network: TCP connections to some ports, on any host.
    Connect {
        /// The ports.
        ports: Vec<u16>,
        /// UDP too, so that names resolve; a leak, since UDP is not limited to
        /// name servers.
        dns: bool,
        /// Ports to listen on, on every interface; 0 is any that the kernel picks.
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
    /// Whether it is an error when there is no such path: so for what an
    /// operator named on the command line, not for a policy made for many
    /// machines.
    pub required: bool,
}

/// Everything that must be known to start an agent.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The agent's program, as the operator wrote it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, already selected; `HOME`, `TMPDIR` and `USER` are
    /// added unless they are in here.
    pub environment: BTreeMap<OsString, OsString>,
    /// The workspace, which the agent must not reach.
    pub workspace: PathBuf,
    /// Its path as the operator gave it, absolute: the name by which an editor
    /// may know it.
    pub alias: Option<PathBuf>,
    /// Further workspaces, which it must not reach either.
    pub further: Vec<Workspace>,
    /// The state directory, which the agent must not reach.
    pub state: PathBuf,
    /// Policy and other files of the operator, which it must not change either.
    pub trusted: Vec<TrustedPath>,
    /// The agent's own persistent home directory; made when missing.
    pub home: PathBuf,
    /// What it may read and execute.
    pub read: Vec<Grant>,
    /// Links that it finds besides, each with what it leads to.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// What it may also change.
    pub write: Vec<Grant>,
    /// What it may connect to.
    pub network: Network,
    /// The weakest enforcement that the operator accepts.
    /// [`Enforcement::None`] asks for none at all.
    pub floor: Enforcement,
    /// Whether the cell, if it is confined, gets what leads to the gate, and this
    /// program to connect with.
    pub hatch: bool,
    /// What its programs may take. One that is not confined may take anything.
    pub limits: ResourceLimits,
    /// True if commands are started beside the agent, as the gateway orders.
    pub commands: bool,
    /// How many files it may have open before it asks for more, where that is not as in
    /// this process.
    pub files: Option<u64>,
    /// What the program's standard streams are.
    pub streams: StandardStreams,
    /// Whether a mount at the path of each workspace is to be made, for somebody else to serve.
    pub mount: bool,
    /// True if the cell is to have an HTTP proxy, for somebody else to serve, if it has a network of
    /// its own.
    pub proxy: bool,
}

impl Cell {
    /// True if one that is made in this mode has a proxy.
    pub(super) fn has_proxy(&self, mode: Mode) -> bool {
        self.proxy && mode.is_full() && self.network == Network::None
    }

    /// All workspaces, each with the path that the operator gave.
    pub(super) fn workspaces(&self) -> impl Iterator<Item = (&Path, Option<&Path>)> {
        let further = self.further.iter();
        let further = further.map(|Workspace { root, alias }| (root.as_path(), Some(&**alias)));
        std::iter::once((self.workspace.as_path(), self.alias.as_deref())).chain(further)
    }
}

/// What the program's standard streams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardStreams {
    /// Pipes, for somebody else to serve.
    Pipes,
    /// What it reads and writes is that of this process's standard streams.
    Own,
    /// A pseudo-terminal in the cell, which the terminal of this process shows.
    Terminal {
        /// The terminal takes what it gets for UTF-8, as far as the environment says.
        is_utf8: bool,
    },
}

/// One action that was tried inside the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What was tried.
    pub name: String,
    /// How it went before confinement: `ok` or the kernel's error, `-` when
    /// trying would have done harm.
    pub before: String,
    /// How it went in the finished cell.
    pub after: String,
    /// Whether that is as it must be.
    pub passed: bool,
}

/// A grant that the file system denies to the agent's user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedGrant {
    /// The path.
    pub path: PathBuf,
    /// Whether it was granted to be changed.
    pub write: bool,
}

/// What the self-test inside the cell found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What is enforced.
    pub enforcement: Enforcement,
    /// The kernel's Landlock ABI; 0 without Landlock.
    pub landlock_abi: u32,
    /// The namespaces of the cell's own.
    pub namespaces: Vec<String>,
    /// The user, as the host sees it, as which the agent runs.
    pub uid: u32,
    /// Whether the cell has a `/proc`.
    pub proc: bool,
    /// Whether it has a mount at the workspace's path.
    pub mount: bool,
    /// The limits on what its programs take.
    pub limits: EnforcedLimits,
    /// The ports of the host's network that the agent may listen on.
    pub listen: Vec<u16>,
    /// Grants that the agent's user cannot use.
    pub denied: Vec<DeniedGrant>,
    /// What this kernel cannot enforce, in words.
    pub gaps: Vec<String>,
    /// All that was tried.
    pub probes: Vec<Probe>,
    /// Whether what leads to the gate can be used, or why not; nothing where
    /// there is none.
    pub hatch: Option<Result<(), String>>,
}

impl Report {
    /// The facts for the `start` record.
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
            facts.insert("deniedGrants".to_owned(), paths.collect());
        }
        facts
    }

    /// The probes that did not end as they must.
    pub fn surprises(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|probe| !probe.passed)
    }
}

/// How an MCP client in the sandbox reaches the gate, by the paths there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entrance {
    /// This program.
    pub program: PathBuf,
    /// The socket, or the directory of named pipes.
    pub address: PathBuf,
    /// Whether there are named pipes and a relay, not a socket.
    pub is_relayed: bool,
}

/// How the cell is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Mode {
    /// With the capabilities of the host's root, all given up afterwards.
    Root {
        /// The user that the agent becomes.
        user: u32,
    },
    /// In a user namespace, by a root without those capabilities, such as a
    /// container's, or where there is a mount; the broker maps its own user and the
    /// agent's.
    Mapped {
        /// The user that the agent becomes, as the broker sees it.
        user: u32,
        /// The same as it sees itself.
        inner: u32,
    },
    /// In a user namespace that an unprivileged user made for itself.
    User,
    /// Without namespaces.
    Partial {
        /// The user to become, when started as root.
        user: Option<u32>,
    },
    /// Without anything.
    Open,
}

impl Mode {
    /// Whether the cell has a root directory and namespaces of its own.
    pub(super) fn is_full(self) -> bool {
        matches!(self, Self::Root { .. } | Self::Mapped { .. } | Self::User)
    }

    /// Whether anything is confined at all.
    pub(super) fn is_confined(self) -> bool {
        self != Self::Open
    }

    /// Whether the host's root makes it.
    pub(super) fn is_root(self) -> bool {
        matches!(self, Self::Root { .. })
    }

    /// Whether it has a user namespace of its own.
    pub(super) fn has_user_namespace(self) -> bool {
        matches!(self, Self::Mapped { .. } | Self::User)
    }

    /// The user that the confined child becomes, as it sees it.
    pub(super) fn becomes(self) -> Option<u32> {
        match self {
            Self::Root { user } => Some(user),
            Self::Mapped { inner, .. } => Some(inner),
            Self::User | Self::Partial { .. } | Self::Open => None,
        }
    }

    /// The user, other than the operator, that owns what the agent owns.
    pub(super) fn user(self) -> Option<u32> {
        match self {
            Self::Root { user } | Self::Mapped { user, .. } => Some(user),
            Self::Partial { user } => user,
            Self::User | Self::Open => None,
        }
    }
}

/// As whom the agent sees itself where it must not take itself for root.
pub(super) const INNER_USER: u32 = 1000;

/// Where the agent's temporary files go in a full cell.
pub(super) const TEMPORARY: &str = "/tmp";
