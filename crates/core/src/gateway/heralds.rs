//! Functions that are called when another policy comes into force.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// A function that is called when another policy comes into force. It returns false if something is
/// still shown as the policy before showed it.
pub type Herald = dyn Fn() -> bool + Send + Sync;

/// The functions to call when another policy comes into force.
#[derive(Default)]
pub(super) struct Heralds(Mutex<Vec<Weak<Herald>>>);

impl Heralds {
    pub(super) fn add(&self, herald: &Arc<Herald>) {
        let mut all = self.lock();
        all.retain(|herald| herald.strong_count() > 0);
        all.push(Arc::downgrade(herald));
    }

    /// Calls all of them. True if each one follows the other policy.
    pub(super) fn tell(&self) -> bool {
        // Not called under the lock: a function may call the gateway.
        let all: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        // All are called, also after one that does not follow.
        all.iter().filter(|herald| !herald()).count() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Herald>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Heralds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heralds").finish_non_exhaustive()
    }
}
