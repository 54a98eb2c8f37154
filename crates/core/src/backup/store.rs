//! The directories of the backup store, its account of bytes, and deletion of backups.
//!
//! ```text
//! backups/usage       bytes in the store and the time of the last count
//! backups/tmp/        backups being made, each locked by its maker; a complete one
//!                     has its name already
//! backups/objects/    contents that backups share (see `object`)
//! backups/00 … ff/    backups (see `name`)
//! ```
//!
//! Several gateways may use one store: the account is changed under a lock, a
//! backup appears under its name completely or not at all, and everything else
//! can be computed again from the names.

mod account;

use std::{
    collections::HashSet,
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use rustix::{
    fs::{FileType, Mode, OFlags, fstat, openat},
    io::Errno,
};

use account::Usage;

use super::{
    Error,
    directory::{open_directory, open_existing, own_directory},
    name::{Name, PathKey},
    object::Objects,
    retention::{RetentionPlan, plan},
    shards::Shards,
};
use crate::policy::Retention;

/// Bytes saved after which the store is packed again: few enough that packing never takes long.
const MIN_PACKED_BYTES: u64 = 32 * 1024 * 1024;

/// Time for which an account of bytes is valid, and the interval at which old backups are deleted.
const COUNT_INTERVAL_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

/// The backup store: `STATE/backups`.
#[derive(Debug)]
pub struct BackupStore {
    pub(super) shards: Shards,
    pub(super) tmp: Arc<OwnedFd>,
    pub(super) objects: Arc<Objects>,
    usage: Mutex<File>,
    retention: RwLock<Retention>,
    /// The lifetime of the gateway that saves.
    pub(super) boot: Option<String>,
    /// True if a backup was made through this value.
    saved: AtomicBool,
    /// The time of the newest backup that was made through this value.
    pub(super) newest: AtomicI64,
    /// The value of `newest` when entries were last exchanged: no run from before continues.
    pub(super) exchanged: AtomicI64,
    #[cfg(test)]
    pub(super) clock: AtomicI64,
}

/// The result of pruning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Deleted backups.
    pub entries: u64,
    /// Remaining backups.
    pub left: u64,
    /// Deleted bytes.
    pub bytes: u64,
    /// Remaining bytes.
    pub total: u64,
}

impl Pruned {
    /// Returns the result of `plan` for a store with this number of backups and bytes.
    fn new((backups, bytes): (u64, u64), plan: &RetentionPlan) -> Self {
        let (entries, total) = (plan.evict.len() as u64, plan.total);
        let (left, bytes) = (backups.saturating_sub(entries), bytes.saturating_sub(total));
        Self { entries, left, bytes, total }
    }
}

impl BackupStore {
    /// Opens the backup store in the state directory, makes it if it is missing, and clears up the
    /// unfinished files of killed gateways.
    ///
    /// # Errors
    /// [`Error::Foreign`] when a link, a file or another user's directory has the store's name, and
    /// errors of the system.
    pub(crate) fn open(state: &cap_std::fs::Dir, retention: Retention) -> Result<Self, Error> {
        let dir = own_directory(state.as_fd(), "backups", "backups")?;
        let tmp = own_directory(dir.as_fd(), "tmp", "backups/tmp")?;
        let objects = own_directory(dir.as_fd(), "objects", "backups/objects")?;
        let backup_store = Self::of(dir, tmp, objects, OFlags::RDWR | OFlags::CREATE, retention)?;
        backup_store.clear_unfinished()?;
        Ok(backup_store)
    }

    /// Opens the backup store in the state directory read-only: makes, changes and clears up
    /// nothing, so that the directory may be another user's, or on a read-only file system. `None`
    /// if there is no store.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for other users' directories.
    pub fn look(state: &cap_std::fs::Dir) -> Result<Option<Self>, Error> {
        let dir = match open_directory(state.as_fd(), "backups") {
            Err(Errno::NOENT) => return Ok(None),
            found => open_existing(found, "backups")?,
        };
        let [tmp, objects] = ["tmp", "objects"].map(|name| open_directory(dir.as_fd(), name));
        // An emptied directory has no backups, as one that was removed.
        if let (Err(Errno::NOENT), Err(Errno::NOENT)) = (&tmp, &objects) {
            return Ok(None);
        }
        let tmp = open_existing(tmp, "backups/tmp")?;
        let objects = open_existing(objects, "backups/objects")?;
        let keep_all = Retention { versions: u64::MAX, days: u64::MAX, size: u64::MAX };
        Self::of(dir, tmp, objects, OFlags::RDONLY, keep_all).map(Some)
    }

