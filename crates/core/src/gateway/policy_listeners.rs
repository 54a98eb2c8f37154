//! Functions that are called when another policy comes into force.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// A function that is called when another policy comes into force. It returns false if something is
/// still shown as the policy before showed it.
pub type PolicyListener = dyn Fn() -> bool + Send + Sync;

/// The functions to call when another policy comes into force.
#[derive(Default)]
pub(super) struct PolicyListeners(Mutex<Vec<Weak<PolicyListener>>>);

impl PolicyListeners {
    pub(super) fn add(&self, policy_listener: &Arc<PolicyListener>) {
        let mut all = self.lock();
        all.retain(|policy_listener| policy_listener.strong_count() > 0);
        all.push(Arc::downgrade(policy_listener));
    }

    /// Calls all of them. True if each one follows the other policy.
    pub(super) fn notify(&self) -> bool {
        // Not called under the lock: a function may call the gateway.
        let all: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        // All are called, also after one that does not follow.
        all.iter().filter(|policy_listener| !policy_listener()).count() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<PolicyListener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PolicyListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyListeners").finish_non_exhaustive()
    }
}
