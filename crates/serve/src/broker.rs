//! What a front asks the broker, and what it hears.

use std::{os::fd::OwnedFd, time::Duration};

use tokio::sync::oneshot;

use super::{peer::Peer, token::TokenHash};
use crate::model::Door;

/// Who calls: what is known before the broker was asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The hash of the token that was shown.
    pub token: TokenHash,
    /// Where the connection comes from.
    pub peer: Peer,
}

/// One question.
#[derive(Debug)]
pub struct Ask {
    /// Who wants it; nobody, for what anybody may know.
    pub caller: Option<Caller>,
    /// What is wanted.
    pub want: Want,
    /// Where the answer goes; whoever asked may have gone.
    pub reply: oneshot::Sender<Result<Answer, OpenError>>,
}

/// What is wanted of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// A stream to a workspace.
    Session {
        /// The workspace's name, as it came.
        workspace: String,
        /// What is spoken.
        door: Door,
    },
    /// The names of the workspaces that the agent may use.
    Workspaces,
    /// Leave to read the service's numbers.
    Metrics,
    /// Whether everything can be served. Nobody's token is needed.
    Ready,
}

/// What the broker answers.
#[derive(Debug)]
pub enum Answer {
    /// A stream.
    Stream(OwnedFd),
    /// Names.
    Workspaces(Vec<String>),
    /// Leave.
    Granted,
    /// Everything can be served, or why not: no name and no path.
    Ready(Result<(), String>),
}

/// What a front tells the broker without wanting an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// So many requests with tokens of no agent came from `peer` and were
    /// refused unseen, since there had been too many before.
    Throttled {
        /// From where.
        peer: Peer,
        /// How many.
        attempts: u64,
    },
}

/// No session; a client is told this much.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The token is no agent's.
    #[error("the token is not valid")]
    Unauthorised,
    /// There is no such workspace, or it is not for this agent.
    #[error("there is no such workspace")]
    UnknownWorkspace,
    /// As many sessions as there may be.
    #[error("too many sessions; try again later")]
    Busy,
    /// Too many wrong tokens came from this address; it may try again after
    /// this time.
    #[error("too many failed logins; try again later")]
    Throttled(Duration),
    /// The workspace cannot be served now.
    #[error("the workspace cannot be served at the moment")]
    Unavailable,
}
