//! Progress and cancellation of a search.

/// The party that waits for an operation: it receives progress and may cancel. A search calls it
/// often, and from several threads.
pub trait Follower: Sync {
    /// True while the operation is wanted.
    fn is_wanted(&self) -> bool {
        true
    }

    /// True if the client cancelled and the operation has not begun to take effect.
    fn is_given_up(&self) -> bool {
        false
    }

    /// True if the operation may take effect from now on, after which it cannot be cancelled.
    fn begins(&self) -> bool {
        true
    }

    /// Reports the number of entries visited so far, at intervals.
    fn progress(&self, _entries: u64) {}
}

/// Ignores progress and never cancels.
#[derive(Debug, Clone, Copy)]
pub struct NoFollower;

impl Follower for NoFollower {}
