//! Who hears that another policy is in force.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// A function that is called when another policy is in force. It returns false where something
/// is still shown as it was under the one before.
pub type Herald = dyn Fn() -> bool + Send + Sync;

/// Who hears of another policy.
#[derive(Default)]
pub(super) struct Heralds(Mutex<Vec<Weak<Herald>>>);

impl Heralds {
    pub(super) fn add(&self, herald: &Arc<Herald>) {
        let mut all = self.lock();
        all.retain(|herald| herald.strong_count() > 0);
        all.push(Arc::downgrade(herald));
    }

    /// Calls all of them. Returns whether each one follows the other policy.
    pub(super) fn tell(&self) -> bool {
        // Not called under the lock: whoever hears may have more to ask.
        let all: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        // All are told, also after one that does not follow.
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
