//! Entries that were reported because a listing found them, and which the kernel may report again.

use std::collections::{HashMap, HashSet};

use super::tree::Id;

type NamesByDirectory = HashMap<Id, HashSet<String>>;

/// The entries found, by directory.
#[derive(Debug, Default)]
pub(super) struct KnownEntries {
    now: NamesByDirectory,
    /// Entries found before the current notices were read.
    before: NamesByDirectory,
}

impl KnownEntries {
    pub(super) fn insert(&mut self, parent: Id, name: String) {
        self.now.entry(parent).or_default().insert(name);
    }

    /// Removes an entry; true if it was there.
    pub(super) fn take(&mut self, parent: Id, name: &str) -> bool {
        let [now, before] = [&mut self.now, &mut self.before]
            .map(|names| names.get_mut(&parent).is_some_and(|names| names.remove(name)));
        now | before
    }

    /// Removes a directory's entries, since its ID may be reused.
    pub(super) fn forget(&mut self, parent: Id) {
        self.now.remove(&parent);
        self.before.remove(&parent);
    }

    /// Ages the entries: no notices remain about those found before.
    pub(super) fn drained(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}
