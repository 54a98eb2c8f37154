//! Errors of allowed operations.

use super::BufferError;
use crate::{backup, policy::Decision, workspace};

/// The reason why an operation could not be prepared or committed. After each of these errors the
/// old state is intact, unless a disk failed in the middle: see [`is_undone`](super::is_undone).
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The workspace refused the access.
    #[error(transparent)]
    Workspace(#[from] workspace::Error),
    /// The policy denies the content.
    #[error("denied by rule `{}`", .0.rule())]
    Refused(Decision),
    /// The policy denies it because of a content that the agent may not read; the reason is hidden
    /// from it.
    #[error("denied by rule `{}`", .0.rule())]
    Unseen(Box<Decision>),
    /// Another process changed the object meanwhile; nothing was replaced.
    #[error(
        "another process changed the file at the same time; nothing was lost, read it and try again"
    )]
    Conflict,
    /// The name exists already.
    #[error("already exists")]
    AlreadyExists,
    /// The directory is not empty and the request is not `recursive`.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Another process keeps making entries in a directory that is being deleted; the rest has this
    /// path, which is never served.
    #[error(
        "another process keeps making entries in the directory while it is removed; what is left \
         of it is hidden at `{0}`, and the next start removes that"
    )]
    Growing(String),
    /// The client withdrew the request; nothing is disclosed.
    #[error("cancelled")]
    Cancelled,
    /// The request is invalid for this object.
    #[error("{0}")]
    Invalid(&'static str),
    /// The pattern of a search is invalid.
    #[error("the pattern cannot be used: {0}")]
    Pattern(String),
    /// The text to replace does not occur exactly once.
    #[error("the old text occurs {0} it must occur exactly once")]
    Occurrences(&'static str),
    /// The file belongs to another user, to whom the gateway may not give the new one.
    #[error("the file's owner could not be kept")]
    Owner,
    /// The editor failed.
    #[error(transparent)]
    Editor(#[from] BufferError),
    /// Changes cannot be watched.
    #[error("the workspace cannot be watched: {0}")]
    Watch(workspace::WatchError),
    /// The grant is that of another record.
    #[error("the operation has no record of its own")]
    Ungranted,
    /// The backup store failed.
    #[error("the backup failed: {0}")]
    Backup(#[from] backup::Error),
}

impl Error {
    /// Converts the error of a look before a change is begun: it leaves nothing behind, whatever has
    /// the name now.
    pub(super) fn unbegun(error: workspace::Error) -> Self {
        match error {
            workspace::Error::Moved => Self::Conflict,
            error => error.into(),
        }
    }

    /// Hides the reason of a denial from the agent.
    pub(super) fn unseen(self) -> Self {
        match self {
            Self::Refused(decision) => Self::Unseen(Box::new(decision)),
            error => error,
        }
    }
}

impl From<workspace::WatchError> for Error {
    fn from(error: workspace::WatchError) -> Self {
        match error {
            workspace::WatchError::Workspace(error) => Self::Workspace(error),
            error => Self::Watch(error),
        }
    }
}
