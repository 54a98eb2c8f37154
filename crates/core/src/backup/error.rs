//! Errors of the backup store.

use std::io;

use rustix::io::Errno;

use super::BackupId;
use crate::audit_log;

/// The reason why the backup store failed. Messages have no host path and no content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backups that must stay leave no space within the policy's `backups.keep.size`.
    #[error(
        "the backup store is full: backups that may not be deleted yet leave no room within \
         `backups.keep.size` ({limit} bytes) of the policy; raise that, or undo what filled it"
    )]
    Full {
        /// The policy's limit in bytes.
        limit: u64,
    },
    /// The file system of the state directory is full.
    #[error("no space left for backups in the state directory")]
    NoSpace,
    /// Another kind of entry, or another user's, has one of the store's names in the state
    /// directory.
    #[error("`{0}` in the state directory is not the backup store's own")]
    Foreign(&'static str),
    /// The object to back up as a file is no regular file.
    #[error("not a regular file")]
    NotRegular,
    /// A tree has an object that a backup cannot restore.
    #[error("the tree contains a FIFO, a socket or a device, which cannot be backed up")]
    Special,
    /// Another file system is mounted inside a tree.
    #[error("another file system is mounted inside the tree")]
    Mount,
    /// A name inside a tree is not UTF-8.
    #[error("a name inside the tree is not UTF-8")]
    NotUtf8,
    /// A tree has more entries than [`super::MAX_ENTRIES`].
    #[error("the tree has too many entries to be kept")]
    TooLarge,
    /// A file, or a tree, has more content than may be read.
    #[error("it is too large to be read")]
    Large,
    /// Another process has a lease on a file, or keeps renaming entries.
    #[error("another process keeps a file of the tree from being opened; try again")]
    Busy,
    /// The object changed while it was being read.
    #[error("the object changed while it was being read")]
    Changed,
    /// No backup has this id.
    #[error("no backup has the id `{0}`")]
    Unknown(String),
    /// Several backups have ids that start so.
    #[error("more than one backup has an id that starts with `{0}`")]
    Ambiguous(String),
    /// A backup differs from what was stored.
    #[error("backup `{0}` is damaged: it is not what was stored")]
    Damaged(BackupId),
    /// The backup is of another kind than requested.
    #[error("backup `{id}` is not {expected}")]
    WrongType {
        /// The backup.
        id: BackupId,
        /// The expected kind: `a tree`.
        expected: &'static str,
    },
    /// An entry exists where a backup is restored.
    #[error("something is already there")]
    Exists,
    /// Another process has the store's lock.
    #[error(transparent)]
    Locked(#[from] audit_log::Error),
    /// The operating system refused.
    #[error("cannot {action}: {}", plain(.source))]
    Io {
        /// The action that failed, as an infinitive: `open the backup store`.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Converts a system error on `action`.
    pub(super) fn os(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::system(action, errno.into())
    }

    /// Converts an error of the standard library on `action`.
    pub(super) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::system(action, source)
    }

    fn system(action: &'static str, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace,
            _ => Self::Io { action, source },
        }
    }
}

fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