    fn of(
        dir: OwnedFd,
        tmp: OwnedFd,
        objects: OwnedFd,
        access: OFlags,
        retention: Retention,
    ) -> Result<Self, Error> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let usage = match openat(&dir, "usage", flags, Mode::RUSR | Mode::WUSR) {
            Ok(usage) => usage,
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                return Err(Error::Foreign("backups/usage"));
            }
            Err(errno) => return Err(Error::os("open the backup store")(errno)),
        };
        let stat = fstat(&usage).map_err(Error::os("open the backup store"))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(Error::Foreign("backups/usage"));
        }
        let tmp = Arc::new(tmp);
        Ok(Self {
            objects: Arc::new(Objects::new(objects, Arc::clone(&tmp))),
            shards: Shards { dir, shown: "backups" },
            tmp,
            usage: Mutex::new(usage.into()),
            retention: RwLock::new(retention),
            boot: None,
            saved: AtomicBool::new(false),
            newest: AtomicI64::new(i64::MIN),
            exchanged: AtomicI64::new(i64::MIN),
            #[cfg(test)]
            clock: AtomicI64::new(0),
        })
    }

    /// Returns the retention in force.
    pub fn retention(&self) -> Retention {
        // A panic elsewhere leaves plain numbers behind.
        *self.retention.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the retention in force.
    pub(crate) fn set_retention(&self, retention: Retention) {
        *self.retention.write().unwrap_or_else(PoisonError::into_inner) = retention;
    }

    /// Returns the store for the gateway of the lifetime `boot`, which its backups name, so that
    /// those of a dead gateway are distinguished from those that a live one is about to use.
    #[must_use]
    pub(crate) fn of_gateway(self, boot: &str) -> Self {
        Self { boot: Some(boot.to_owned()), ..self }
    }

    /// True if a backup was made through this value.
    pub(crate) fn has_saved(&self) -> bool {
        self.saved.load(Ordering::Relaxed)
    }

    /// Deletes the backups past the retention. Saving does this by itself when it needs space, and
    /// once a day.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn prune(&self) -> Result<Pruned, Error> {
        self.clear_unfinished()?;
        self.locked(|usage| {
            let names = self.names()?;
            let before = (names.len() as u64, self.total(&names)?);
            let found = self.delete_expired(usage, names, &self.retention(), None)?;
            Ok(Pruned::new(before, &found))
        })
    }

    /// Returns what [`BackupStore::prune`] would do.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn would_prune(&self) -> Result<Pruned, Error> {
        let names = self.names()?;
        let before = (names.len() as u64, self.total(&names)?);
        let found = plan(names, &self.objects.list()?, &self.retention(), self.now(), 0);
        Ok(Pruned::new(before, &found))
    }

    /// Returns the bytes of the store on the disk.
    ///
    /// # Errors
    /// Of the system.
    pub fn size(&self) -> Result<u64, Error> {
        self.total(&self.names()?)
    }

    /// Returns the bytes of backups and of all objects.
    fn total(&self, names: &[Name]) -> Result<u64, Error> {
        let entries = names.iter().map(|name| name.size).fold(0, u64::saturating_add);
        let objects = self.objects.list()?;
        Ok(objects.iter().map(|object| object.size).fold(entries, u64::saturating_add))
    }

    /// Deletes a backup, packed meanwhile or not, and subtracts it from the account; false if it
    /// was gone already.
    pub(super) fn forget(&self, name: &Name) -> Result<bool, Error> {
        self.locked(|file| {
            let mut twins = self.names_of(name.key)?;
            twins.retain(|other| other.is_twin(name));
            self.unlink_all(file, &twins)
        })
    }

    /// Removes the files of backups and subtracts them from the account; false if all were gone
    /// already.
    fn unlink_all(&self, file: &File, names: &[Name]) -> Result<bool, Error> {
        let mut found = false;
        let (mut freed, mut raw) = (0_u64, 0_u64);
        for name in names {
            if self.unlink(name)? {
                found = true;
                let (bytes, packable) = name.account();
                freed = freed.saturating_add(bytes);
                raw = raw.saturating_add(packable);
            }
        }
        if let (true, Some(usage)) = (found, Usage::read(file)) {
            usage.less(freed, raw).write(file)?;
        }
        Ok(found)
    }

    /// Returns microseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        #[cfg(test)]
        {
            let micros = self.clock.load(Ordering::Relaxed);
            if micros != 0 {
                return micros;
            }
        }
        jiff::Timestamp::now().as_microsecond()
    }

    /// Returns the names of a path's backups, oldest first.
    pub(super) fn names_of(&self, key: PathKey) -> Result<Vec<Name>, Error> {
        let mut names: Vec<Name> = self.shards.names_of(&key.prefix())?;
        names.sort_unstable_by_key(|name| name.id);
        Ok(names)
    }

    /// Returns the names of all backups, oldest first.
    pub(super) fn names(&self) -> Result<Vec<Name>, Error> {
        let mut names: Vec<Name> = self.shards.names()?;
        names.sort_unstable_by_key(|name| name.id);
        Ok(names)
    }

    /// Removes the objects that no backup needs any more.
    pub(super) fn collect(&self) -> Result<u64, Error> {
        self.locked(|file| {
            let used: HashSet<_> = self.names()?.iter().filter_map(|name| name.object).collect();
            let freed = self.collect_but(&used)?;
            if let Some(usage) = Usage::read(file) {
                usage.less(freed, 0).write(file)?;
            }
            Ok(freed)
        })
    }

    /// Removes all objects except those `used`, their bases, and locked ones. Requires the lock of
    /// the account, so that no backup appears that needs one. Returns the bytes freed.
    fn collect_but(&self, used: &HashSet<portcullis_audit::Hash>) -> Result<u64, Error> {
        let mut freed = 0_u64;
        let mut left = self.objects.list()?;
        // Deltas first: a base is removed when nothing needs it any more.
        for deltas in [true, false] {
            let bases: HashSet<_> = left.iter().filter_map(|object| object.form.base()).collect();
            let mut retained = Vec::new();
            for object in left {
                let needed = used.contains(&object.hash) || bases.contains(&object.hash);
                let turn = object.form.base().is_some() == deltas;
                if turn && !needed && self.objects.remove(&object)? {
                    freed = freed.saturating_add(object.size);
                } else {
                    retained.push(object);
                }
            }
            left = retained;
        }
        Ok(freed)
    }

    /// Deletes one path's backups past the retention.
    pub(super) fn prune_path(&self, key: PathKey) -> Result<(), Error> {
        let unlimited = Retention { size: u64::MAX, ..self.retention() };
        self.locked(|file| {
            let found = plan(self.names_of(key)?, &[], &unlimited, self.now(), 0);
            self.unlink_all(file, &found.evict).map(drop)
        })
    }

    /// Removes a backup's file; false if it was gone already.
    pub(super) fn unlink(&self, name: &Name) -> Result<bool, Error> {
        self.shards.unlink(&name.to_string())
    }

    /// Deletes the backups past the retention, except `newest`, and writes the account anew. `names`
    /// are all names of the store.
    fn delete_expired(
        &self,
        file: &File,
        mut names: Vec<Name>,
        retention: &Retention,
        newest: Option<&Name>,
    ) -> Result<RetentionPlan, Error> {
        let now = self.now();
        let found = names.iter().position(|name| Some(name) == newest);
        // If it was packed meanwhile, it counts as any other.
        let (need, raw) = found.map_or((0, 0), |at| names.remove(at).account());
        let found = plan(names, &self.objects.list()?, retention, now, need);
        for name in &found.evict {
            self.unlink(name)?;
        }
        self.collect_but(&found.used)?;
        let usage = Usage { total: found.total, counted: now, raw: found.raw };
        usage.more(need, raw).write(file)?;
        Ok(found)
    }
}
