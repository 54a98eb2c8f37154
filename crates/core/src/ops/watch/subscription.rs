//! What a subscriber holds of its queue of changes.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    hub::Shared,
    queue::{Event, Queue, WatchEnd},
};
use crate::model::WorkspacePath;

/// A subscription to changes. Copies share one queue; when the last is gone the
/// subscription ends.
#[derive(Clone)]
pub struct Subscription(Arc<Handle>);

struct Handle {
    queue: Arc<Queue>,
    shared: Weak<Shared>,
}

impl Subscription {
    pub(super) fn new(queue: Arc<Queue>, shared: Weak<Shared>) -> Self {
        Self(Arc::new(Handle { queue, shared }))
    }

    /// The next change, waiting for one no longer than `timeout`; `None` when
    /// there was none.
    ///
    /// # Errors
    /// When nothing more will come; what waited was given before.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>, WatchEnd> {
        self.0.queue.next(timeout)
    }

    /// From now on `wake` is called, by another thread and often needlessly,
    /// when there may be something to take. It must not wait.
    pub fn on_ready(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A second one would take it from the first.
        let _ = self.0.queue.wake.set(Box::new(wake));
        self.0.queue.ring();
    }

    /// What is watched; its canonical path.
    pub fn path(&self) -> &WorkspacePath {
        &self.0.queue.path
    }

    /// Says which record began it; only then its end has one.
    pub(crate) fn began(&self, seq: u64) {
        let _ = self.0.queue.seq.set(seq);
    }

    /// Ends it for all copies.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Handle {
    fn close(&self) {
        self.queue.end(WatchEnd::Closed);
        if let Some(shared) = self.shared.upgrade() {
            shared.over(&self.queue);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Subscription {}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(self.path()).finish()
    }
}
