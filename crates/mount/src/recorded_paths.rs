//! Paths with a record of one kind: the first request about a path is recorded, and further ones are
//! counted.

use std::{
    collections::HashSet,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

/// The maximum of bytes of paths with a record; requests about further ones are counted only.
const MAX_PATH_BYTES: usize = 512 << 10;
/// The cost of a path besides its bytes.
const PATH_OVERHEAD: usize = 64;

/// The recorded paths under one policy: another one begins without any. A key has the path.
#[derive(Debug)]
pub(crate) struct RecordedPaths<Key>(Mutex<Recorded<Key>>);

#[derive(Debug)]
struct Recorded<Key> {
    policy: u64,
    known: HashSet<Key>,
    bytes: usize,
}

impl<Key> Default for RecordedPaths<Key> {
    fn default() -> Self {
        Self(Mutex::new(Recorded { policy: 0, known: HashSet::new(), bytes: 0 }))
    }
}

impl<Key: Eq + Hash> RecordedPaths<Key> {
    /// Returns true if a request has to be recorded: it is the first with its key, and there is room
    /// for its path, of `length` bytes.
    pub(crate) fn is_first(&self, policy: u64, key: Key, length: usize) -> bool {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recorded.policy != policy {
            *recorded = Recorded { policy, known: HashSet::new(), bytes: 0 };
        }
        let size = length + PATH_OVERHEAD;
        if recorded.known.contains(&key) || recorded.bytes + size > MAX_PATH_BYTES {
            return false;
        }
        recorded.bytes += size;
        recorded.known.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_recorded_once_for_each_policy_and_within_the_bound() {
        let paths = RecordedPaths::<String>::default();
        let first = |policy, name: &str| paths.is_first(policy, name.to_owned(), name.len());
        assert!(first(1, "a") && !first(1, "a") && first(1, "b") && first(2, "a"));
        let recorded = (0..100_000).filter(|number| first(3, &format!("{number:036}")));
        assert_eq!(recorded.count(), MAX_PATH_BYTES / 100);
    }
}
