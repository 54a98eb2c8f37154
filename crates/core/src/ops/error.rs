//! Why an operation that was allowed could not be done.

use super::BufferError;
use crate::{backup, policy::Decision, workspace};

/// Why an operation could not be prepared or committed. After any of these the
/// old state is whole, but for a disk that failed in the middle: see
/// [`is_undone`](super::is_undone).
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The workspace could not be reached as asked.
    #[error(transparent)]
    Workspace(#[from] workspace::Error),
    /// The policy denies the content.
    #[error("denied by rule `{}`", .0.rule())]
    Refused(Decision),
    /// The policy denies it because of a content that the agent may not read, and is
    /// not to hear of.
    #[error("denied by rule `{}`", .0.rule())]
    Unseen(Box<Decision>),
    /// Another process changed the object meanwhile; nothing was replaced.
    #[error(
        "another process changed the file at the same time; nothing was lost, read it and try again"
    )]
    Conflict,
    /// Something has that name already.
    #[error("already exists")]
    AlreadyExists,
    /// The directory is not empty and `recursive` was not asked for.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Another process keeps making entries in a directory that is being deleted;
    /// what is left has this path, which is never served.
    #[error(
        "another process keeps making entries in the directory while it is removed; what is left \
         of it is hidden at `{0}`, and the next start removes that"
    )]
    Growing(String),
    /// Whoever asked gave it up; nothing is disclosed.
    #[error("cancelled")]
    Cancelled,
    /// What was asked for makes no sense for this object.
    #[error("{0}")]
    Invalid(&'static str),
    /// The pattern of a search is none.
    #[error("the pattern cannot be used: {0}")]
    Pattern(String),
    /// The text to replace does not occur exactly once.
    #[error("the old text occurs {0} it must occur exactly once")]
    Occurrences(&'static str),
    /// The file belongs to somebody else and the gate may not give the new one
    /// to them.
    #[error("the file's owner could not be kept")]
    Owner,
    /// The editor did not do its part.
    #[error(transparent)]
    Editor(#[from] BufferError),
    /// Changes cannot be watched.
    #[error("the workspace cannot be watched: {0}")]
    Watch(workspace::WatchError),
    /// The grant is that of another record.
    #[error("the operation has no record of its own")]
    Ungranted,
    /// The vault did not do its part.
    #[error("the backup failed: {0}")]
    Backup(#[from] backup::Error),
}

impl Error {
    /// The same where it is about what the agent may not see.
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
