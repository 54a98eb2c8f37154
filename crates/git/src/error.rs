//! Errors of objects and repositories.

use std::io;

use super::{ObjectId, ObjectKind};

/// Reasons why objects cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side of the pipe is gone, or the pipe fails.
    #[error("the git process ended early or cannot be reached: {0}")]
    Io(#[from] io::Error),
    /// The reply is not one of `git cat-file`.
    #[error("the git process sent a reply that cannot be read")]
    Reply,
    /// The object does not exist.
    #[error("the object {0} is missing or cannot be read")]
    Missing(ObjectId),
    /// The process that read it failed; another one replaced it, if one was left.
    #[error("the object {0} is damaged: git failed when it read it")]
    Unreadable(ObjectId),
    /// All processes failed.
    #[error("the repository has more damaged objects than the limit")]
    Exhausted,
    /// The object is of another kind.
    #[error("the object {0} is not a {1}")]
    Kind(ObjectId, ObjectKind),
    /// The object exceeds the maximum size.
    #[error("the object {id} has {size} bytes, more than the limit of {max}")]
    TooLarge {
        /// The object.
        id: ObjectId,
        /// Its size, according to the repository.
        size: u64,
        /// The maximum size.
        max: u64,
    },
    /// All objects together exceed the limit.
    #[error("the commits have more objects or bytes than the limit")]
    Budget,
    /// A commit changes more paths than the limit, or paths of more bytes.
    #[error("the commit changes more paths, or longer ones, than the limit")]
    Changes,
    /// All commits of an import change more paths than the limit, or paths of more bytes.
    #[error(
        "the commits before it change as many paths as one import may: import again for the rest"
    )]
    ImportChanges,
    /// The object's content has another hash.
    #[error("the object {0} does not have the content that its name says")]
    Corrupt(ObjectId),
    /// The object's content does not have the form that git writes.
    #[error("the object is malformed: {0}")]
    Malformed(&'static str),
    /// A path of the commit cannot be written.
    #[error("`{path}`: {reason}")]
    Path {
        /// The path; bytes that are not UTF-8 are replaced.
        path: String,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// Makes an error about `path`.
    pub(super) fn path(path: &[u8], reason: impl Into<String>) -> Self {
        Self::Path { path: String::from_utf8_lossy(path).into_owned(), reason: reason.into() }
    }
}
