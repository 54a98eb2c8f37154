//! The queue of changes: requests that store something, and so wait for a disk or for one another.
//! At most half of the threads carry out changes, so others are left for programs that read.
//!
//! A change that is carried out needs none that waits here: it waits for other threads alone, and
//! what the kernel sends for a request of its own accord (WRITE, RELEASE, FORGET) is no change.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    deadline::{Serving, Slot},
    request::Request,
};

/// The changes of a session.
#[derive(Debug)]
pub(crate) struct ChangeQueue {
    limit: usize,
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// The number of threads that carry out changes. None ends while a change waits.
    threads: usize,
    waiting: VecDeque<(Arc<Slot>, Vec<u8>)>,
}

impl ChangeQueue {
    pub(crate) fn new(threads: usize) -> Self {
        Self { limit: (threads / 2).max(1), changes: Mutex::default() }
    }

    /// Begins a change on this thread, or has it wait and returns false. `bytes` are the request.
    pub(crate) fn begin(&self, request: &Request<'_>, bytes: &[u8]) -> bool {
        let mut changes = self.lock();
        if changes.threads < self.limit {
            changes.threads += 1;
            return true;
        }
        let slot = Slot::waiting(request.unique, request.caller);
        changes.waiting.push_back((Arc::new(slot), bytes.to_vec()));
        false
    }

    /// Ends a change on this thread, and returns the one that has waited longest.
    pub(crate) fn next(&self) -> Option<(Serving, Vec<u8>)> {
        let mut changes = self.lock();
        while let Some((slot, bytes)) = changes.waiting.pop_front() {
            // A program that is being killed has its reply already.
            if let Some(serving) = slot.take() {
                return Some((serving, bytes));
            }
        }
        changes.threads -= 1;
        None
    }

    /// Returns the slots of the changes that wait.
    pub(crate) fn waiting(&self) -> Vec<Arc<Slot>> {
        let mut changes = self.lock();
        changes.waiting.retain(|(slot, _)| !slot.is_answered());
        changes.waiting.iter().map(|(slot, _)| Arc::clone(slot)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
