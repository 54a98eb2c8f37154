//! The space in use by scratch directories.

use std::{
    os::fd::OwnedFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{FileType, Stat, fstat},
    io::{Errno, Result},
};

use super::beneath::kind;

/// The minimum cost of an entry, in bytes.
pub(crate) const BLOCK: u64 = 4096;

/// The space in use, with its limit.
#[derive(Debug)]
pub(crate) struct Usage {
    limit: u64,
    bytes: AtomicU64,
    entries: AtomicU64,
    refused: AtomicU64,
    /// Locks for changes of size, chosen by inode number: those of one file follow each other.
    shards: [Mutex<()>; MAX_CONCURRENT_CHANGES],
}

/// The maximum of files whose sizes change at the same time.
const MAX_CONCURRENT_CHANGES: usize = 64;

/// Returns the cost of a file of that size: complete blocks, at least one, holes included.
pub(crate) fn cost(size: u64) -> u64 {
    size.div_ceil(BLOCK).max(1).saturating_mul(BLOCK)
}

/// Returns the cost of an entry.
pub(crate) fn cost_of(stat: &Stat) -> u64 {
    match kind(stat) {
        FileType::RegularFile => cost(size(stat)),
        _ => BLOCK,
    }
}

/// Returns the size of a file.
pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

impl Usage {
    pub(crate) fn new(limit: u64, (bytes, entries): (u64, u64)) -> Self {
        let (bytes, entries) = (AtomicU64::new(bytes), AtomicU64::new(entries));
        let shards = [const { Mutex::new(()) }; MAX_CONCURRENT_CHANGES];
        Self { limit, bytes, entries, refused: AtomicU64::new(0), shards }
    }

    /// Counts a new entry.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn add_entry(&self) -> Result<()> {
        self.reserve(BLOCK)?;
        self.entries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Uncounts an entry with that cost.
    pub(crate) fn remove_entry(&self, cost: u64) {
        self.give_back(cost);
        // The count never falls below 0, as that of bytes.
        let _ = self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |entries| {
            Some(entries.saturating_sub(1))
        });
    }

    /// Counts a change of a file's size.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn resize(&self, old: u64, new: u64) -> Result<()> {
        let (old, new) = (cost(old), cost(new));
        if new > old {
            return self.reserve(new - old);
        }
        self.give_back(old - new);
        Ok(())
    }

    /// Calls `change`, which changes the size of `file` to at most `most`; one change of a file
    /// at a time. The actual size afterwards is counted, also after an error.
    ///
    /// # Errors
    /// `ENOSPC`; the error of `change`.
    pub(crate) fn change_size<T>(
        &self,
        file: &OwnedFd,
        most: u64,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let inode = fstat(file)?.st_ino;
        let shard =
            self.shards.get(usize::try_from(inode % MAX_CONCURRENT_CHANGES as u64).unwrap_or(0));
        let _alone = shard.map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        let before = size(&fstat(file)?);
        let most = most.max(before);
        self.resize(before, most)?;
        let changed = change();
        let after = fstat(file).map_or(most, |stat| size(&stat));
        self.resize(most, after)?;
        changed
    }

    fn reserve(&self, more: u64) -> Result<()> {
        let reserved = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
            bytes.checked_add(more).filter(|bytes| *bytes <= self.limit)
        });
        if reserved.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        reserved.map(drop).map_err(|_| Errno::NOSPC)
    }

    fn give_back(&self, less: u64) {
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
            Some(bytes.saturating_sub(less))
        });
    }

    /// Returns limit and use in bytes.
    pub(crate) fn space(&self) -> (u64, u64) {
        (self.limit, self.bytes.load(Ordering::Relaxed))
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the number of refusals for lack of space.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_bound() {
        let usage = Usage::new(4 * BLOCK, (0, 0));
        usage.add_entry().unwrap();
        usage.resize(0, BLOCK).unwrap();
        usage.resize(BLOCK, 3 * BLOCK + 1).unwrap();
        assert_eq!(usage.resize(0, 5 * BLOCK), Err(Errno::NOSPC));
        assert_eq!(usage.add_entry(), Err(Errno::NOSPC));
        assert_eq!(
            (usage.space(), usage.entries(), usage.refused()),
            ((4 * BLOCK, 4 * BLOCK), 1, 2)
        );
        usage.remove_entry(4 * BLOCK);
        usage.remove_entry(4 * BLOCK);
        assert_eq!((usage.space().1, usage.entries()), (0, 0));
    }
}
