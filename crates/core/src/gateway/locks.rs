//! Locks on the paths that a gateway changes.
//!
//! They only spare two requests of the same gateway a needless conflict. Other processes do not
//! take part, and the exchange that every change ends with does not rely on them.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::model::{Operation, WorkspacePath};

/// The paths that are being changed.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Mutex<Vec<WorkspacePath>>,
    freed: Condvar,
}

/// Locks its paths until dropped.
#[must_use]
pub(super) struct PathLockGuard<'a> {
    locks: &'a Locks,
    paths: Vec<WorkspacePath>,
}

impl Locks {
    /// Waits until nothing at, above or beneath the paths is being changed.
    pub(super) fn hold(&self, paths: Vec<WorkspacePath>) -> PathLockGuard<'_> {
        if paths.is_empty() {
            return PathLockGuard { locks: self, paths };
        }
        let overlaps = |held: &mut Vec<WorkspacePath>| {
            held.iter().any(|one| paths.iter().any(|two| one.is_within(two) || two.is_within(one)))
        };
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held =
            self.freed.wait_while(held, overlaps).unwrap_or_else(PoisonError::into_inner);
        held.extend(paths.iter().cloned());
        drop(held);
        PathLockGuard { locks: self, paths }
    }
}

impl Drop for PathLockGuard<'_> {
    fn drop(&mut self) {
        if self.paths.is_empty() {
            return;
        }
        let mut held = self.locks.held.lock().unwrap_or_else(PoisonError::into_inner);
        for path in &self.paths {
            if let Some(index) = held.iter().position(|held| held == path) {
                held.swap_remove(index);
            }
        }
        drop(held);
        self.locks.freed.notify_all();
    }
}

/// Returns the paths that two requests must not change at once.
pub(super) fn changed_paths(operation: Operation<'_>) -> Vec<WorkspacePath> {
    match operation.kind().is_mutation() {
        true => [operation.path()].into_iter().chain(operation.new_path()).cloned().collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn a_change_waits_for_one_above_it_only() {
        let path = |text| vec![WorkspacePath::parse(text).unwrap()];
        let locks = Locks::default();
        let held = locks.hold(path("a"));
        let _other = locks.hold(path("ab"));
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let locks = &locks;
            scope.spawn(move || {
                let _inner = locks.hold(path("a/b"));
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
            drop(held);
            receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        });
    }
}
