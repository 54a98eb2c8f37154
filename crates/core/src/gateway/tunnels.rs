//! The open connections of a sandbox, which have to be closed before something is disclosed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A connection on which bytes may be on their way.
pub(super) trait Tunnel: std::fmt::Debug + Send + Sync {
    /// True if the policy of now denies it, after what was read until now.
    fn is_denied(&self) -> bool;

    /// Has it closed soon. Its [`Registration`] goes when that is done.
    fn close(&self);
}

/// The open connections of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    open: Mutex<Open>,
    closed: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    all: BTreeMap<u64, Arc<dyn Tunnel>>,
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    tunnels: Arc<Tunnels>,
    number: u64,
}

impl Tunnels {
    /// Counts a connection as open. What denies it from now on waits until it is closed; what
    /// denied it before is to be looked for once more after this.
    pub(super) fn register(self: &Arc<Self>, tunnel: Arc<dyn Tunnel>) -> Registration {
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        open.all.insert(number, tunnel);
        Registration { tunnels: Arc::clone(self), number }
    }

    /// Has all connections closed that are denied now, and waits until they are; false if some
    /// are not by `end`.
    pub(super) fn close_denied(&self, end: Instant) -> bool {
        let mut told = 0;
        let mut open = self.lock();
        loop {
            let denied = open.all.iter().filter(|(_, tunnel)| tunnel.is_denied());
            let denied: Vec<_> = denied.map(|(number, one)| (*number, Arc::clone(one))).collect();
            let Some(last) = denied.last().map(|(number, _)| *number) else { return true };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if last > told {
                // Whoever closes one may wait for somebody who opens another one.
                drop(open);
                denied.iter().filter(|(number, _)| *number > told).for_each(|(_, one)| one.close());
                told = last;
                open = self.lock();
                continue;
            }
            let waited = self.closed.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // A map has no state between two of its operations.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let gone = self.tunnels.lock().all.remove(&self.number);
        self.tunnels.closed.notify_all();
        // Not under the lock: whatever goes with it may take others.
        drop(gone);
    }
}
