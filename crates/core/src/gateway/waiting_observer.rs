//! The function that is called when requests begin or cease to wait for an approval.

use std::{fmt, sync::OnceLock};

use super::approvals::Approvals;

type WaitingObserver = dyn Fn(Vec<String>) + Send + Sync;

/// The function, once there is one.
#[derive(Default)]
pub(super) struct ApprovalObserver(OnceLock<Box<WaitingObserver>>);

impl Approvals {
    /// Calls `observer` with the ids of the requests that wait, the oldest first, whenever a request
    /// begins or ceases to wait. It must not block: threads that carry requests out call it. Only the
    /// first observer counts.
    pub fn observe(&self, observer: Box<WaitingObserver>) {
        let _ = self.observer.0.set(observer);
    }

    /// Calls the observer.
    pub(super) fn report(&self) {
        if let Some(observer) = self.observer.0.get() {
            observer(self.waiting().iter().map(|ticket| ticket.question().id.clone()).collect());
        }
    }
}

impl fmt::Debug for ApprovalObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalObserver").finish_non_exhaustive()
    }
}
