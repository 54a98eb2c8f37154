//! The part of the results that a reply gives.

use crate::model::{Page, Position, WorkspacePath};

/// What a reply needs for a result besides its path and its text, in bytes.
const FRAME: usize = 40;

/// The room that is left on a page.
pub(super) struct Room {
    results: u64,
    bytes: usize,
}

impl Room {
    pub(super) fn of(page: &Page) -> Self {
        Self { results: page.results, bytes: page.bytes }
    }

    /// Takes room for a result of so many bytes; false when there is none.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.results.checked_sub(1).zip(self.bytes.checked_sub(bytes + FRAME));
        let Some((results, bytes)) = left else { return false };
        *self = Self { results, bytes };
        true
    }
}

/// The line of `path` after which the page begins; `None` where all of it comes before.
pub(super) fn begins(page: Option<&Page>, path: &WorkspacePath) -> Option<u64> {
    match page.and_then(|page| page.after.as_ref()) {
        Some(after) if *path < after.path => None,
        Some(after) if *path == after.path => Some(after.line),
        _ => Some(0),
    }
}

/// The place of a result.
pub(super) fn position(path: &WorkspacePath, line: u64) -> Position {
    Position { path: path.clone(), line }
}
