//! The account of bytes, from which free space is computed. It is changed under a lock, before a
//! backup appears and after one is deleted, so that a crash can only make it too high.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::FileExt as _,
    sync::{PoisonError, atomic::Ordering},
};

use rustix::fs::{FlockOperation, flock, fsync};

use super::{BackupStore, COUNT_INTERVAL_MICROS, MIN_PACKED_BYTES};
use crate::{
    audit_log::wait_lock,
    backup::{Error, name::Name, retention::plan},
    policy::Retention,
};

/// The account: bytes of all backups and objects, the time of the last count, in microseconds since
/// 1970, and bytes saved that are not packed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) total: u64,
    pub(super) counted: i64,
    pub(super) raw: u64,
}

impl Usage {
    /// Reads the account; `None` if it is missing or damaged; then everything is counted anew.
    pub(super) fn read(file: &File) -> Option<Self> {
        let mut bytes = [0; 65];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes).ok()?;
        let mut words = text.strip_suffix('\n')?.split(' ');
        let (version, total, counted) = (words.next()?, words.next()?, words.next()?);
        let raw = words.next()?;
        if version != "2" || words.next().is_some() {
            return None;
        }
        Some(Self {
            total: total.parse().ok()?,
            counted: counted.parse().ok()?,
            raw: raw.parse().ok()?,
        })
    }

    pub(super) fn more(self, total: u64, raw: u64) -> Self {
        let (total, raw) = (self.total.saturating_add(total), self.raw.saturating_add(raw));
        Self { total, raw, ..self }
    }

    pub(super) fn less(self, total: u64, raw: u64) -> Self {
        let (total, raw) = (self.total.saturating_sub(total), self.raw.saturating_sub(raw));
        Self { total, raw, ..self }
    }

    pub(super) fn write(self, mut file: &File) -> Result<(), Error> {
        const ACTION: &str = "write the backup store's account";
        let Self { total, raw, counted } = self;
        let text = format!("2 {total:020} {:020} {raw:020}\n", counted.max(0));
        file.write_all_at(text.as_bytes(), 0).map_err(Error::io(ACTION))?;
        file.flush().map_err(Error::io(ACTION))
    }
}

impl BackupStore {
    /// Adds a backup to the account, if it fits or space can be made; true if space must be made
    /// ([`make_room`](Self::make_room)), which waits until the change was made. Runs before the
    /// backup appears, so that a crash can only make the account too high, which the next count
    /// corrects. A backup that may go `beyond` the limit is added even if it does not fit.
    pub(in crate::backup) fn reserve(&self, name: &Name, beyond: bool) -> Result<bool, Error> {
        let (bytes, raw) = name.account();
        self.saved.store(true, Ordering::Relaxed);
        self.locked(|file| {
            let retention = self.retention();
            let (limit, now) = (retention.size, self.now());
            let is_room = |usage: &Usage| usage.total.saturating_add(bytes) <= limit;
            let known = Usage::read(file).filter(|usage| {
                (usage.counted..usage.counted.saturating_add(COUNT_INTERVAL_MICROS)).contains(&now)
            });
            if let Some(usage) = known.filter(is_room) {
                usage.more(bytes, raw).write(file)?;
                return Ok(false);
            }
            // Old backups are deleted whatever becomes of the change.
            let unlimited = Retention { size: u64::MAX, ..retention };
            let aged = self.delete_expired(file, self.names()?, &unlimited, None)?;
            let fits = plan(self.names()?, &self.objects.list()?, &retention, now, bytes).fits;
            if !fits && !beyond {
                return Err(Error::Full { limit });
            }
            let usage = Usage { total: aged.total, counted: now, raw: aged.raw };
            usage.more(bytes, raw).write(file)?;
            Ok(fits && !is_room(&usage))
        })
    }

    /// Deletes backups so that the one named `name`, which exists, fits.
    pub(in crate::backup) fn make_room(&self, name: &Name) -> Result<(), Error> {
        self.locked(|file| {
            self.delete_expired(file, self.names()?, &self.retention(), Some(name)).map(drop)
        })
    }

    /// Subtracts a backup that did not appear from the account.
    pub(in crate::backup) fn release(&self, name: &Name) -> Result<(), Error> {
        let (bytes, raw) = name.account();
        self.locked(|file| match Usage::read(file) {
            Some(usage) => usage.less(bytes, raw).write(file),
            None => Ok(()),
        })
    }

    /// Adds an object to the account, whatever the limit: it replaces more bytes of backups.
    pub(in crate::backup) fn reserve_object(&self, bytes: u64) -> Result<(), Error> {
        self.locked(|file| match Usage::read(file) {
            Some(usage) => usage.more(bytes, 0).write(file),
            None => Ok(()),
        })
    }

    /// Replaces the file `old` by `new`: the same backup, with its content in an object. Does
    /// nothing if `old` is gone; true if it existed.
    pub(in crate::backup) fn exchange(
        &self,
        old: &Name,
        new: &Name,
        publish: impl FnOnce() -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let published = self.locked(|_| {
            let there = self.names_of(old.key)?.contains(old);
            if there { publish().map(|()| true) } else { Ok(false) }
        })?;
        if !published {
            return Ok(false);
        }
        // Synced without the lock, for which a request may wait.
        if let Some(shard) = self.shards.open(&old.to_string())? {
            fsync(&shard).map_err(Error::os("sync the backup store"))?;
        }
        self.locked(|file| {
            if !self.unlink(old)? {
                // It was deleted meanwhile.
                self.unlink(new)?;
                return Ok(false);
            }
            if let Some(usage) = Usage::read(file) {
                usage.less(old.size, old.size).more(new.size, 0).write(file)?;
            }
            Ok(true)
        })
    }

    /// True if enough was saved since the store was last packed to pack it again.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn is_due(&self) -> Result<bool, Error> {
        let enough = MIN_PACKED_BYTES.min(self.retention().size / 4);
        self.locked(|file| Ok(Usage::read(file).is_some_and(|usage| usage.raw >= enough.max(1))))
    }

    /// Records that everything that could be packed was looked at.
    pub(in crate::backup) fn set_packed(&self) -> Result<(), Error> {
        self.locked(|file| match Usage::read(file) {
            Some(usage) => Usage { raw: 0, ..usage }.write(file),
            None => Ok(()),
        })
    }

    /// Runs `work` while no other thread or gateway changes the account.
    pub(super) fn locked<T>(
        &self,
        work: impl FnOnce(&File) -> Result<T, Error>,
    ) -> Result<T, Error> {
        const ACTION: &str = "lock the backup store";
        let usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        wait_lock(&usage, "backups/usage")?;
        let result = work(&usage);
        flock(&*usage, FlockOperation::Unlock).map_err(Error::os(ACTION))?;
        result
    }
}
