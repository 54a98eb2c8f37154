//! The page of results that a reply contains.

use crate::model::{Page, Position, WorkspacePath};

/// Estimated bytes of a result in a reply besides its path and its text.
const RESULT_OVERHEAD: usize = 40;

/// The remaining space on a page.
pub(super) struct PageSpace {
    results: u64,
    bytes: usize,
    is_unused: bool,
}

impl PageSpace {
    pub(super) fn of(page: &Page) -> Self {
        Self { results: page.results, bytes: page.bytes, is_unused: true }
    }

    /// Takes space for a result of `bytes` bytes; false if there is none. The first result always
    /// has space, so that a page leads to the next one.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes + RESULT_OVERHEAD);
        let left = if self.is_unused { Some(left.unwrap_or(0)) } else { left };
        let Some((results, bytes)) = self.results.checked_sub(1).zip(left) else { return false };
        *self = Self { results, bytes, is_unused: false };
        true
    }
}

/// Returns the number of bytes of a text in JSON, in which control characters are escaped.
pub(super) fn json_bytes(text: &str) -> usize {
    let bytes = |c: char| match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    };
    text.chars().map(bytes).sum()
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
