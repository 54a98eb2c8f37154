//! Limits on the memory of staged versions, lists of open directories, and commits.

use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rustix::io::Errno;

use crate::waiting::wait_while;

/// The cost of a name in a list besides its bytes.
const NAME_OVERHEAD: u64 = 64;

/// A budget of bytes for all of a mount.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
    /// The maximum for one file.
    file: u64,
    was_full: AtomicBool,
}

impl Budget {
    pub(crate) fn new(limit: u64, file: u64) -> Self {
        Self { used: AtomicU64::new(0), limit, file, was_full: AtomicBool::new(false) }
    }

    pub(crate) fn take(&self, count: u64) -> Result<(), Errno> {
        let more = |used: u64| used.checked_add(count).filter(|sum| *sum <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| {
            self.was_full.store(true, Ordering::Relaxed);
            Errno::DQUOT
        })
    }

    /// Returns true if a request was ever refused for lack of room.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    pub(crate) fn give_back(&self, count: u64) {
        self.used.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the maximum of bytes of one file.
    pub(crate) fn file(&self) -> u64 {
        self.file
    }
}

/// Bytes of a budget, returned to it when this is dropped.
#[derive(Debug)]
pub(crate) struct BudgetPart {
    budget: Arc<Budget>,
    bytes: u64,
}

impl BudgetPart {
    pub(crate) fn nothing(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Takes the memory of a further name of a list, `copies` times.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn add_name(&mut self, length: usize, copies: u64) -> Result<(), Errno> {
        let name = (length as u64).saturating_add(NAME_OVERHEAD);
        self.resize(self.bytes.saturating_add(name.saturating_mul(copies)))
    }

    /// Takes exactly the memory of a list with names of these lengths.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn fit(&mut self, names: impl Iterator<Item = usize>) -> Result<(), Errno> {
        self.resize(
            names.fold(0, |sum: u64, length| sum.saturating_add(length as u64 + NAME_OVERHEAD)),
        )
    }

    fn resize(&mut self, bytes: u64) -> Result<(), Errno> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.budget.take(more).map_err(|_| Errno::NOMEM)?,
            None => self.budget.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for BudgetPart {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The budget of bytes of commits in progress, each of which has a copy of its content. A
/// commit for which there is no room waits.
#[derive(Debug)]
pub(crate) struct CommitBudget {
    used: Mutex<u64>,
    freed: Condvar,
    limit: u64,
}

/// The part of the budget that a commit has reserved.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    budget: &'a CommitBudget,
    pub(crate) bytes: u64,
}

impl CommitBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { used: Mutex::new(0), freed: Condvar::new(), limit }
    }

    /// Waits until there is room. A commit larger than the budget waits until it is alone.
    ///
    /// # Errors
    /// `EINTR` if no program waits any more.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Reservation<'_>, Errno> {
        let is_full = |used: &mut u64| *used > 0 && used.saturating_add(bytes) > self.limit;
        let mut used = wait_while(&self.freed, self.lock(), is_full)?;
        *used = used.saturating_add(bytes);
        Ok(Reservation { budget: self, bytes })
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        *self.budget.lock() -= self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread, time::Duration};

    use super::*;

    #[test]
    fn a_commit_waits_for_room_and_a_large_one_until_it_is_alone() {
        let budget = CommitBudget::new(10);
        let (small, other) = (budget.reserve(6).unwrap(), budget.reserve(4).unwrap());
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            let budget = &budget;
            scope.spawn(move || sender.send(budget.reserve(20).unwrap().bytes).unwrap());
            let waits = || receiver.recv_timeout(Duration::from_millis(100)).is_err();
            assert!(waits());
            drop(small);
            assert!(waits());
            drop(other);
            assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(20));
        });
        assert_eq!(*budget.lock(), 0);
    }
}
