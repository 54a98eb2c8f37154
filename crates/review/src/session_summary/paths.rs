//! Paths that a party named, counted and bounded.

use std::collections::{BTreeMap, BTreeSet};

use crate::scan::OVERHEAD;

/// Maximum number of paths of one kind that are counted for one party.
const MAX_PATHS: usize = 50_000;

/// Numbers of occurrences by path and word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    /// The occurrences that are counted one by one.
    pub counts: BTreeMap<(String, String), u64>,
    /// Number of occurrences that are not among them.
    pub more: u64,
}

impl Paths {
    /// Counts occurrences; a new path takes its bytes from `room`.
    pub(super) fn add(&mut self, path: &str, word: &str, times: u64, room: &mut usize) {
        let key = (path.to_owned(), word.to_owned());
        let bytes = path.len() + word.len() + OVERHEAD;
        if let Some(count) = self.counts.get_mut(&key) {
            *count = count.saturating_add(times);
        } else if self.counts.len() < MAX_PATHS && *room >= bytes {
            *room -= bytes;
            self.counts.insert(key, times);
        } else {
            self.more = self.more.saturating_add(times);
        }
    }

    /// Takes one occurrence back; false if the path is not counted by itself.
    pub(super) fn take_back(&mut self, path: &str, word: &str) -> bool {
        let key = (path.to_owned(), word.to_owned());
        let Some(count) = self.counts.get_mut(&key) else { return false };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.counts.remove(&key);
        }
        true
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.more == 0
    }

    /// Returns the number of different paths; there may be more unless [`Paths::is_exact`].
    pub fn distinct(&self) -> usize {
        self.counts.keys().map(|(path, _)| path).collect::<BTreeSet<_>>().len()
    }

    /// True if every occurrence is counted by its path.
    pub fn is_exact(&self) -> bool {
        self.more == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_once_and_within_the_bounds() {
        let (mut paths, mut room) = (Paths::default(), usize::MAX);
        for number in 0..MAX_PATHS / 2 {
            paths.add(&format!("f{number}"), "write", 1, &mut room);
            paths.add(&format!("f{number}"), "remove", 2, &mut room);
        }
        assert_eq!((paths.distinct(), paths.is_exact()), (MAX_PATHS / 2, true));
        paths.add("g", "write", 3, &mut room);
        paths.add("f0", "write", 1, &mut room);
        assert_eq!((paths.distinct(), paths.is_exact(), paths.more), (MAX_PATHS / 2, false, 3));
        let (mut paths, mut none) = (Paths::default(), 0);
        paths.add("a", "write", 1, &mut none);
        assert_eq!((paths.distinct(), paths.is_exact(), paths.is_empty()), (0, false, false));
    }
}
