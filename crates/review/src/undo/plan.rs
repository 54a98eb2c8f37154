//! The steps that undo changes, planned from the log alone.
//!
//! Changes are undone newest first. Versions of one file collapse: only the oldest is restored. A
//! change that moves or makes an entire directory remains a step of its own. Collected steps of the
//! files that it touches precede it, under the names of that time.

use std::collections::BTreeMap;

use portcullis_audit::Hash;

use super::{Error, History, collapse::collapse, interruption::Interruptions, related::related};
use crate::{
    change::Change,
    gateway::{BackupError, BackupId, BackupKind, BackupStore, EntryIdentity, SomeAttributes},
    model::{OperationKind, WorkspacePath},
};

/// The actions of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Restores a backup at the path.
    Restore(BackupId),
    /// Removes the entry that was made there.
    Remove,
    /// Removes a directory that was made, if it is empty.
    RemoveDirectory,
    /// Restores attributes.
    SetAttributes(SomeAttributes),
    /// Renames the entry at `from` back to the step's path.
    Rename {
        /// The current path.
        from: WorkspacePath,
    },
    /// Exchanges the entries at `with` and at the step's path.
    Exchange {
        /// The other path.
        with: WorkspacePath,
    },
}

/// One step of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// The path that is restored.
    pub path: WorkspacePath,
    /// The current state of the path, according to the log.
    pub expected: Expected,
    /// The current permission bits of a file whose content it restores, according to the log.
    pub mode: ExpectedMode,
    /// The reason of a conflict: something else changed the path between two of its records.
    pub interrupted: Option<String>,
    /// True if it restores a tree because of what others put into it.
    pub has_others: bool,
    /// The entries that it renames, exchanges or sets attributes of, by their current paths,
    /// according to the log. Not all records have them.
    pub entries: Vec<(WorkspacePath, EntryIdentity)>,
    /// The entry that was at the path of a rename when its conflict was shown.
    pub in_the_way: Option<EntryIdentity>,
    /// The indices of the records that it undoes, newest first.
    pub records: Vec<u64>,
    /// The indices of records that need no step, because they undid each other: they count as
    /// undone with this one, and may be of other paths.
    pub cancelled: Vec<u64>,
}

/// The state of a path, according to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// No entry.
    Missing,
    /// A content, a link's target or a tree with this hash.
    Content(Hash),
    /// An entry with this mode, if one is named.
    Attributes(SomeAttributes),
    /// Any entry.
    Any,
}

/// The permission bits of a file, according to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedMode {
    /// The bits of the backup that is restored: no change set others.
    Kept,
    /// The bits that a change set.
    Set(u32),
    /// No record has them.
    Unknown,
}

impl ExpectedMode {
    /// Returns those after a change, `older` being those before it.
    pub(super) fn after(self, older: Self) -> Self {
        if self == Self::Kept { older } else { self }
    }
}

impl Step {
    /// Returns the records that count as undone with it.
    pub fn undoes(&self) -> impl Iterator<Item = u64> + '_ {
        self.records.iter().chain(&self.cancelled).copied()
    }

    /// Returns the newest record that it undoes.
    pub(super) fn newest(&self) -> u64 {
        self.records.first().copied().unwrap_or(0)
    }

    /// Returns the paths that it is about.
    pub fn paths(&self) -> Vec<&WorkspacePath> {
        match &self.action {
            Action::Rename { from: other } | Action::Exchange { with: other } => {
                vec![other, &self.path]
            }
            _ => vec![&self.path],
        }
    }
}

/// Returns the steps that undo the selected changes, in the order in which they must be taken.
/// Without a backup store every backup counts as deleted.
///
/// # Errors
/// If the backup store cannot be read.
pub fn plan(history: &History, backup_store: Option<&BackupStore>) -> Result<Vec<Step>, Error> {
    let mut planner = Planner { backup_store, steps: Vec::new(), files: BTreeMap::new() };
    for change in history.selected.iter().rev() {
        planner.undo(change)?;
    }
    planner.flush_all();
    // A restore to a moment of the log brings nothing back that others put there later.
    let trees = backup_store.filter(|_| history.is_without_undone);
    collapse(planner.steps, &Interruptions::of(history, backup_store), trees)
}

struct Planner<'a> {
    backup_store: Option<&'a BackupStore>,
    steps: Vec<Step>,
    /// Steps about single entries, of which only the oldest version counts.
    files: BTreeMap<WorkspacePath, Step>,
}

