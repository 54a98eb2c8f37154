//! The page of results that a reply contains.

use crate::model::{Page, Position, WorkspacePath};

/// Estimated bytes of a result in a reply besides its path and its text.
const RESULT_OVERHEAD: usize = 40;

/// The remaining space on a page.
pub(super) struct PageSpace {
    results: u64,
    bytes: usize,
}

impl PageSpace {
    pub(super) fn of(page: &Page) -> Self {
        Self { results: page.results, bytes: page.bytes }
    }

    /// Takes space for a result of `bytes` bytes; false if there is none.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.results.checked_sub(1).zip(self.bytes.checked_sub(bytes + RESULT_OVERHEAD));
        let Some((results, bytes)) = left else { return false };
        *self = Self { results, bytes };
        true
    }
}

/// Returns the line of `path` after which the page begins; `None` if all of it precedes the page.
pub(super) fn begins(page: Option<&Page>, path: &WorkspacePath) -> Option<u64> {
    match page.and_then(|page| page.after.as_ref()) {
        Some(after) if *path < after.path => None,
        Some(after) if *path == after.path => Some(after.line),
        _ => Some(0),
    }
}

/// Returns the position of a result.
pub(super) fn position(path: &WorkspacePath, line: u64) -> Position {
    Position { path: path.clone(), line }
}
