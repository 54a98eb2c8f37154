//! Messages between the processes of `serve`, over channels that no other process
//! has.
//!
//! The front reads the network, so the broker treats its messages as an attacker's:
//! they are few, small and checked against the broker's table.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    app::launch::Launch,
    gateway::GatewayMetrics,
    sandbox::{IsolationReport, UnreachablePaths},
    serve::{Bounds, Exported, Guard, Limits},
};

/// Messages to the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToFront {
    /// The first message; the listening sockets are attached in this order.
    Start(Box<FrontStart>),
    /// Accept connections: the service's start is recorded.
    Serve,
    /// The reply to a request; a stream is attached.
    Answer {
        /// The request's number.
        number: u64,
        /// The result.
        answer: WorkspaceAnswer,
    },
    /// The counters of a worker.
    Numbers { workspace: String, numbers: GatewayMetrics },
    /// The counters of exported spans.
    Exported(Exported),
    /// A worker has ended.
    Gone {
        workspace: String,
        /// True if it ended unexpectedly.
        died: bool,
        /// True if its workspace is not served any more.
        forget: bool,
    },
    /// The hosts and origins to accept from now on.
    Guard(GuardMessage),
    /// The certificate to use from now on.
    Tls(Pem),
    /// Stop in order.
    Stop,
}

/// The configuration of a front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FrontStart {
    /// True for each attached socket that is for TCP.
    pub(super) tcp: Vec<bool>,
    pub(super) guard: GuardMessage,
    pub(super) tls: Option<Pem>,
    pub(super) connections: usize,
    pub(super) head_bytes: usize,
    pub(super) head_seconds: u64,
    pub(super) body_seconds: u64,
    pub(super) idle_seconds: u64,
    pub(super) session_idle_seconds: u64,
    pub(super) failed_logins: u32,
    pub(super) message_bytes: usize,
    pub(super) message_memory: usize,
    /// Paths that it must not reach.
    pub(super) unreachable: UnreachablePaths,
    /// The log level.
    pub(super) log: String,
}

impl FrontStart {
    /// Returns the limits of the front.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            connections: self.connections,
            head: std::time::Duration::from_secs(self.head_seconds),
            head_bytes: self.head_bytes,
            body: std::time::Duration::from_secs(self.body_seconds),
            idle: std::time::Duration::from_secs(self.idle_seconds),
            session_idle: std::time::Duration::from_secs(self.session_idle_seconds),
            failed_logins: self.failed_logins,
            sockets: Bounds {
                message: self.message_bytes,
                memory: self.message_memory,
                arrive: std::time::Duration::from_secs(self.body_seconds),
                ..Bounds::default()
            },
        }
    }
}

/// A certificate and its key, as their files contain them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pem {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem(…)")
    }
}

/// A [`Guard`] for transmission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GuardMessage {
    pub(super) hosts: Vec<String>,
    pub(super) addresses: Vec<std::net::IpAddr>,
    pub(super) origins: Vec<String>,
}

impl From<GuardMessage> for Guard {
    fn from(words: GuardMessage) -> Self {
        let GuardMessage { hosts, addresses, origins } = words;
        Self { hosts, addresses, origins }
    }
}

/// The broker's replies.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkspaceAnswer {
    /// A stream is attached.
    Stream,
    /// The agent's workspaces.
    Workspaces(Vec<String>),
    /// Permission.
    Granted,
    /// Ready, or the reason why not.
    Ready(Result<(), String>),
    /// The token is no agent's.
    Unauthorised,
    /// No such workspace exists for this agent.
    UnknownWorkspace,
    /// A maximum is reached.
    Busy,
    /// The workspace cannot be served now.
    Unavailable,
}

/// Messages from the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromFront {
    /// The front is confined, which was tested.
    Ready { apart: IsolationReport, dropped_capabilities: bool },
    /// The front cannot start.
    Failed { reason: String },
    /// A request.
    Ask {
        number: u64,
        /// SHA-256 of the token.
        token: [u8; 32],
        peer: String,
        request: FrontRequest,
    },
    /// A request for the readiness.
    IsReady { number: u64 },
    /// Wrong tokens that were refused without asking the broker.
    Throttled { peer: String, attempts: u64 },
}

/// The requests of the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FrontRequest {
    Session { workspace: String, transport: StreamProtocol },
    Workspaces,
    Metrics,
}

/// The protocol of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StreamProtocol {
    Mcp,
    Files,
}

/// Messages to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// The first message. The files of the order are attached, and that for policy
    /// reloads.
    Start(Box<WorkerStart>),
    /// A session; its stream is attached.
    Connection { number: u64, agent: String, transport: StreamProtocol, peer: String },
    /// End the agent's sessions.
    Close { agent: String },
    /// Reload the policy; its texts are in the shared file, with this hash.
    Policy { hash: [u8; 32] },
    /// Record that a changed policy was refused.
    NoPolicy { sha256: Option<String>, reason: String },
    /// Stop in order.
    Stop {
        /// True if the whole service stops: clients get replies to their requests so
        /// far. Otherwise the workspace is not served any more, or has changed, and
        /// no further request begins.
        service: bool,
    },
}

/// The configuration of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkerStart {
    /// True for a test of the separation only.
    pub(super) trial: bool,
    pub(super) name: String,
    pub(super) launch: Launch,
    pub(super) alias: PathBuf,
    /// True for the tools of the reference server.
    pub(super) reference: bool,
    /// True if clients may ask their users for approvals.
    pub(super) elicit: bool,
    /// Paths that it must not reach.
    pub(super) unreachable: UnreachablePaths,
    pub(super) requests_per_second: u64,
    pub(super) bytes_per_second: u64,
    pub(super) concurrent_requests: usize,
    pub(super) watches: usize,
    /// The percentage of requests of which spans are gathered, if any.
    pub(super) spans: Option<u64>,
    pub(super) message_bytes: usize,
    pub(super) message_memory: usize,
}

/// Messages from a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The worker is confined, which was tested, and the start is recorded.
    Ready { apart: IsolationReport },
    /// The worker cannot start.
    Failed { reason: String },
    /// A session has begun.
    Begun { number: u64 },
    /// A session could not begin.
    NotBegun { number: u64 },
    /// A session has ended; it may have begun just before.
    Ended { number: u64 },
    /// Its counters.
    Numbers(GatewayMetrics),
    /// Spans of requests, and the number of those dropped for lack of room.
    Spans { spans: Vec<Span>, lost: u64 },
}

/// A request as far as it may be known outside: all other details are in the log
/// only.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) operation: String,
    pub(super) transport: String,
    pub(super) agent: String,
    pub(super) decision: String,
    pub(super) rule: String,
    /// `ok`, or the kind of error.
    pub(super) result: String,
    /// The sequence number of its record.
    pub(super) record: Option<u64>,
    /// The time of its beginning, in nanoseconds since 1970.
    pub(super) begun: u64,
    /// Its duration in nanoseconds.
    pub(super) nanos: u64,
}
