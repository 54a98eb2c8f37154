//! Scratch directories: what builds make and installers fetch, outside the workspace.
//!
//! A directory whose path the policy names is not the workspace's but one of its own, which no
//! program outside the sandbox sees. What is done in it is not decided, not backed up and not
//! recorded. Everything is opened beneath one directory by paths that follow no link, and the
//! table is locked while names are looked up or changed, so what a name stands for does not
//! change meanwhile: only this mount changes what is there.

pub(crate) mod place;
pub(crate) mod roots;
pub(crate) mod table;
pub(crate) mod usage;

mod names;
pub(crate) mod roots_of_mount;
mod serve;

pub(crate) use self::roots_of_mount::Adopted;
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use portcullis_fuse::{Attributes, Entry, NodeId};
use portcullis_policy::Scratch as Rules;
use rustix::{
    fs::Stat,
    io::Result,
    process::{Resource, getrlimit},
};
use serde_json::Value;

use crate::budget::Budget;

use self::{
    place::kind,
    roots::{Root, Roots},
    table::Table,
    usage::{Usage, size},
};

/// How long the kernel may answer from what it was told: nothing else changes it.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// The most nodes that are known.
const NODES: usize = 1 << 21;
/// The most handles, if this process may open as many files.
const HANDLES: u64 = 65_536;

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

/// What is in scratch directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScratchNumbers {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes, in whole blocks.
    pub bytes: u64,
    /// How often something was refused because there was no room.
    pub refused: u64,
}

impl ScratchNumbers {
    /// The record that says this.
    pub const RECORD: &str = "scratch";

    /// The facts of that record: files, directories and links, their bytes, and how often there was no room.
    pub fn facts(self) -> BTreeMap<String, Value> {
        let Self { entries, bytes, refused } = self;
        let facts = [("entries", entries), ("bytes", bytes), ("refused", refused)];
        facts.into_iter().map(|(name, number)| (name.to_owned(), number.into())).collect()
    }
}

impl Scratch {
    /// Opens what is kept in `directory`, which no other program changes, or begins anew.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(directory: &OwnedFd, rules: Rules) -> Result<Self> {
        let base = roots::take_slot(directory)?;
        let mut kept = roots::load(&base, &rules)?;
        let usage = Usage::new(rules.max_size(), roots::usage(&base, &mut kept)?);
        // Half of what this process may open is for the workspace and the log.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
        let handles = usize::try_from(files.min(HANDLES)).unwrap_or(usize::MAX);
        let (mut table, mut roots) = (Table::new(NODES, handles), Roots::default());
        roots.next = kept.next;
        for (number, path) in kept.all {
            let at = roots::content(number);
            let facts = place::stat(&base, &at)?;
            let kind = kind(&facts);
            let node = table.add_root(at, (kind, facts.st_ino));
            roots.by_path.insert(path, Root { kind, number, node });
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

    /// Notes that they are of `session` until [`Scratch::is_recorded`]. If what an earlier session
    /// left is not on record, returns that one.
    ///
    /// # Errors
    /// As the system says.
    pub fn begin(&self, session: &str) -> Result<Option<String>> {
        roots::begin_session(&self.base, session)
    }

    /// What is left at the end is on record.
    pub(crate) fn is_recorded(&self) {
        // Else the next session records it once more.
        let _ = roots::end_session(&self.base);
    }

    /// The same for files of that user and group, with a budget for lists.
    #[must_use]
    pub(crate) fn owned_by(self, owner: (u32, u32), lists: &Arc<Budget>) -> Self {
        Self { owner, lists: Arc::clone(lists), ..self }
    }

    /// Which directories are scratch.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What is in them now.
    pub fn numbers(&self) -> ScratchNumbers {
        let (_, bytes) = self.usage.space();
        ScratchNumbers { entries: self.usage.entries(), bytes, refused: self.usage.refused() }
    }

    /// Nothing is served any more: notes what is kept, or removes all.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn end(&self) -> Result<()> {
        if self.rules.keep() {
            // What is removed and still open goes with this process: the next session counts.
            if self.table().has_removed_files() {
                return Ok(());
            }
            let numbers = self.numbers();
            return roots::note_usage(&self.base, (numbers.bytes, numbers.entries));
        }
        let roots = self.roots.write().unwrap_or_else(PoisonError::into_inner);
        roots.by_path.values().try_for_each(|root| roots::remove(&self.base, root.number))
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
            attribute_timeout: TIMEOUT,
            entry_timeout: TIMEOUT,
        }
    }
}
