//! Replies and their results.

use portcullis_audit::Receipt;

use super::error::Failure;
use crate::ops::{Committed, Content, Entries};

/// The result of one attempt at a request.
pub(super) type Attempt<T> = Result<Reply<T>, Failure>;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<T> {
    /// The receipt of the request's record; of a change, that of its intent, which is durable.
    pub receipt: Receipt,
    /// The result.
    pub output: T,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The effect: on the disk, in the editor, or none because there was nothing to do.
    pub committed: Committed,
    /// Bytes stored.
    pub bytes: Option<u64>,
    /// The backup of what was replaced.
    pub backup: Option<String>,
}

/// The content of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recalled {
    /// The content of a file, or the target of a link.
    Content(Content),
    /// The entries of a tree.
    Tree(Entries),
}
