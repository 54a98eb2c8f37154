//! Open connections of a sandbox, which must be closed before content that denies them is
//! disclosed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A connection on which bytes may be on their way.
pub(super) trait Tunnel: std::fmt::Debug + Send + Sync {
    /// True if the policy in force denies it, with the labels read until now.
    fn is_denied(&self) -> bool;

    /// Starts closing it. Its [`Registration`] is dropped when that is done.
    fn close(&self);
}

/// The open connections of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    open: Mutex<OpenTunnels>,
    closed: Condvar,
}

#[derive(Debug, Default)]
struct OpenTunnels {
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
    /// Counts a connection as open. A read that denies it from now on waits until it is closed; the
    /// caller must look once more for a read that denied it before.
    pub(super) fn register(self: &Arc<Self>, tunnel: Arc<dyn Tunnel>) -> Registration {
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        open.all.insert(number, tunnel);
        Registration { tunnels: Arc::clone(self), number }
    }

    /// Closes all connections that are denied now, and waits until they are closed; false if some
    /// are not by `end`.
    pub(super) fn close_denied(&self, end: Instant) -> bool {
        let mut disclosed_part = 0;
        let mut open = self.lock();
        loop {
            let denied = open.all.iter().filter(|(_, tunnel)| tunnel.is_denied());
            let denied: Vec<_> = denied.map(|(number, one)| (*number, Arc::clone(one))).collect();
            let Some(last) = denied.last().map(|(number, _)| *number) else { return true };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if last > disclosed_part {
                // Not under the lock: closing a connection may wait for a thread that registers
                // another one.
                drop(open);
                denied
                    .iter()
                    .filter(|(number, _)| *number > disclosed_part)
                    .for_each(|(_, one)| one.close());
                disclosed_part = last;
                open = self.lock();
                continue;
            }
            let waited = self.closed.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenTunnels> {
        // A panic elsewhere leaves the map intact: it has no state between two operations.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let gone = self.tunnels.lock().all.remove(&self.number);
        self.tunnels.closed.notify_all();
        // Not under the lock: dropping the connection may take other locks.
        drop(gone);
    }
}
