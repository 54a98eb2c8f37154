//! Entries that were told of because they were found by looking, and of which
//! the kernel may be about to tell once more.

use std::collections::{HashMap, HashSet};

use super::tree::Id;

type NamesByDirectory = HashMap<Id, HashSet<String>>;

/// What was found, by directory.
#[derive(Debug, Default)]
pub(super) struct Found {
    now: NamesByDirectory,
    /// Found before the notices that are dealt with were read.
    before: NamesByDirectory,
}

impl Found {
    pub(super) fn insert(&mut self, parent: Id, name: String) {
        self.now.entry(parent).or_default().insert(name);
    }

    /// Whether an entry was found; it is not so any more.
    pub(super) fn take(&mut self, parent: Id, name: &str) -> bool {
        let [now, before] = [&mut self.now, &mut self.before]
            .map(|names| names.get_mut(&parent).is_some_and(|names| names.remove(name)));
        now | before
    }

    /// A directory's place is free: the next in it is another directory.
    pub(super) fn forget(&mut self, parent: Id) {
        self.now.remove(&parent);
        self.before.remove(&parent);
    }

    /// Nothing more had happened: what was found before has been told of.
    pub(super) fn drained(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}
