//! The memory that staged versions, and lists of open directories, may take.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rustix::io::Errno;

/// What a name in a list costs beside its bytes.
const NAME: u64 = 64;

/// The bytes that all of a mount may have together.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
    /// The most that one file may have.
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

    /// Whether there was no room once.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    pub(crate) fn give_back(&self, count: u64) {
        self.used.fetch_sub(count, Ordering::Relaxed);
    }

    /// The most bytes of one file.
    pub(crate) fn file(&self) -> u64 {
        self.file
    }
}

/// Bytes of a budget, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Taken {
    pub(crate) fn nothing(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Takes what one more name of a list needs.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn add_name(&mut self, length: usize) -> Result<(), Errno> {
        let name = (length as u64).saturating_add(NAME);
        self.budget.take(name).map_err(|_| Errno::NOMEM)?;
        self.bytes += name;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}
