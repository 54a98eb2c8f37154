//! Messages between the broker and the stages of a sandbox. Plain data.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    layout::Layout,
    limits::{Controllers, ResourceLimits},
    mount::NoMount,
    sockets::SocketOrder,
    spec::{GatewayAddress, Mode, Report},
};

/// Order to the first stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Launch {
    pub(super) mode: Mode,
    /// True if the sandbox gets a network namespace of its own.
    pub(super) private_network: bool,
    /// The paths at which it gets mounts.
    pub(super) mounts: Vec<PathBuf>,
}

/// Order to the second stage, the sandbox's init.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Init {
    pub(super) mode: Mode,
    pub(super) layout: Layout,
    pub(super) sockets: SocketOrder,
}

/// Order to the third stage, which becomes the agent; the agent's standard streams are attached.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Enter {
    pub(super) mode: Mode,
    pub(super) program: PathBuf,
    pub(super) name: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// The workspace in which the program starts.
    pub(super) workspace: PathBuf,
    /// Further workspaces.
    pub(super) further: Vec<PathBuf>,
    /// The paths that must be out of reach, with their identities.
    pub(super) targets: Vec<Target>,
    /// The agent's user as the host sees it.
    pub(super) uid: u32,
    pub(super) home: PathBuf,
    pub(super) temporary: PathBuf,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    /// Ports of the host's network to connect to; `None` if that network is not shared.
    pub(super) ports: Option<Vec<u16>>,
    /// Ports of the host's network to listen on.
    pub(super) listen: Vec<u16>,
    pub(super) udp: bool,
    /// Limits on the resources of its programs.
    pub(super) limits: ResourceLimits,
    /// The limits that a cgroup enforces already.
    pub(super) controllers: Controllers,
    /// Soft limit of its open files.
    pub(super) files: Option<u64>,
    /// True if it gets a pseudo-terminal, and no streams are attached.
    pub(super) terminal: bool,
    /// True if commands are started beside it. The end of the channel by which they are ordered is
    /// attached after its streams.
    pub(super) commands: bool,
    pub(super) self_test_targets: SelfTestTargets,
    /// The paths of the connection to the gateway.
    pub(super) sandbox_socket: Option<GatewayAddress>,
}

impl Enter {
    /// Returns all workspaces, each with its role in words.
    pub(super) fn workspaces(&self) -> impl Iterator<Item = (String, &Path)> {
        let further = self.further.iter().zip(1..);
        let further = further.map(|(path, n): (_, u32)| (further_role(n), path.as_path()));
        std::iter::once(("workspace".to_owned(), self.workspace.as_path())).chain(further)
    }

    /// True if the sandbox has a network namespace of its own.
    pub(super) fn private_network(&self) -> bool {
        self.mode.is_full() && self.ports.is_none()
    }

    /// True if the agent is root, though without root's capabilities: where root is the operator's
    /// user and cannot become another, as in a container that maps one user or has no capabilities.
    /// In a sandbox of its own it has another number, but owns files as root all the same.
    pub(super) fn stays_root(&self) -> bool {
        matches!(self.mode, Mode::User | Mode::Partial { user: None }) && self.uid == 0
    }
}

/// Returns the role of the further workspace of this number, in words.
fn further_role(number: u32) -> String {
    format!("further workspace {number}")
}

/// A path of the operator's that the agent must not reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Target {
    /// Its role, in words.
    pub(super) role: String,
    pub(super) path: PathBuf,
    /// Device and inode.
    pub(super) identity: (u32, u32, u64),
}

/// Objects of the broker that the self-test tries to reach.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SelfTestTargets {
    /// The broker's process.
    pub(super) broker: i32,
    /// A listening UNIX socket of the host.
    pub(super) socket: PathBuf,
    /// The name of a listening abstract UNIX socket of the host.
    pub(super) abstract_name: String,
    /// A listening TCP port of the host that is not allowed.
    pub(super) port: u16,
}

/// Messages from any stage to the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StageMessage {
    /// The first stage is in a user namespace that waits for its maps.
    Unmapped,
    /// The sandbox stands. If it has mounts, their descriptors are attached, and that of the
    /// sandbox's `/proc`, if it has one; then those of the ordered sockets.
    Built {
        /// The result of mounting, if mounts were requested.
        mount: Option<Result<(), NoMount>>,
    },
    /// The sandbox was tested. If the agent has a pseudo-terminal, its outer end is attached.
    Ready(Report),
    /// The sandbox could not be made.
    Failed {
        /// The step that failed.
        stage: String,
        /// The error.
        error: String,
        /// True if namespaces or mounts were refused, so that a sandbox without them might still be
        /// made.
        namespaces: bool,
    },
    /// A command that ran before the agent has ended.
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

/// Orders from the broker to the third stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum BrokerOrder {
    /// Confine the process and test the sandbox, whose mounts are served by now.
    Enter,
    /// Run this command to its end, as the agent, and discard its output. A descriptor that is
    /// attached is its standard input.
    Prepare(Vec<OsString>),
    /// Execute the agent.
    Execute,
}

/// Message from the init to the third stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RootReady {
    pub(super) proc: bool,
    /// True if there is a mount at the path of each workspace.
    pub(super) mount: bool,
}

/// Message from the broker to the first stage: the maps are written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MapsWritten;
