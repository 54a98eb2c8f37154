//! Changes by others between two changes that are undone in one step.
//!
//! A step that undoes several changes of a path compares only the newest one with the current
//! state. What somebody else stored there between them would be lost without a conflict.

use std::collections::BTreeMap;

use portcullis_audit::Hash;

use super::{
    History,
    related::{beneath, related},
};
use crate::{
    change::Change,
    model::{OperationKind, WorkspacePath},
};

/// A change of a path by something else, between two of the changes to undo.
#[derive(Debug)]
struct Interruption {
    /// The index of the change before it.
    since: u64,
    /// The record of the other change and its agent, if the log has it.
    by: Option<(u64, String)>,
}

/// All such changes, by the change after each.
#[derive(Debug, Default)]
pub(super) struct Interruptions(BTreeMap<u64, Interruption>);

impl Interruptions {
    /// Finds the changes by others between the selected changes of a history.
    pub(super) fn of(history: &History) -> Self {
        let selected = history.selected.iter().map(|change| (change, true));
        let others = history.others.iter().map(|change| (change, false));
        let mut changes: Vec<_> = selected.chain(others).collect();
        changes.sort_by_key(|(change, _)| change.seq);
        let mut finder = Finder::default();
        for (change, is_selected) in changes {
            match is_selected {
                true => finder.take(change),
                false => finder.take_other(change),
            }
        }
        Self(finder.found)
    }

    /// Returns a description of the first one between two changes of a list, the reason of a conflict
    /// if these are undone in one step.
    pub(super) fn within(&self, records: &[u64]) -> Option<String> {
        let (until, found) = records.iter().find_map(|record| {
            let found = self.0.get(record)?;
            records.contains(&found.since).then_some((record, found))
        })?;
        let between = format!("between records {} and {until}", found.since);
        Some(match &found.by {
            Some((record, agent)) => {
                format!("record {record} (agent {agent}) changed it {between}")
            }
            None => format!("something that is not in the log changed it {between}"),
        })
    }
}

/// The state of a path that a change left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftContent {
    Unknown,
    Missing,
    Known(Hash),
}

/// The state of a path after the last selected change of it.
#[derive(Debug)]
struct Left {
    by: u64,
    content: LeftContent,
    /// The first other change since.
    other: Option<(u64, String)>,
}

#[derive(Default)]
struct Finder {
    left: BTreeMap<WorkspacePath, Left>,
    found: BTreeMap<u64, Interruption>,
}

impl Finder {
    fn take_other(&mut self, change: &Change) {
        if change.operation == OperationKind::SetAttributes {
            return;
        }
        let undone = change.undoes.as_deref().unwrap_or_default();
        for path in [Some(&change.path), change.to.as_ref()].into_iter().flatten() {
            let affected: Vec<_> = match change.operation {
                OperationKind::Mkdir => {
                    path.ancestors().into_iter().chain([path.clone()]).collect()
                }
                _ => related(&self.left, path).map(|(own, _)| own.clone()).collect(),
            };
            for own in affected {
                let Some(left) = self.left.get_mut(&own) else { continue };
                if left.other.as_ref().is_some_and(|(record, _)| undone.contains(record)) {
                    left.other = None;
                } else if left.other.is_none() && undone.is_empty() {
                    left.other = Some((change.seq, change.agent.clone()));
                }
            }
        }
    }

    fn take(&mut self, change: &Change) {
        use OperationKind as O;
        match (change.operation, &change.to) {
            (O::Rename, Some(to)) if change.exchange => {
                let (one, other) = (self.remove(&change.path), self.remove(to));
                self.insert(one, &change.path, to);
                self.insert(other, to, &change.path);
            }
            (O::Rename, Some(to)) => {
                if change.backup.is_some() {
                    let replaced = change.before.map_or(LeftContent::Unknown, LeftContent::Known);
                    self.compare(to, replaced, change.seq);
                }
                let (moved, _) = (self.remove(&change.path), self.remove(to));
                self.insert(moved, &change.path, to);
                self.leave(&change.path, LeftContent::Missing, change.seq);
            }
            (O::Write | O::Append | O::Edit | O::Remove | O::Symlink | O::Restore, _) => {
                let before = match (change.before, change.backup) {
                    _ if change.editor => LeftContent::Unknown,
                    (Some(hash), _) => LeftContent::Known(hash),
                    (None, Some(_)) => LeftContent::Unknown,
                    (None, None) if change.operation == O::Remove => LeftContent::Unknown,
                    (None, None) => LeftContent::Missing,
                };
                let is_certain =
                    !change.editor && matches!(change.result.as_deref(), Some("ok" | "committed"));
                let after = match (change.operation, change.after) {
                    _ if !is_certain => LeftContent::Unknown,
                    (O::Remove, _) => LeftContent::Missing,
                    // The hash of a tree also depends on later changes in it.
                    (O::Restore, _) | (_, None) => LeftContent::Unknown,
                    (_, Some(hash)) => LeftContent::Known(hash),
                };
                self.compare(&change.path, before, change.seq);
                drop(self.remove(&change.path));
                self.leave(&change.path, after, change.seq);
            }
            (O::Mkdir, _) => drop(self.left.remove(&change.path)),
            _ => {}
        }
    }

    fn compare(&mut self, path: &WorkspacePath, before: LeftContent, until: u64) {
        let Some(left) = self.left.get(path) else { return };
        let is_other = match (left.content, before) {
            (LeftContent::Unknown, _) | (_, LeftContent::Unknown) => left.other.is_some(),
            (after, before) => after != before,
        };
        if is_other {
            let found = Interruption { since: left.by, by: left.other.clone() };
            self.found.insert(until, found);
        }
    }

    fn leave(&mut self, path: &WorkspacePath, content: LeftContent, by: u64) {
        self.left.insert(path.clone(), Left { by, content, other: None });
    }

    /// Takes out the states of a path and of all beneath it.
    fn remove(&mut self, path: &WorkspacePath) -> Vec<(WorkspacePath, Left)> {
        let beneath: Vec<_> = beneath(&self.left, path).map(|(own, _)| own.clone()).collect();
        beneath.iter().filter_map(|own| self.left.remove_entry(own)).collect()
    }

    /// Inserts them as they are after `from` got the name `to`.
    fn insert(
        &mut self,
        left: Vec<(WorkspacePath, Left)>,
        from: &WorkspacePath,
        to: &WorkspacePath,
    ) {
        let moved = left.into_iter();
        self.left.extend(moved.filter_map(|(path, left)| Some((path.rebase(from, to)?, left))));
    }
}
