//! The steps that undo changes, planned from the log alone.
//!
//! Changes are undone newest first. Versions of one file collapse: only the oldest is restored. A
//! change that moves or makes an entire directory remains a step of its own. Collected steps of the
//! files that it touches precede it, under the names of that time.

use std::collections::BTreeMap;

use portcullis_audit::Hash;

use super::collapse::collapse;
use crate::{
    change::Change,
    gateway::{BackupId, BackupKind, SomeAttributes},
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
    /// The indices of the records that it undoes, newest first.
    pub records: Vec<u64>,
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

impl Step {
    /// Returns the paths that it is about.
    pub fn paths(&self) -> Vec<&WorkspacePath> {
        match &self.action {
            Action::Rename { from: other } | Action::Exchange { with: other } => {
                vec![other, &self.path]
            }
            _ => vec![&self.path],
        }
    }

    /// True if the path is one of the step's, beneath one, or above one.
    pub fn concerns(&self, path: &WorkspacePath) -> bool {
        let related = |own: &WorkspacePath| own.is_within(path) || path.is_within(own);
        self.paths().into_iter().any(related)
    }
}

/// Returns the steps that undo `changes`, in the order in which they must be taken. The changes are
/// given oldest first; `kind` returns the kind of a backup if it still exists.
pub fn plan(
    changes: &[Change],
    kind: &mut dyn FnMut(&WorkspacePath, BackupId) -> Option<BackupKind>,
) -> Vec<Step> {
    let mut planner = Planner { steps: Vec::new(), files: BTreeMap::new() };
    for change in changes.iter().rev() {
        planner.undo(change, kind);
    }
    planner.flush_all();
    collapse(planner.steps)
}

struct Planner {
    steps: Vec<Step>,
    /// Steps about single entries, of which only the oldest version counts.
    files: BTreeMap<WorkspacePath, Step>,
}

impl Planner {
    fn undo(
        &mut self,
        change: &Change,
        kind: &mut dyn FnMut(&WorkspacePath, BackupId) -> Option<BackupKind>,
    ) {
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
                self.parents(change, &change.path);
            }
            OperationKind::Rename if change.exchange => {
                let Some(to) = &change.to else { return };
                self.flush(to);
                let action = Action::Exchange { with: to.clone() };
                self.whole(Step::of(action, &change.path, Expected::Any, seq));
            }
            OperationKind::Rename => {
                let Some(to) = &change.to else { return };
                let action = Action::Rename { from: to.clone() };
                self.flush(&change.path);
                self.flush(to);
                let back = Step::of(action, &change.path, Expected::Missing, seq);
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
                self.parents(change, to);
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
                let mut is_tree = |id: Option<BackupId>| {
                    id.is_some_and(|id| {
                        kind(&change.path, id).is_none_or(|kind| kind == BackupKind::Tree)
                    })
                };
                // The kind of a deleted backup is unknown. Only these two operations are about
                // trees.
                let whole =
                    matches!(change.operation, OperationKind::Remove | OperationKind::Restore)
                        && (is_tree(change.backup) || is_tree(change.restored));
                let step = Step::of(action, &change.path, expected, seq);
                if whole {
                    self.whole(step)
                } else {
                    self.file(step)
                }
                if change.operation != OperationKind::Remove {
                    self.parents(change, &change.path);
                }
            }
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
        let newer = self.files.get_mut(&change.path);
        if let Some(Step { action: Action::SetAttributes(to), expected, records, .. }) = newer {
            *to = before.or(*to);
            if let Expected::Attributes(newest) = expected {
                *newest = newest.or(after);
            }
            records.push(change.seq);
            return;
        }
        self.flush(&change.path);
        let action = Action::SetAttributes(before);
        let step = Step::of(action, &change.path, Expected::Attributes(after), change.seq);
        self.files.insert(change.path.clone(), step);
    }

    /// Undoes the directories that were made above `path`.
    fn parents(&mut self, change: &Change, path: &WorkspacePath) {
        for directory in path.ancestors().iter().rev().take(change.directories) {
            if !directory.is_root() {
                let action = Action::RemoveDirectory;
                self.whole(Step::of(action, directory, Expected::Any, change.seq));
            }
        }
    }

    /// Moves the steps of all entries related to `path` to their position in the order.
    fn flush(&mut self, path: &WorkspacePath) {
        let beneath = self.files.range(path.clone()..);
        let mut related: Vec<WorkspacePath> = beneath
            .map(|(own, _)| own)
            .take_while(|own| own.as_str().starts_with(path.as_str()))
            .filter(|own| own.is_within(path))
            .cloned()
            .collect();
        related.extend(path.ancestors());
        for own in related {
            self.steps.extend(self.files.remove(&own));
        }
    }

    fn flush_all(&mut self) {
        let files = std::mem::take(&mut self.files);
        self.steps.extend(files.into_values());
    }
}

impl Step {
    fn of(action: Action, path: &WorkspacePath, expected: Expected, seq: u64) -> Self {
        Self { action, path: path.clone(), expected, records: vec![seq] }
    }
}
