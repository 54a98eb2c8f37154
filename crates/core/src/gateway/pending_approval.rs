//! A request that waits for a person, and the words in which it is shown.

use super::approvals::{Binding, Told};
use crate::policy::Decision;

/// A request that stopped because a person must be asked.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) binding: Binding,
    pub(super) rules: Vec<Decision>,
    pub(super) change: String,
    pub(super) told: Told,
}

/// What would be done, in words for a person.
pub(super) struct Shown {
    pub(super) text: String,
    /// True if an agent that may list and read the paths that the request names may
    /// see all of it.
    pub(super) is_open: bool,
}

impl Shown {
    pub(super) fn open(text: String) -> Self {
        Self { text, is_open: true }
    }
}
