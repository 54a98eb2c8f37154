//! Locks on paths: a commit locks its own path, and a rename waits only for locks on the
//! paths that it changes.
//!
//! Locks are granted in the order of the requests, so later commits of the same path do not
//! pass a waiting rename. No thread requests a lock while it holds one.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use portcullis_policy::model::WorkspacePath;
use rustix::io::Errno;

use crate::waiting::wait_while;

/// The locks that are held or waited for.
#[derive(Debug, Default)]
pub(crate) struct PathLocks {
    queue: Mutex<LockQueue>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct LockQueue {
    next: u64,
    locks: BTreeMap<u64, Lock>,
}

/// The paths of a lock.
#[derive(Debug)]
pub(crate) enum Lock {
    /// A path that must not change.
    Shared(WorkspacePath),
    /// Paths that change, with everything beneath them.
    Exclusive(Vec<WorkspacePath>),
}

impl Lock {
    fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(_), Self::Shared(_)) => false,
            (Self::Shared(path), Self::Exclusive(changed))
            | (Self::Exclusive(changed), Self::Shared(path)) => {
                changed.iter().any(|changed| path.is_within(changed))
            }
            (Self::Exclusive(one), Self::Exclusive(two)) => {
                one.iter().any(|one| two.iter().any(|two| one.is_within(two) || two.is_within(one)))
            }
        }
    }
}

/// A held lock, released when dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct HeldPathLock<'a> {
    locks: &'a PathLocks,
    ticket: u64,
}

impl PathLocks {
    /// Waits for all conflicting locks that were requested earlier.
    ///
    /// # Errors
    /// `EINTR` if no program waits any more.
    pub(crate) fn hold(&self, lock: Lock) -> Result<HeldPathLock<'_>, Errno> {
        let mut queue = self.queue();
        let ticket = queue.next;
        queue.next += 1;
        queue.locks.insert(ticket, lock);
        let held = HeldPathLock { locks: self, ticket };
        let waits = |queue: &mut LockQueue| {
            let lock = queue.locks.get(&ticket);
            let mut earlier = queue.locks.range(..ticket);
            lock.is_some_and(|lock| earlier.any(|(_, earlier)| earlier.conflicts(lock)))
        };
        // A cancelled request is removed when this is dropped.
        wait_while(&self.freed, queue, waits).map(|_| held)
    }

    fn queue(&self) -> MutexGuard<'_, LockQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldPathLock<'_> {
    fn drop(&mut self) {
        self.locks.queue().locks.remove(&self.ticket);
        self.locks.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    fn shared(text: &str) -> Lock {
        Lock::Shared(path(text))
    }

    fn exclusive(texts: &[&str]) -> Lock {
        Lock::Exclusive(texts.iter().copied().map(path).collect())
    }

    #[test]
    fn a_rename_conflicts_with_what_is_beneath_its_paths_alone() {
        let rename = exclusive(&["a/b", "c"]);
        for (other, expected) in [
            (shared("a/b"), true),
            (shared("a/b/x"), true),
            (shared("c/x"), true),
            (shared("a"), false),
            (shared("a/bb"), false),
            (exclusive(&["a/b/x"]), true),
            (exclusive(&["a"]), true),
            (exclusive(&["a/x", "d"]), false),
        ] {
            assert_eq!(rename.conflicts(&other), expected, "{other:?}");
            assert_eq!(other.conflicts(&rename), expected, "{other:?}");
        }
        assert!(!shared("a").conflicts(&shared("a")));
    }

    #[test]
    fn nobody_passes_a_rename_of_the_same_path_and_others_do_not_wait() {
        let locks = PathLocks::default();
        let commit = locks.hold(shared("a/f")).unwrap();
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let wait = |name: &'static str, lock: Lock, asked: u64| {
                let (locks, sender) = (&locks, sender.clone());
                scope.spawn(move || {
                    let _held = locks.hold(lock).unwrap();
                    sender.send(name).unwrap();
                });
                while locks.queue().next < asked {
                    thread::yield_now();
                }
            };
            wait("rename", exclusive(&["a", "b"]), 2);
            wait("commit", shared("a/g"), 3);
            drop(locks.hold(shared("c")).unwrap());
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
            drop(commit);
            for name in ["rename", "commit"] {
                assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(name));
            }
        });
    }
}
