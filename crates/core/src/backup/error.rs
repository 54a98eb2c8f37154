//! Why a pre-image could not be kept or given back.

use std::io;

use rustix::io::Errno;

use super::BackupId;
use crate::ledger;

/// Why the vault could not do as asked. No message holds a host path or
/// content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What must be kept leaves no room within the policy's `backups.keep.size`.
    #[error(
        "the vault is full: backups that may not go yet leave no room within `backups.keep.size` \
         ({limit} bytes) of the policy; raise that, or undo what filled it"
    )]
    Full {
        /// The policy's limit in bytes.
        limit: u64,
    },
    /// The file system of the state directory is full.
    #[error("no space left for backups in the state directory")]
    NoSpace,
    /// The state directory holds something else under one of the vault's names.
    #[error("`{0}` in the state directory is not the vault's own")]
    Foreign(&'static str),
    /// What should be kept as a file is none.
    #[error("not a regular file")]
    NotRegular,
    /// A tree holds what a backup cannot give back.
    #[error("the tree holds a FIFO, a socket or a device, which cannot be kept")]
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
    /// A file, or a tree, has more content than it makes sense to read.
    #[error("it is too large to be read")]
    Large,
    /// Another process holds a lease on a file, or keeps renaming things.
    #[error("another process keeps a file of the tree from being opened; try again")]
    Busy,
    /// The object changed while it was being read.
    #[error("the object changed while it was being read")]
    Changed,
    /// No entry has this id.
    #[error("no backup has the id `{0}`")]
    Unknown(String),
    /// Several entries' ids start so.
    #[error("more than one backup has an id that starts with `{0}`")]
    Ambiguous(String),
    /// An entry is not what was stored.
    #[error("backup `{0}` is damaged: it is not what was stored")]
    Damaged(BackupId),
    /// The entry is of another type than asked for.
    #[error("backup `{id}` is not {expected}")]
    WrongType {
        /// The entry.
        id: BackupId,
        /// What it should have been: `a tree`.
        expected: &'static str,
    },
    /// Something is in the way of an entry that is given back.
    #[error("something is already there")]
    Exists,
    /// Another process keeps the vault's lock.
    #[error(transparent)]
    Locked(#[from] ledger::Error),
    /// The operating system refused.
    #[error("cannot {action}: {}", plain(.source))]
    Io {
        /// What was tried, as an infinitive: `open the vault`.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Wraps a system error with what was tried.
    pub(super) fn os(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::system(action, errno.into())
    }

    /// Wraps an error of the standard library with what was tried.
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
