//! Changes by others between two changes that are undone in one step.
//!
//! A step that undoes several changes of a path compares only the newest one with the current
//! state. What somebody else stored there between them would be lost without a conflict.

use std::collections::BTreeMap;

use portcullis_audit::Hash;

use super::{
    History,
    known_entries::KnownEntries,
    related::{exchange, related, rename, take},
};
use crate::{
    change::Change,
    gateway::BackupStore,
    model::{OperationKind, WorkspacePath},
};

/// A change of a path by something else, between two of the changes to undo.
#[derive(Debug, Clone)]
pub(super) struct Interruption {
    /// The index of the change before it.
    pub(super) since: u64,
    /// That of the change after it.
    pub(super) until: u64,
    /// The record of the other change and its agent, if the log has it.
    pub(super) by: Option<(u64, String)>,
}

/// All such changes.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    /// Those of contents, by the change after each.
    contents: BTreeMap<u64, Interruption>,
    /// Those that put another entry there, by each change of the entry before.
    entries: BTreeMap<u64, Interruption>,
}

impl Interruptions {
    /// Finds the changes by others between the selected changes of a history. Without a backup store
    /// what a change replaced is known by its hash alone.
    pub(super) fn of(history: &History, backup_store: Option<&BackupStore>) -> Self {
        let selected = history.selected.iter().map(|change| (change, Role::Selected));
        let others = history.others.iter().map(|change| (change, Role::Other));
        let undone = history.undone_changes.iter().map(|change| (change, Role::Undone));
        let mut changes: Vec<_> = selected.chain(others).chain(undone).collect();
        changes.sort_by_key(|(change, _)| change.seq);
        let mut finder = Finder::default();
        let mut entries = KnownEntries::new(backup_store);
        for (change, role) in changes {
            match role {
                Role::Selected => {
                    finder.take(change);
                    entries.take(change);
                }
                Role::Other => {
                    finder.take_other(change);
                    entries.take_other(change);
                }
                Role::Undone => entries.take_undone(change),
            }
        }
        Self { contents: finder.found, entries: entries.replaced }
    }

    /// Returns a description of the reason of a conflict of a step that undoes these changes: the
    /// first interruption between two of them, or after one that was of another entry.
    pub(super) fn within(&self, records: &[u64]) -> Option<String> {
        let content = records.iter().find_map(|record| {
            self.contents.get(record).filter(|found| records.contains(&found.since))
        });
        let entry = || records.iter().find_map(|record| self.entries.get(record));
        let found = content.or_else(entry)?;
        let between = format!("between records {} and {}", found.since, found.until);
        Some(match &found.by {
            Some((record, agent)) => {
                format!("record {record} (agent {agent}) changed it {between}")
            }
            None => format!("something that is not in the log changed it {between}"),
        })
    }
}

/// The part of a change in a history.
#[derive(Clone, Copy)]
enum Role {
    Selected,
    Other,
    Undone,
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
                exchange(&mut self.left, &change.path, to);
            }
            (O::Rename, Some(to)) => {
                if change.backup.is_some() {
                    let replaced = change.before.map_or(LeftContent::Unknown, LeftContent::Known);
                    self.compare(to, replaced, change.seq);
                }
                rename(&mut self.left, &change.path, to);
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
                drop(take(&mut self.left, &change.path));
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
            let found = Interruption { since: left.by, until, by: left.other.clone() };
            self.found.insert(until, found);
        }
    }

    fn leave(&mut self, path: &WorkspacePath, content: LeftContent, by: u64) {
        self.left.insert(path.clone(), Left { by, content, other: None });
    }
}
