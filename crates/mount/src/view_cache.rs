//! A cache of the content shown of files, by version, so that an unchanged file is not
//! read, searched for secrets and hashed again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use portcullis_core::Version;

use crate::staged::Time;

/// The content of a file as it is shown; immutable.
pub(crate) type View = Arc<[u8]>;

/// The maximum interval of the clock of file times. A file changed less than this before a
/// read may change again without a new time.
const CLOCK_GRANULARITY: Duration = Duration::from_millis(20);

/// The key of a cached view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) version: Version,
    pub(crate) policy: u64,
}

/// A cache of views with a limit in bytes; it evicts the least recently used first.
#[derive(Debug)]
pub(crate) struct ViewCache {
    views: HashMap<u64, CachedView>,
    /// Nodes by the time of their last use.
    order: BTreeMap<u64, u64>,
    clock: u64,
    bytes: usize,
    limit: usize,
}

#[derive(Debug)]
struct CachedView {
    key: Key,
    view: View,
    used: u64,
}

/// The cost of a view besides its bytes.
const OVERHEAD: usize = 256;

/// Returns true if content read from `begun` on is final for its version: if the version's
/// change is old enough.
pub(crate) fn is_settled(changed: Time, begun: Time) -> bool {
    let nanos = |time: Time| i128::from(time.0) * 1_000_000_000 + i128::from(time.1);
    let granularity = i128::try_from(CLOCK_GRANULARITY.as_nanos()).unwrap_or(i128::MAX);
    nanos(begun) - nanos(changed) > granularity
}

impl ViewCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { views: HashMap::new(), order: BTreeMap::new(), clock: 0, bytes: 0, limit }
    }

    /// Returns the view of a node's file, if it is of this version under this policy.
    pub(crate) fn get(&mut self, node: u64, key: &Key) -> Option<View> {
        let kept = self.views.get_mut(&node).filter(|kept| kept.key == *key)?;
        self.order.remove(&kept.used);
        self.clock += 1;
        kept.used = self.clock;
        self.order.insert(self.clock, node);
        Some(Arc::clone(&kept.view))
    }

    /// Returns the size of such a view.
    pub(crate) fn size(&self, node: u64, key: &Key) -> Option<u64> {
        let kept = self.views.get(&node).filter(|kept| kept.key == *key)?;
        Some(kept.view.len() as u64)
    }

    pub(crate) fn insert(&mut self, node: u64, key: Key, view: View) {
        self.remove(node);
        let size = view.len().saturating_add(OVERHEAD);
        // A single view must not evict all others.
        if size > self.limit / 4 {
            return;
        }
        while self.bytes + size > self.limit
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.remove(oldest);
        }
        self.clock += 1;
        self.bytes += size;
        self.order.insert(self.clock, node);
        self.views.insert(node, CachedView { key, view, used: self.clock });
    }

    pub(crate) fn remove(&mut self, node: u64) {
        if let Some(kept) = self.views.remove(&node) {
            self.order.remove(&kept.used);
            self.bytes -= kept.view.len().saturating_add(OVERHEAD);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.views.clear();
        self.order.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_settled_after_the_granularity() {
        assert!(!is_settled((10, 0), (10, 20_000_000)));
        assert!(is_settled((10, 0), (10, 20_000_001)));
        assert!(is_settled((9, 990_000_000), (10, 10_000_001)));
        assert!(!is_settled((11, 0), (10, 0)));
    }
}
