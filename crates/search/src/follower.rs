//! Who follows a search while it is under way.

/// Whoever waits for an operation and wants to hear of it meanwhile, or gives
/// it up. A search asks often, and from several threads.
pub trait Follower: Sync {
    /// Whether it is still wanted.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Whether nobody waits any more for what has not begun to take effect.
    fn is_given_up(&self) -> bool {
        false
    }

    /// Whether it may take effect, from now on: what did is not given up.
    fn begins(&self) -> bool {
        true
    }

    /// So many entries were looked at; more each time, and not often.
    fn progress(&self, _entries: u64) {}
}

/// Nobody follows.
#[derive(Debug, Clone, Copy)]
pub struct Unfollowed;

impl Follower for Unfollowed {}
