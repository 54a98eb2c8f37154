//! The messages between the broker and the stages of a cell. Plain data.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    layout::Layout,
    limits::{Controllers, ResourceLimits},
    mount::NoMount,
    spec::{Entrance, Mode, Report},
};

/// To the first stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Launch {
    pub(super) mode: Mode,
    /// True if the cell gets a network namespace of its own.
    pub(super) private_network: bool,
}

/// To the second stage, the cell's init.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Init {
    pub(super) mode: Mode,
    pub(super) layout: Layout,
    /// The cell has a proxy.
    pub(super) proxy: bool,
}

/// To the third stage, which becomes the agent; the agent's standard streams
/// are attached.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Enter {
    pub(super) mode: Mode,
    pub(super) program: PathBuf,
    pub(super) name: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Where the program begins.
    pub(super) workspace: PathBuf,
    /// Further workspaces.
    pub(super) further: Vec<PathBuf>,
    /// What must be out of reach, with its identity.
    pub(super) targets: Vec<Target>,
    /// The agent's user as the host sees it.
    pub(super) uid: u32,
    pub(super) home: PathBuf,
    pub(super) temporary: PathBuf,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    /// Ports of the host's network to connect to; `None` where it is not shared.
    pub(super) ports: Option<Vec<u16>>,
    /// Ports of the host's network to listen on.
    pub(super) listen: Vec<u16>,
    pub(super) udp: bool,
    /// What its programs may take.
    pub(super) limits: ResourceLimits,
    /// What of that a cgroup enforces already.
    pub(super) controllers: Controllers,
    /// How many files it may have open before it asks for more.
    pub(super) files: Option<u64>,
    /// It gets a pseudo-terminal, and no streams are attached.
    pub(super) terminal: bool,
    /// Commands are started beside it. The end of the channel by which they are ordered is attached
    /// after its streams.
    pub(super) commands: bool,
    pub(super) bait: Bait,
    /// What leads to the gate.
    pub(super) hatch: Option<Entrance>,
}

impl Enter {
    /// All workspaces, each with what it is, in words.
    pub(super) fn workspaces(&self) -> impl Iterator<Item = (String, &Path)> {
        let further = self.further.iter().zip(1..);
        let further = further.map(|(path, n): (_, u32)| (further_role(n), path.as_path()));
        std::iter::once(("workspace".to_owned(), self.workspace.as_path())).chain(further)
    }

    /// True if the cell has a network namespace of its own.
    pub(super) fn private_network(&self) -> bool {
        self.mode.is_full() && self.ports.is_none()
    }

    /// True if the agent is root, though without a power of root's: where that
    /// is the operator's user and no other can be become, as in a container that
    /// maps one user or has no capabilities. In a sandbox of its own it does not take
    /// itself for root, and files take it for root all the same.
    pub(super) fn stays_root(&self) -> bool {
        matches!(self.mode, Mode::User | Mode::Partial { user: None }) && self.uid == 0
    }
}

/// What the further workspace of this number is, in words.
fn further_role(number: u32) -> String {
    format!("further workspace {number}")
}

/// Something of the operator's that the agent must not reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Target {
    /// What it is, in words.
    pub(super) role: String,
    pub(super) path: PathBuf,
    /// Device and inode.
    pub(super) identity: (u32, u32, u64),
}

/// What the broker put up for the self-test to bite on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Bait {
    /// The broker's process.
    pub(super) broker: i32,
    /// A listening UNIX socket of the host.
    pub(super) socket: PathBuf,
    /// The name of a listening abstract UNIX socket of the host.
    pub(super) abstract_name: String,
    /// A listening TCP port of the host that is not allowed.
    pub(super) port: u16,
}

/// From any stage to the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum News {
    /// The first stage is in a user namespace that waits for its maps.
    Unmapped,
    /// The cell stands. If it has mounts, their descriptors are attached, and that of the
    /// cell's `/proc`, if it has one; then that of the proxy's socket, if it has a proxy.
    Built {
        /// Whether it has them, if it was to have any.
        mount: Option<Result<(), NoMount>>,
        /// True if it has a proxy.
        proxy: bool,
    },
    /// The cell was tested. If the agent has a pseudo-terminal, its outer end is attached.
    Ready(Report),
    /// It could not be made.
    Failed {
        /// What was being done.
        stage: String,
        /// The error.
        error: String,
        /// True if namespaces or mounts were refused, so that a cell without
        /// them might still be made.
        namespaces: bool,
    },
    /// A command that came before the agent has ended.
    Prepared {
        /// Its exit code, 128 and more for a signal.
        code: i32,
    },
    /// The agent's program could not be executed.
    NotExecuted {
        /// The kernel's error number.
        errno: i32,
    },
}

/// From the broker to the third stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Go {
    /// Confine itself and test the cell; what is mounted in it is served.
    Enter,
    /// Run this command to its end, as the agent; what it prints goes nowhere. A descriptor that
    /// comes along is its standard input.
    Prepare(Vec<OsString>),
    /// Execute the agent.
    Execute,
}

/// From the init to the third stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RootReady {
    pub(super) proc: bool,
    /// Whether there is a mount at the path of each workspace.
    pub(super) mount: bool,
}

/// From the broker to the first stage: the maps are written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Mapped;
