//! Which steps undo which changes. Looks at nothing.
//!
//! Changes are undone newest first. Versions of one file collapse: only the
//! oldest is put back. What moves or makes whole directories stays a step of
//! its own, and what was collected of the files that it touches comes before
//! it, under the names that these had then.

use std::collections::BTreeMap;

use portcullis_audit::Hash;

use super::collapse::collapse;
use crate::{
    change::Change,
    gateway::{BackupId, BackupKind, SomeAttributes},
    model::{OperationKind, WorkspacePath},
};

/// What one step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Puts a backup at the path.
    Restore(BackupId),
    /// Removes what was made there.
    Remove,
    /// Removes a directory that was made, when nothing is left in it.
    RemoveDirectory,
    /// Sets attributes to what they were.
    SetAttributes(SomeAttributes),
    /// Gives the entry at `from` the step's path, which it had.
    Rename {
        /// Where it is.
        from: WorkspacePath,
    },
    /// Gives the entry at `with` the step's path, and what is there that one.
    Exchange {
        /// The other path.
        with: WorkspacePath,
    },
}

/// One step of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// The path that is as it was afterwards.
    pub path: WorkspacePath,
    /// What the log says is there now.
    pub expected: Expected,
    /// The records that it undoes, newest first.
    pub records: Vec<u64>,
}

/// What the log says is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    Missing,
    /// A content, a link's target or a tree with this hash.
    Content(Hash),
    /// Something with this mode, if one is named.
    Attributes(SomeAttributes),
    /// Something.
    Any,
}

impl Step {
    /// The paths that it is about.
    pub fn paths(&self) -> Vec<&WorkspacePath> {
        match &self.action {
            Action::Rename { from: other } | Action::Exchange { with: other } => {
                vec![other, &self.path]
            }
            _ => vec![&self.path],
        }
    }

    /// Whether the step and a path have to do with each other.
    pub fn concerns(&self, path: &WorkspacePath) -> bool {
        let related = |own: &WorkspacePath| own.is_within(path) || path.is_within(own);
        self.paths().into_iter().any(related)
    }
}

/// The steps that undo `changes`, which are given oldest first, in the order in
/// which they must be taken. `kind` says what a backup is of, where it is
/// still kept.
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
    /// Single entries, for which only the oldest version counts.
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
            | OperationKind::Connect => {}
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
                // Renamed there and back again: nothing is to be done.
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
                // Of what is no longer kept nobody can tell; only these two are
                // ever about trees.
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

    /// Takes a step that concerns everything beneath its path.
    fn whole(&mut self, step: Step) {
        self.flush(&step.path);
        self.steps.push(step);
    }

    /// Takes a step that concerns one entry.
    fn file(&mut self, step: Step) {
        match self.files.get_mut(&step.path) {
            Some(newer) => {
                // What was there before has the attributes of then.
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

    /// Takes back what was set of one entry, after later changes of what it holds.
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

    /// Takes back the directories that were made above `path`.
    fn parents(&mut self, change: &Change, path: &WorkspacePath) {
        for directory in path.ancestors().iter().rev().take(change.directories) {
            if !directory.is_root() {
                let action = Action::RemoveDirectory;
                self.whole(Step::of(action, directory, Expected::Any, change.seq));
            }
        }
    }

    /// Brings the steps of all entries that have to do with `path` to their
    /// place in the order.
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