impl Planner<'_> {
    fn undo(&mut self, change: &Change) -> Result<(), Error> {
        let seq = change.seq;
        match change.operation {
            OperationKind::Read
            | OperationKind::List
            | OperationKind::Stat
            | OperationKind::Glob
            | OperationKind::Grep
            | OperationKind::Watch
            | OperationKind::Connect
            | OperationKind::Command => {}
            OperationKind::SetAttributes => self.attributes(change),
            OperationKind::Mkdir => {
                self.whole(Step::of(Action::RemoveDirectory, &change.path, Expected::Any, seq));
                self.parents(change);
            }
            OperationKind::Rename if change.exchange => {
                let Some(to) = &change.to else { return Ok(()) };
                self.flush(to);
                let action = Action::Exchange { with: to.clone() };
                let step = Step::of(action, &change.path, Expected::Any, seq);
                let step = step.finds(to, change.entry.as_ref());
                self.whole(step.finds(&change.path, change.other_entry.as_ref()));
            }
            OperationKind::Rename => {
                let Some(to) = &change.to else { return Ok(()) };
                let action = Action::Rename { from: to.clone() };
                self.flush(&change.path);
                self.flush(to);
                let back = Step::of(action, &change.path, Expected::Missing, seq);
                let back = back.finds(to, change.entry.as_ref());
                let cancels = self.steps.last().is_some_and(|last| {
                    last.path == *to && last.action == Action::Rename { from: change.path.clone() }
                });
                // Renamed and renamed back: no step is needed.
                if cancels {
                    drop(self.steps.pop())
                } else {
                    self.steps.push(back)
                }
                if let Some(backup) = change.backup {
                    self.file(Step::of(Action::Restore(backup), to, Expected::Missing, seq));
                }
                self.parents(change);
            }
            OperationKind::Write
            | OperationKind::Append
            | OperationKind::Edit
            | OperationKind::Remove
            | OperationKind::Symlink
            | OperationKind::Restore => {
                let action = change.backup.map_or(Action::Remove, Action::Restore);
                let expected = match (change.operation, change.after) {
                    (OperationKind::Remove, _) => Expected::Missing,
                    (_, Some(after)) => Expected::Content(after),
                    (_, None) => Expected::Any,
                };
                // Only these two operations are about trees.
                let whole =
                    matches!(change.operation, OperationKind::Remove | OperationKind::Restore)
                        && (self.is_tree(&change.path, change.backup)?
                            || self.is_tree(&change.path, change.restored)?);
                let mut step = Step::of(action, &change.path, expected, seq);
                step.mode = mode_after(change);
                if whole {
                    self.whole(step)
                } else {
                    self.file(step)
                }
                if change.operation != OperationKind::Remove {
                    self.parents(change);
                }
            }
        }
        Ok(())
    }

    /// True if a backup is a tree, or deleted: its kind is unknown then.
    fn is_tree(&self, path: &WorkspacePath, id: Option<BackupId>) -> Result<bool, Error> {
        let (Some(id), Some(backup_store)) = (id, self.backup_store) else {
            return Ok(id.is_some());
        };
        match backup_store.entry_of(path, &id) {
            Ok(entry) => Ok(entry.is_none_or(|entry| entry.kind == BackupKind::Tree)),
            Err(BackupError::Damaged(_)) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a step that concerns everything beneath its path.
    fn whole(&mut self, step: Step) {
        self.flush(&step.path);
        self.steps.push(step);
    }

    /// Adds a step that concerns one entry.
    fn file(&mut self, step: Step) {
        match self.files.get_mut(&step.path) {
            Some(newer) => {
                // The earlier version had other attributes.
                if matches!(newer.action, Action::SetAttributes(_)) {
                    newer.expected = step.expected;
                }
                newer.action = step.action;
                newer.mode = newer.mode.after(step.mode);
                newer.entries.clear();
                newer.records.extend(step.records);
            }
            None => {
                self.flush(&step.path);
                self.files.insert(step.path.clone(), step);
            }
        }
    }

    /// Undoes attributes of one entry, after later changes of its content.
    fn attributes(&mut self, change: &Change) {
        let (Some(after), Some(before)) = (change.attributes, change.attributes_before) else {
            return;
        };
        let set = after.mode.map_or(ExpectedMode::Kept, ExpectedMode::Set);
        let newer = self.files.get_mut(&change.path);
        if let Some(Step { action: Action::SetAttributes(to), expected, mode, records, .. }) = newer
        {
            *to = before.or(*to);
            *mode = mode.after(set);
            if let Expected::Attributes(newest) = expected {
                *newest = newest.or(after);
            }
            records.push(change.seq);
            return;
        }
        self.flush(&change.path);
        let action = Action::SetAttributes(before);
        let mut step = Step::of(action, &change.path, Expected::Attributes(after), change.seq);
        step.mode = set;
        let step = step.finds(&change.path, change.entry.as_ref());
        self.files.insert(change.path.clone(), step);
    }

    /// Undoes the parent directories that a change made.
    fn parents(&mut self, change: &Change) {
        for directory in change.made_directories() {
            self.whole(Step::of(Action::RemoveDirectory, &directory, Expected::Any, change.seq));
        }
    }

    /// Moves the steps of all entries related to `path` to their position in the order.
    fn flush(&mut self, path: &WorkspacePath) {
        let related: Vec<_> = related(&self.files, path).map(|(own, _)| own.clone()).collect();
        for own in related {
            self.steps.extend(self.files.remove(&own));
        }
    }

    fn flush_all(&mut self) {
        let files = std::mem::take(&mut self.files);
        self.steps.extend(files.into_values());
    }
}

/// Returns the permission bits that a change of one entry left.
fn mode_after(change: &Change) -> ExpectedMode {
    use OperationKind as O;
    let is_kept = matches!(change.operation, O::Write | O::Append | O::Edit);
    match change.attributes {
        Some(SomeAttributes { mode: Some(mode), .. }) => ExpectedMode::Set(mode),
        None if is_kept && change.backup.is_some() => ExpectedMode::Kept,
        _ => ExpectedMode::Unknown,
    }
}

impl Step {
    fn of(action: Action, path: &WorkspacePath, expected: Expected, seq: u64) -> Self {
        let (records, cancelled) = (vec![seq], Vec::new());
        Self {
            action,
            path: path.clone(),
            expected,
            mode: ExpectedMode::Kept,
            interrupted: None,
            has_others: false,
            entries: Vec::new(),
            in_the_way: None,
            records,
            cancelled,
        }
    }

    /// Adds the entry that it finds at `path`, if the record names it.
    fn finds(mut self, path: &WorkspacePath, entry: Option<&EntryIdentity>) -> Self {
        self.entries.extend(entry.map(|entry| (path.clone(), entry.clone())));
        self
    }
}
