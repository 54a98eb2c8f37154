//! Requests of a front to the broker, and their replies.

use std::{os::fd::OwnedFd, time::Duration};

use tokio::sync::oneshot;

use super::{peer::Peer, token::TokenHash};
use crate::model::Transport;

/// The sender of a request, as known before the broker is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The hash of the token that the request carries.
    pub token: TokenHash,
    /// The origin of the connection.
    pub peer: Peer,
}

/// A request to the broker.
#[derive(Debug)]
pub struct BrokerRequest {
    /// The client behind it; `None` for what needs no token.
    pub caller: Option<Caller>,
    /// The request itself.
    pub request: BrokerRequestKind,
    /// The channel for the reply; the receiver may be gone.
    pub reply: oneshot::Sender<Result<BrokerReply, OpenError>>,
}

/// The kinds of requests to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerRequestKind {
    /// A stream to a workspace.
    Session {
        /// The workspace's name, as it came.
        workspace: String,
        /// The transport of the session.
        transport: Transport,
    },
    /// The names of the workspaces that the agent may use.
    Workspaces,
    /// Permission to read the service's metrics.
    Metrics,
    /// The readiness of the service. Needs no token.
    Ready,
}

/// A reply of the broker.
#[derive(Debug)]
pub enum BrokerReply {
    /// A stream.
    Stream(OwnedFd),
    /// The names of workspaces.
    Workspaces(Vec<String>),
    /// Permission.
    Granted,
    /// Ready, or the reason why not, which contains no name and no path.
    Ready(Result<(), String>),
}

/// A notification from a front to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerNotice {
    /// Number of requests from `peer` with tokens of no agent that were refused
    /// without asking the broker, because too many had come before.
    Throttled {
        /// The origin of the requests.
        peer: Peer,
        /// The number of requests.
        attempts: u64,
    },
}

/// The reason why there is no session; a client learns no more than this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The token is no agent's.
    #[error("the token is not valid")]
    Unauthorised,
    /// No such workspace exists, or the agent may not use it.
    #[error("there is no such workspace")]
    UnknownWorkspace,
    /// The maximum of sessions is reached.
    #[error("too many sessions; try again later")]
    Busy,
    /// Too many wrong tokens came from this address; it may try again after this
    /// time.
    #[error("too many failed logins; try again later")]
    Throttled(Duration),
    /// The workspace cannot be served now.
    #[error("the workspace cannot be served at the moment")]
    Unavailable,
}
