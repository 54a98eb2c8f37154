//! The function that is called when requests begin or cease to wait for an approval.

use std::{fmt, sync::Mutex};

use super::{approvals::Approvals, lock::lock};

type WaitingObserver = dyn Fn(Vec<String>) + Send + Sync;

/// The function, once there is one. Its lock is held from the look at the requests until the function
/// has returned: the last call has the newest state.
#[derive(Default)]
pub(super) struct ApprovalObserver(Mutex<Option<Box<WaitingObserver>>>);

impl Approvals {
    /// Calls `observer` with the ids of the requests that wait, the oldest first, whenever a request
    /// begins or ceases to wait. It must not block: threads that carry requests out call it.
    pub fn observe(&self, observer: Box<WaitingObserver>) {
        *lock(&self.observer.0) = Some(observer);
    }

    /// Calls the observer.
    pub(super) fn report(&self) {
        if let Some(observer) = &*lock(&self.observer.0) {
            observer(self.waiting().iter().map(|ticket| ticket.question().id.clone()).collect());
        }
    }
}

impl fmt::Debug for ApprovalObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalObserver").finish_non_exhaustive()
    }
}
