//! Lists of a report that contain only their first items.

use serde::Serialize;

/// Maximum number of items in a list of a report; totals count all.
pub const MOST_LISTED: usize = 2000;

/// The first items of a list, and the total.
#[derive(Debug, Serialize)]
pub struct Listed<T> {
    /// The total number of items.
    pub total: u64,
    /// The first [`MOST_LISTED`] items.
    pub listed: Vec<T>,
}

/// A list that stores only its first items.
#[derive(Debug)]
pub(super) struct First<T> {
    total: u64,
    pub(super) kept: Vec<T>,
}

impl<T> Default for First<T> {
    fn default() -> Self {
        Self { total: 0, kept: Vec::new() }
    }
}

impl<T> First<T> {
    pub(super) fn push(&mut self, item: impl FnOnce() -> T) {
        self.total += 1;
        if self.kept.len() < MOST_LISTED {
            self.kept.push(item());
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.total += other.total;
        let room = MOST_LISTED.saturating_sub(self.kept.len());
        self.kept.extend(other.kept.into_iter().take(room));
    }
}

impl<T> From<First<T>> for Listed<T> {
    fn from(first: First<T>) -> Self {
        Self { total: first.total, listed: first.kept }
    }
}
