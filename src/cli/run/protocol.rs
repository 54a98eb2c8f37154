//! What the broker of `run` and the gateway process say to each other.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sandbox::Entrance;

/// What the broker asks for first; the editor's output and input are attached.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    pub(crate) workspace: PathBuf,
    /// The workspace's path as it was given, absolute.
    pub(crate) workspace_alias: PathBuf,
    pub(crate) policy: String,
    /// The operator's configuration, as it was given.
    pub(crate) config: Option<PathBuf>,
    /// The hash of the policy from which the broker made the cell.
    pub(crate) policy_sha256: String,
    pub(crate) state: PathBuf,
    /// From where the workspace moved, as the operator says.
    pub(crate) adopt: Option<PathBuf>,
    pub(crate) agent: String,
    pub(crate) log: String,
    pub(crate) source: String,
    pub(crate) forward: Vec<String>,
    /// The public key of whoever signs checkpoints at the other end of the
    /// third descriptor.
    pub(crate) signer: Option<String>,
}

/// What the broker says once the agent waits; the agent's streams are
/// attached: its standard input, output and error, and where its MCP clients come
/// from, if they can.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Agent {
    /// What the self-test in the cell found.
    pub(crate) facts: BTreeMap<String, Value>,
    /// The paths of the operator's grants, absolute.
    pub(crate) granted: Vec<PathBuf>,
    /// What its MCP clients are told, if they can come.
    pub(crate) entrance: Option<Entrance>,
}

/// What the gate answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// It is confined.
    Confined {
        /// Whether it had capabilities to give up.
        dropped_capabilities: bool,
    },
    /// The start is on record; the agent may run.
    Started,
    /// The agent's output ended; it was text, and no ACP.
    NoAcp,
}

/// What the broker says while the gate serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// To stop in order.
    Stop,
    /// To take another policy up: the texts ([`Gathered`] as JSON) are in the
    /// attached file.
    Policy {
        /// What made the broker look.
        trigger: String,
    },
    /// There would be another policy, but it is out of the question.
    NoPolicy {
        /// What made the broker look.
        trigger: String,
        /// Its hash, if it could be read.
        sha256: Option<String>,
        /// Why.
        why: String,
    },
}
