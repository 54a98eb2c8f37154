//! Messages between the broker of `run` and the gateway process.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{app::launch::Launch, sandbox::GatewayAddress};

/// A workspace that the gateway serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkspaceOrder {
    pub(crate) launch: Launch,
    /// Its path as given, made absolute.
    pub(crate) alias: PathBuf,
    /// The paths that the agent may change besides it.
    pub(crate) writable: Vec<PathBuf>,
}

/// The first message of the broker. For each workspace the files of its launch and the file
/// for policy reloads are attached, and then those of the service.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServeOrder {
    /// The workspaces. The agent begins in the first.
    pub(crate) workspaces: Vec<WorkspaceOrder>,
    pub(crate) agent: String,
    pub(crate) service: AgentService,
    /// True if the sandbox may get a mount: a [`Mount`], or `None`, follows before the
    /// gateway confines itself.
    pub(crate) mount: bool,
}

/// The message of the broker once the sandbox is built, if it has mounts. Their FUSE
/// descriptors are attached, one for each workspace, then the sandbox's `/proc`, if it has
/// one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mount {
    /// The agent's user id, as the sandbox numbers it.
    pub(crate) user: u32,
    /// The agent's group id, likewise.
    pub(crate) group: u32,
}

/// The service of an agent over ACP.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Acp {
    /// The source of file content.
    pub(crate) source: String,
    /// Methods that are forwarded to the editor.
    pub(crate) forward: Vec<String>,
}

/// The service of the gateway for the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentService {
    /// ACP; the editor's output and input are attached to the order.
    Acp(Acp),
    /// The mount of a command, which has streams of its own.
    Command,
    /// The mount of a command on the operator's terminal, on which nothing else appears.
    Terminal,
}

/// The message of the broker once the agent waits. For ACP the agent's streams are attached:
/// its standard input, output and error, then the source of its MCP clients and the
/// descriptor for commands, if it has them. If it has a proxy, the descriptors of the egress
/// process, of the connector and of the credentials' processes come last.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AgentOrder {
    /// The results of the sandbox's self-test. With a mount they have a record of their own,
    /// because the start was recorded before.
    pub(crate) facts: BTreeMap<String, Value>,
    /// The operator's agent paths, absolute.
    pub(crate) granted: Vec<PathBuf>,
    /// The names of the environment variables given by the operator.
    pub(crate) variables: Vec<String>,
    /// The configuration of its MCP clients, if it can have any.
    pub(crate) entrance: Option<GatewayAddress>,
    /// True if commands can be started.
    pub(crate) commands: bool,
    /// The number of descriptors that are ends of the egress process and of the connector; 0 where
    /// the programs have no proxy.
    pub(crate) egress: usize,
    /// The credentials that they use; the ends of their processes come behind those.
    pub(crate) credentials: Vec<CredentialRoute>,
}

/// A credential that programs use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CredentialRoute {
    pub(crate) id: String,
    /// The host that it is for.
    pub(crate) host: String,
    /// The host's port.
    pub(crate) port: u16,
    /// The URL at which programs reach it.
    pub(crate) url: String,
}

/// The replies of the gateway.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// The process is confined.
    Confined {
        /// True if it gave up capabilities.
        dropped_capabilities: bool,
    },
    /// The start is recorded and the mount is served; the sandbox may be tested.
    Mounted,
    /// The start and the results of the self-test are recorded; the agent may run.
    Started {
        /// The session in the log.
        session: String,
        /// The number of its first record in the log of each workspace.
        records: Vec<u64>,
    },
    /// The agent is not served over ACP any more. The mount is, until its programs are gone.
    Served {
        /// True if its output was text, and no ACP.
        no_acp: bool,
        /// True if a message said that a connection was denied, cut off or failed.
        connection_reported: bool,
    },
}

/// The broker's orders while the gateway serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum GatewayOrder {
    /// Stop in order.
    Stop,
    /// The sandbox is set up, and the agent's own programs begin. The answer is sent to the attached
    /// channel.
    Begin,
    /// Reload a policy: its texts are in the shared file.
    Policy {
        /// The number of the workspace.
        workspace: usize,
        /// The hash of the texts.
        hash: [u8; 32],
        /// The trigger of the reload.
        trigger: String,
    },
    /// Record that a changed policy was refused.
    NoPolicy {
        /// The number of the workspace.
        workspace: usize,
        /// The trigger of the reload.
        trigger: String,
        /// Its hash, if it could be read.
        sha256: Option<String>,
        /// The reason.
        reason: String,
    },
    /// A process of egress has ended, or is another one now, whose ends are attached.
    Egress {
        /// Its role.
        role: EgressRole,
        /// True if another process takes its place.
        is_restarted: bool,
    },
    /// Record that a port of the host's loopback interface leads to the login. The channel is
    /// attached on which `()` answers once that is durable.
    Callback {
        /// The port.
        port: u16,
    },
}

/// A process that stands between a sandbox and the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EgressRole {
    /// The egress process, which serves the proxy.
    Proxy,
    /// The connector.
    Connector,
    /// The process of a credential.
    Credential { id: String },
}

impl EgressRole {
    /// Its name in records.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Proxy => "egress process".to_owned(),
            Self::Connector => "connector".to_owned(),
            Self::Credential { id } => format!("credential {id}"),
        }
    }
}

impl fmt::Display for EgressRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential { id } => write!(f, "process of the credential `{id}`"),
            Self::Proxy | Self::Connector => f.write_str(&self.name()),
        }
    }
}
