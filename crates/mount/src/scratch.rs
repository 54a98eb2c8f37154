//! Scratch directories: the products of builds and the downloads of installers, outside the
//! workspace.
//!
//! A directory whose path the policy names is not part of the workspace but a separate one, which
//! no program outside the sandbox sees. Operations in it are not decided, not backed up and not
//! recorded. Everything is opened beneath one directory by paths that follow no link, and the table
//! is locked while names are looked up or changed. Only this mount changes the content, so a name
//! keeps its meaning meanwhile.

pub(crate) mod beneath;
pub(crate) mod roots;
pub(crate) mod table;
pub(crate) mod usage;

mod names;
pub(crate) mod roots_of_mount;
mod serve;

pub use self::roots::MAX_SLOTS;
pub(crate) use self::roots_of_mount::AdoptedEntry;
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use portcullis_fuse::{Attributes, Entry, NodeId};
use portcullis_policy::{Labelled, Labels, Scratch as Rules};
use rustix::{
    fs::Stat,
    io::Result,
    process::{Resource, getrlimit},
};
use serde_json::Value;

use crate::budget::Budget;

use self::{
    beneath::kind,
    roots::{Roots, ScratchRoot},
    table::Table,
    usage::{Usage, size},
};

/// Time for which the kernel may cache: only this mount changes scratch.
const CACHE_TIMEOUT: Duration = Duration::from_secs(3600);
/// The maximum of known nodes.
const MAX_NODES: usize = 1 << 21;
/// The maximum of handles, if this process may open as many files.
const MAX_HANDLES: u64 = 65_536;

/// The scratch directories of a mount.
#[derive(Debug)]
pub struct Scratch {
    rules: Rules,
    base: OwnedFd,
    table: Mutex<Table>,
    roots: RwLock<Roots>,
    usage: Usage,
    owner: (u32, u32),
    lists: Arc<Budget>,
}

/// Counters of scratch directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScratchMetrics {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes, rounded up to blocks.
    pub bytes: u64,
    /// The number of refusals for lack of space.
    pub refused: u64,
}

impl ScratchMetrics {
    /// The kind of record with these counters.
    pub const RECORD: &str = "scratch";

    /// Returns the facts of that record: entries, their bytes, and refusals for lack of space.
    pub fn facts(self) -> BTreeMap<String, Value> {
        let Self { entries, bytes, refused } = self;
        let facts = [("entries", entries), ("bytes", bytes), ("refused", refused)];
        facts.into_iter().map(|(name, number)| (name.to_owned(), number.into())).collect()
    }
}

impl Scratch {
    /// Opens the content of `directory`, which no other program changes, or an empty one.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open(directory: &OwnedFd, rules: Rules) -> Result<Self> {
        let base = roots::take_slot(directory)?;
        let mut kept = roots::load(&base, &rules)?;
        let usage = Usage::new(rules.max_size(), roots::usage(&base, &mut kept)?);
        // Half of the descriptors are for the workspace and the log.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
        let handles = usize::try_from(files.min(MAX_HANDLES)).unwrap_or(usize::MAX);
        let (mut table, mut roots) = (Table::new(MAX_NODES, handles), Roots::default());
        roots.next = kept.next;
        for (number, path) in kept.all {
            let at = roots::content(number);
            let facts = beneath::stat(&base, &at)?;
            let kind = kind(&facts);
            let node = table.add_root(at, (kind, facts.st_ino));
            roots.by_path.insert(path, ScratchRoot { kind, number, node });
        }
        let (table, roots) = (Mutex::new(table), RwLock::new(roots));
        Ok(Self {
            rules,
            base,
            table,
            roots,
            usage,
            owner: (0, 0),
            lists: Arc::new(Budget::new(0, 0)),
        })
    }

    /// Stores `session` as the owner until [`Scratch::is_recorded`]. Returns the id of an earlier
    /// session whose counters are not recorded.
    ///
    /// # Errors
    /// The error of the system.
    pub fn begin(&self, session: &str) -> Result<Option<String>> {
        roots::begin_session(&self.base, session)
    }

    /// Returns the labels of what the git repositories of programs may contain: those of earlier
    /// sessions, and all of `labels` if these are unknown or `has_history` is true. They are
    /// unknown from now on, until they are stored again.
    ///
    /// # Errors
    /// The error of the system.
    pub fn take_labels(&self, labels: &Labels, has_history: bool) -> Result<Labelled> {
        let stored = roots::take_labels(&self.base)?.filter(|_| !has_history);
        let is_there = self.roots().by_path.keys().any(|path| path.file_name() == Some(".git"));
        Ok(match (is_there || has_history, stored) {
            (false, _) => Labelled::default(),
            (true, Some(stored)) => stored,
            (true, None) => labels.all(),
        })
    }

    /// Stores the labels that the session carries at its end.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn store_labels(&self, labels: &BTreeMap<String, String>) -> Result<()> {
        roots::store_labels(&self.base, labels)
    }

    /// Notes that the counters at the end are recorded.
    pub(crate) fn is_recorded(&self) {
        // After an error the next session records them again.
        let _ = roots::end_session(&self.base);
    }

    /// Sets user and group of the files, and a budget for lists.
    #[must_use]
    pub(crate) fn owned_by(self, owner: (u32, u32), lists: &Arc<Budget>) -> Self {
        Self { owner, lists: Arc::clone(lists), ..self }
    }

    /// Returns the rules for scratch paths.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the current counters.
    pub fn numbers(&self) -> ScratchMetrics {
        let (_, bytes) = self.usage.space();
        ScratchMetrics { entries: self.usage.entries(), bytes, refused: self.usage.refused() }
    }

    /// Removes what `rules` do not keep in `directory`, and counts what ended mounts did not. This
    /// process must not be confined: below a Landlock domain, each access takes a time that grows
    /// with its depth.
    ///
    /// # Errors
    /// The error of the system.
    pub fn settle(directory: &OwnedFd, rules: &Rules) -> Result<()> {
        roots::settle(directory, rules)
    }

    /// Stores the usage at the end, if it is known and the content is kept.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn end(&self) -> Result<()> {
        // Removed files that are still open vanish with this process, so the rest is counted anew.
        if !self.rules.keep() || self.table().has_removed_files() {
            return Ok(());
        }
        let numbers = self.numbers();
        roots::note_usage(&self.base, (numbers.bytes, numbers.entries))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes_of(&self, id: u64, stat: &Stat) -> Attributes {
        let nanoseconds = |value| u32::try_from(value).unwrap_or(0);
        Attributes {
            inode: id,
            kind: kind(stat),
            mode: stat.st_mode & 0o1777,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: self.owner.0,
            gid: self.owner.1,
            size: size(stat),
            block_size: 4096,
            accessed: (stat.st_atime, nanoseconds(stat.st_atime_nsec)),
            modified: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
        }
    }

    fn entry(&self, id: u64, stat: &Stat) -> Entry {
        Entry {
            node: NodeId(id),
            generation: 0,
            attributes: self.attributes_of(id, stat),
            attribute_timeout: CACHE_TIMEOUT,
            entry_timeout: CACHE_TIMEOUT,
        }
    }
}
