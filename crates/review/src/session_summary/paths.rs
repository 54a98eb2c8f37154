//! Paths that a party named, counted and bounded.

use std::collections::BTreeMap;

use crate::scan::OVERHEAD;

/// Maximum number of paths of one kind for one party.
const MAX_PATHS: usize = 200;

/// Numbers of occurrences by path and word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    /// The first of them.
    pub listed: BTreeMap<(String, String), u64>,
    /// Number of further occurrences.
    pub more: u64,
}

impl Paths {
    /// Counts occurrences; a new path takes its bytes from `room`.
    pub(super) fn add(&mut self, path: &str, word: &str, times: u64, room: &mut usize) {
        let key = (path.to_owned(), word.to_owned());
        let bytes = path.len() + word.len() + OVERHEAD;
        if let Some(count) = self.listed.get_mut(&key) {
            *count = count.saturating_add(times);
        } else if self.listed.len() < MAX_PATHS && *room >= bytes {
            *room -= bytes;
            self.listed.insert(key, times);
        } else {
            self.more = self.more.saturating_add(times);
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.more == 0
    }
}
