//! The entries at paths, as the records of renames and of attributes name them.
//!
//! An entry that is not the one that the change before left there is somebody else's: what was done
//! with the one before is not undone with it.

use std::collections::{BTreeMap, HashMap};

use super::{
    interruption::Interruption,
    related::{beneath, exchange, rename, take},
};
use crate::{
    change::Change,
    gateway::{Backup, BackupId, BackupKind, BackupStore, EntryIdentity},
    model::{OperationKind, WorkspacePath},
};

/// The entry at a path after the last selected change of it.
#[derive(Debug)]
struct KnownEntry {
    /// The selected changes of this entry, oldest first.
    records: Vec<u64>,
    identity: EntryIdentity,
    /// The first other change since.
    other: Option<(u64, String)>,
}

/// The known entries, and those that something else replaced.
pub(super) struct KnownEntries<'a> {
    backup_store: Option<&'a BackupStore>,
    known: BTreeMap<WorkspacePath, KnownEntry>,
    /// The last record that set the time of an inode, by its number: a file has several names, and
    /// a file system may round the time.
    times: HashMap<String, u64>,
    /// The changes after which something else took the place of their entry.
    pub(super) replaced: BTreeMap<u64, Interruption>,
}

impl<'a> KnownEntries<'a> {
    pub(super) fn new(backup_store: Option<&'a BackupStore>) -> Self {
        let (known, times, replaced) = (BTreeMap::new(), HashMap::new(), BTreeMap::new());
        Self { backup_store, known, times, replaced }
    }

    /// Follows a selected change.
    pub(super) fn take(&mut self, change: &Change) {
        use OperationKind as O;
        let is_certain = matches!(change.result.as_deref(), Some("ok" | "committed"));
        let after = |entry: &Option<EntryIdentity>| entry.clone().filter(|_| is_certain);
        match (change.operation, &change.to) {
            (O::SetAttributes, _) => {
                self.compare(&change.path, change.entry_before().as_ref(), change.seq);
                self.leave(&change.path, after(&change.entry), change.seq);
                self.take_time(change);
            }
            (O::Rename, Some(to)) if change.exchange => {
                self.compare(&change.path, change.entry.as_ref(), change.seq);
                self.compare(to, change.other_entry.as_ref(), change.seq);
                exchange(&mut self.known, &change.path, to);
                self.leave(to, after(&change.entry), change.seq);
                self.leave(&change.path, after(&change.other_entry), change.seq);
            }
            (O::Rename, Some(to)) => {
                self.compare(&change.path, change.entry.as_ref(), change.seq);
                self.compare_backup(to, change);
                rename(&mut self.known, &change.path, to);
                self.leave(to, after(&change.entry), change.seq);
            }
            (O::Write | O::Append | O::Edit | O::Remove | O::Symlink | O::Restore, _) => {
                self.compare_backup(&change.path, change);
                drop(take(&mut self.known, &change.path));
            }
            (O::Mkdir, _) => drop(take(&mut self.known, &change.path)),
            _ => {}
        }
    }

    /// Follows a change by others. What an undo put back is what was there, but another entry.
    pub(super) fn take_other(&mut self, change: &Change) {
        if change.operation == OperationKind::SetAttributes {
            self.take_time(change);
        } else if change.undoes.is_some() {
            self.take_undone(change);
        } else {
            for path in [Some(&change.path), change.to.as_ref()].into_iter().flatten() {
                let paths: Vec<_> =
                    beneath(&self.known, path).map(|(own, _)| own.clone()).collect();
                for own in paths {
                    let Some(known) = self.known.get_mut(&own) else { continue };
                    known.other.get_or_insert_with(|| (change.seq, change.agent.clone()));
                }
            }
        }
    }

    /// Follows a change that was undone: its entries are not known any more.
    pub(super) fn take_undone(&mut self, change: &Change) {
        if change.operation == OperationKind::SetAttributes {
            self.take_time(change);
            return;
        }
        for path in [Some(&change.path), change.to.as_ref()].into_iter().flatten() {
            drop(take(&mut self.known, path));
        }
    }

    fn take_time(&mut self, change: &Change) {
        if let Some(entry) = &change.entry
            && change.attributes.is_some_and(|attributes| attributes.modified.is_some())
        {
            self.times.insert(entry.inode.clone(), change.seq);
        }
    }

    /// Compares the entry that a change found with the known one.
    fn compare(&mut self, path: &WorkspacePath, found: Option<&EntryIdentity>, until: u64) {
        let Some((known, found)) = self.known.get(path).zip(found) else { return };
        if self.is_other(known, found)
            && let Some(KnownEntry { records, other: by, .. }) = self.known.remove(path)
        {
            let since = records.last().copied().unwrap_or(until);
            let found = Interruption { since, until, by };
            self.replaced.extend(records.into_iter().map(|record| (record, found.clone())));
        }
    }

    /// Compares the entry that a change replaced or removed, as its backup has it.
    fn compare_backup(&mut self, path: &WorkspacePath, change: &Change) {
        let Some((known, id)) = self.known.get(path).zip(change.backup) else { return };
        let found = self.backup(path, id).and_then(|backup| {
            let attributes = backup.attributes?;
            let bytes = match backup.kind {
                BackupKind::File => Some(backup.bytes),
                BackupKind::Tree => None,
                BackupKind::Link | BackupKind::Buffer => return None,
            };
            let modified = Some((attributes.mtime, attributes.mtime_nanos));
            Some(EntryIdentity { bytes, ..known.identity.clone() }.with_modified(modified))
        });
        self.compare(path, found.as_ref(), change.seq);
    }

    fn backup(&self, path: &WorkspacePath, id: BackupId) -> Option<Backup> {
        self.backup_store?.entry_of(path, &id).ok()?
    }

    /// True if an entry is certainly another one than the known one, or has another content. The
    /// content of a directory is not compared: its time is that of changes in it.
    fn is_other(&self, known: &KnownEntry, found: &EntryIdentity) -> bool {
        let KnownEntry { records, identity, .. } = known;
        let is_born_apart =
            identity.born.is_some() && found.born.is_some() && identity.born != found.born;
        let is_time_known = identity.bytes.is_some()
            && self.times.get(&identity.inode).is_none_or(|set| records.last() > Some(set));
        identity.inode != found.inode
            || identity.bytes != found.bytes
            || (identity.modified != found.modified && (is_time_known || is_born_apart))
    }

    /// Notes the entry that a change left at a path.
    fn leave(&mut self, path: &WorkspacePath, identity: Option<EntryIdentity>, by: u64) {
        let known = self.known.remove(path);
        let Some(identity) = identity else { return };
        let mut records = known.map(|known| known.records).unwrap_or_default();
        records.push(by);
        self.known.insert(path.clone(), KnownEntry { records, identity, other: None });
    }
}
