//! What the broker of `run` and the gateway process say to each other.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{app::launch::Launch, sandbox::Entrance};

/// A workspace that the gate serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Workspace {
    pub(crate) launch: Launch,
    /// Its path as it was given, absolute.
    pub(crate) alias: PathBuf,
}

/// The first message of the broker. For each workspace the files of its launch and that of
/// later policies are attached, and then what the service needs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    /// The workspaces. The agent begins in the first.
    pub(crate) workspaces: Vec<Workspace>,
    pub(crate) agent: String,
    pub(crate) service: Service,
    /// Whether the sandbox may get a mount: a [`Mount`], or none, follows before the gate
    /// confines itself.
    pub(crate) mount: bool,
}

/// What the broker says once the sandbox stands, if it has mounts. The descriptors by which
/// these are served are attached, one for each workspace, then the sandbox's `/proc`, if it
/// has one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mount {
    /// The agent's user, by its number in the sandbox.
    pub(crate) user: u32,
    /// Its group.
    pub(crate) group: u32,
}

/// How an agent is served over ACP.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Acp {
    /// Where file content comes from.
    pub(crate) source: String,
    /// Methods that reach the editor.
    pub(crate) forward: Vec<String>,
}

/// What the gate does for the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Service {
    /// Serves it over ACP; the editor's output and input are attached to the order.
    Acp(Acp),
    /// Serves the mount of a command, which has streams of its own.
    Command,
    /// The same where the command has the operator's terminal, on which nothing else appears.
    Terminal,
}

/// What the broker says once the agent waits. For ACP the agent's streams are
/// attached: its standard input, output and error, where its MCP clients come
/// from, if they can, and where commands are ordered, if they can be. If it has a proxy,
/// the ends of the egress process and of the connector come last.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Agent {
    /// What the self-test in the cell found. With a mount it has a record of its own, for
    /// the start was recorded before.
    pub(crate) facts: BTreeMap<String, Value>,
    /// The paths of the operator's grants, absolute.
    pub(crate) granted: Vec<PathBuf>,
    /// The names of the environment variables that the operator gave it.
    pub(crate) variables: Vec<String>,
    /// What its MCP clients are told, if they can come.
    pub(crate) entrance: Option<Entrance>,
    /// True if commands can be ordered.
    pub(crate) commands: bool,
    /// True if its programs have a proxy.
    pub(crate) proxy: bool,
}

/// What the gate answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// It is confined.
    Confined {
        /// Whether it had capabilities to give up.
        dropped_capabilities: bool,
    },
    /// The start is on record and the mount is served; the sandbox may be tested.
    Mounted,
    /// The start is on record, and what the test found; the agent may run.
    Started {
        /// The session in the log.
        session: String,
        /// The number of its first record in the log of each workspace.
        records: Vec<u64>,
    },
    /// The agent is not served over ACP any more. The mount is, until its programs are gone.
    Served {
        /// Its output was text, and no ACP.
        no_acp: bool,
    },
}

/// What the broker says while the gate serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// To stop in order.
    Stop,
    /// To take another policy up: the texts are in the shared file.
    Policy {
        /// Which workspace's, by its number.
        workspace: usize,
        /// The hash by which they are taken.
        hash: [u8; 32],
        /// What made the broker look.
        trigger: String,
    },
    /// There would be another policy, but it is out of the question.
    NoPolicy {
        /// For which workspace, by its number.
        workspace: usize,
        /// What made the broker look.
        trigger: String,
        /// Its hash, if it could be read.
        sha256: Option<String>,
        /// Why.
        why: String,
    },
}
