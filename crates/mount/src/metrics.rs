//! Counters of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a mount since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountMetrics {
    /// Opens for which a file was read and recorded.
    pub opens: u64,
    /// Opens of a version that was read before: decided, and only counted.
    pub repeats: u64,
    /// Files whose new content was stored.
    pub commits: u64,
    /// Other changes: of names and attributes.
    pub changes: u64,
    /// Refused requests.
    pub refusals: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) opens: Count,
    pub(crate) repeats: Count,
    pub(crate) commits: Count,
    pub(crate) changes: Count,
    pub(crate) refusals: Count,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub(crate) fn numbers(&self) -> MountMetrics {
        MountMetrics {
            opens: self.opens.get(),
            repeats: self.repeats.get(),
            commits: self.commits.get(),
            changes: self.changes.get(),
            refusals: self.refusals.get(),
        }
    }
}
