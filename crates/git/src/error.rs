//! What can be wrong with an object or with a repository.

use std::io;

use super::{ObjectId, ObjectKind};

/// Why objects cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side of the pipe is gone, or the pipe fails.
    #[error("the git process ended early or cannot be reached: {0}")]
    Io(#[from] io::Error),
    /// The reply is none of `git cat-file`.
    #[error("the git process sent a reply that cannot be read")]
    Reply,
    /// There is no such object.
    #[error("the object {0} is missing or cannot be read")]
    Missing(ObjectId),
    /// The process that read it failed, and was begun anew if one was left.
    #[error("the object {0} is damaged: git failed when it read it")]
    Unreadable(ObjectId),
    /// As many processes failed as are begun anew.
    #[error("the repository has more damaged objects than the limit")]
    Exhausted,
    /// It is of another kind.
    #[error("the object {0} is not a {1}")]
    Kind(ObjectId, ObjectKind),
    /// It is larger than is read.
    #[error("the object {id} has {size} bytes, more than the limit of {max}")]
    TooLarge {
        /// The object.
        id: ObjectId,
        /// Its size, as the repository has it.
        size: u64,
        /// The most that is read.
        max: u64,
    },
    /// All that is read together is more than the limit.
    #[error("the commits have more objects or bytes than the limit")]
    Budget,
    /// Its content has another hash.
    #[error("the object {0} does not have the content that its name says")]
    Corrupt(ObjectId),
    /// Its content is not in the form that git writes.
    #[error("the object is malformed: {0}")]
    Malformed(&'static str),
    /// A path cannot be written as the commit has it.
    #[error("`{path}`: {why}")]
    Path {
        /// The path, with what is no text replaced.
        path: String,
        /// Why.
        why: String,
    },
}

impl Error {
    /// An error about `path`.
    pub(super) fn path(path: &[u8], why: impl Into<String>) -> Self {
        Self::Path { path: String::from_utf8_lossy(path).into_owned(), why: why.into() }
    }
}
