//! What the processes of `serve` say to each other, over channels that only
//! they hold.
//!
//! The front reads the network, so the broker takes its words for what an
//! attacker may say: they are few, small and held against the broker's table.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    app::launch::Launch,
    gateway::Numbers,
    sandbox::{Apart, Outside},
    serve::{Bounds, Exported, Guard, Limits},
};

/// To the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToFront {
    /// First of all; the listening sockets are attached in this order.
    Start(Box<FrontStart>),
    /// To take connections: the service's start is on record.
    Serve,
    /// The answer to a question; a stream is attached.
    Answer {
        /// The question's number.
        number: u64,
        /// What was found.
        answer: WorkspaceAnswer,
    },
    /// What a worker has counted.
    Numbers { workspace: String, numbers: Numbers },
    /// How many spans were exported.
    Exported(Exported),
    /// A worker has ended.
    Gone {
        workspace: String,
        /// By itself.
        died: bool,
        /// Its workspace is not served any more.
        forget: bool,
    },
    /// Whom to let in from now on.
    Guard(GuardWords),
    /// With which certificate from now on.
    Tls(Pem),
    /// To stop in order.
    Stop,
}

/// How a front starts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FrontStart {
    /// Of each attached socket, whether it is for TCP.
    pub(super) tcp: Vec<bool>,
    pub(super) guard: GuardWords,
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
    /// What it must not reach.
    pub(super) outside: Outside,
    /// How much is logged.
    pub(super) log: String,
}

impl FrontStart {
    /// What bounds the front.
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

/// A certificate and its key, as their files have them.
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

/// A [`Guard`] on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GuardWords {
    pub(super) hosts: Vec<String>,
    pub(super) addresses: Vec<std::net::IpAddr>,
    pub(super) origins: Vec<String>,
}

impl From<GuardWords> for Guard {
    fn from(words: GuardWords) -> Self {
        let GuardWords { hosts, addresses, origins } = words;
        Self { hosts, addresses, origins }
    }
}

/// What the broker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkspaceAnswer {
    /// A stream is attached.
    Stream,
    /// The agent's workspaces.
    Workspaces(Vec<String>),
    /// Leave.
    Granted,
    /// Everything can be served, or why not.
    Ready(Result<(), String>),
    /// The token is no agent's.
    Unauthorised,
    /// No such workspace for this agent.
    UnknownWorkspace,
    /// Too many already.
    Busy,
    /// It cannot be served now.
    Unavailable,
}

/// From the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromFront {
    /// It is confined, and that was tested.
    Ready { apart: Apart, dropped_capabilities: bool },
    /// It cannot start.
    Failed { why: String },
    /// A question.
    Ask {
        number: u64,
        /// SHA-256 of the token.
        token: [u8; 32],
        peer: String,
        want: Wanted,
    },
    /// Whether everything can be served: a question, too.
    IsReady { number: u64 },
    /// Wrong tokens that were not put to the broker.
    Throttled { peer: String, attempts: u64 },
}

/// What the front asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Wanted {
    Session { workspace: String, door: Spoken },
    Workspaces,
    Metrics,
}

/// What is spoken over a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Spoken {
    Mcp,
    Files,
}

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// First of all. The files of the order are attached, and that of later policies.
    Start(Box<WorkerStart>),
    /// A session; its stream is attached.
    Connection { number: u64, agent: String, door: Spoken, peer: String },
    /// The agent's sessions end.
    Close { agent: String },
    /// To take another policy up; its texts are in the shared file, under this hash.
    Policy { hash: [u8; 32] },
    /// There would be another, but it is out of the question.
    NoPolicy { sha256: Option<String>, why: String },
    /// To stop in order.
    Stop {
        /// Because the whole service does: clients are answered what they have
        /// said. Else the workspace is not to be served any more, or not as it
        /// was, and nothing more is begun.
        service: bool,
    },
}

/// How a worker starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkerStart {
    /// Only to test the separation.
    pub(super) trial: bool,
    pub(super) name: String,
    pub(super) launch: Launch,
    pub(super) alias: PathBuf,
    /// Whether the tools are those of the reference server.
    pub(super) reference: bool,
    /// Whether clients may answer for their users.
    pub(super) elicit: bool,
    /// What it must not reach.
    pub(super) outside: Outside,
    pub(super) requests_per_second: u64,
    pub(super) bytes_per_second: u64,
    pub(super) concurrent_requests: usize,
    pub(super) watches: usize,
    /// Of how many in a hundred requests spans are gathered, if at all.
    pub(super) spans: Option<u64>,
    pub(super) message_bytes: usize,
    pub(super) message_memory: usize,
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// It is confined, that was tested, and the start is on record.
    Ready { apart: Apart },
    /// It cannot start.
    Failed { why: String },
    /// A session has begun.
    Begun { number: u64 },
    /// A session could not begin.
    NotBegun { number: u64 },
    /// A session has ended; it may have begun just before.
    Ended { number: u64 },
    /// What it has counted.
    Numbers(Numbers),
    /// Spans of requests, and how many more there was no room for.
    Spans { spans: Vec<Span>, lost: u64 },
}

/// A request, as it may be known outside: whatever else there is to it stays
/// in the log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) operation: String,
    pub(super) door: String,
    pub(super) agent: String,
    pub(super) decision: String,
    pub(super) rule: String,
    /// `ok`, or the kind of error.
    pub(super) result: String,
    /// The number of its record.
    pub(super) record: Option<u64>,
    /// When it began, in nanoseconds since 1970.
    pub(super) begun: u64,
    /// How long it took.
    pub(super) nanos: u64,
}
