//! Replies: what each operation gives.

use portcullis_audit::Receipt;

use super::error::Failure;
use crate::ops::{Committed, Content, Entries};

/// What one try at a request comes to.
pub(super) type Attempt<T> = Result<Reply<T>, Failure>;

/// What a request gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<T> {
    /// The record of it: of a change its intent, which is durable.
    pub receipt: Receipt,
    /// The answer.
    pub output: T,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Whether it is on the disk, in the editor, or there was nothing to do.
    pub committed: Committed,
    /// Bytes stored.
    pub bytes: Option<u64>,
    /// The backup of what was replaced.
    pub backup: Option<String>,
}

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recalled {
    /// The content of a file, or the target of a link.
    Content(Content),
    /// The entries of a tree.
    Tree(Entries),
}
