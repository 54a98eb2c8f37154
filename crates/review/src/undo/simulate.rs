//! A simulation of the entries' positions after some steps.

use std::collections::HashMap;

use super::{Action, Step};
use crate::{gateway::BackupId, model::WorkspacePath};

/// The entry at a path after the simulated steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SimulatedEntry {
    /// The entry that the disk has now at this path.
    Disk(WorkspacePath),
    /// Nothing.
    Missing,
    /// The entry from this backup.
    Backup(BackupId),
    /// The entry with the second path in a tree that was restored at the first one.
    Inside(WorkspacePath, BackupId, WorkspacePath),
}

/// The simulated steps.
#[derive(Debug, Default)]
pub(super) struct Simulation {
    taken: Vec<Step>,
    /// The steps about exactly this path, by their position.
    exact: HashMap<WorkspacePath, Vec<usize>>,
    /// The steps that may concern other paths, too.
    wide: Vec<usize>,
}

impl Simulation {
    /// Simulates a step.
    pub(super) fn take(&mut self, step: &Step) {
        let place = self.taken.len();
        match &step.action {
            Action::Rename { .. } | Action::Exchange { .. } => self.wide.push(place),
            // Attributes do not move an entry.
            Action::SetAttributes(_) => return,
            Action::Restore(_) | Action::Remove | Action::RemoveDirectory => {
                self.exact.entry(step.path.clone()).or_default().push(place);
            }
        }
        self.taken.push(step.clone());
    }

    /// True if a step changed something beneath one of these paths.
    pub(super) fn changed_beneath(&self, names: [&WorkspacePath; 2]) -> bool {
        let beneath =
            |path: &WorkspacePath| names.iter().any(|name| path != *name && path.is_within(name));
        self.taken.iter().any(|step| step.paths().into_iter().any(beneath))
    }

    /// Returns the entry at `path` after the steps.
    pub(super) fn find(&self, path: &WorkspacePath) -> SimulatedEntry {
        let (mut path, mut before) = (path.clone(), self.taken.len());
        loop {
            let exact = self.last_exact(&path, before);
            let wide = self.wide.iter().rev().find_map(|place| {
                let step = self.taken.get(*place).filter(|_| *place < before)?;
                let (Action::Rename { from } | Action::Exchange { with: from }) = &step.action
                else {
                    return None;
                };
                (path.is_within(&step.path) || path.is_within(from)).then_some((*place, step, from))
            });
            match (exact, wide) {
                (Some((at, answer)), wide)
                    if wide.as_ref().is_none_or(|(place, ..)| at > *place) =>
                {
                    return answer;
                }
                (_, None) => return SimulatedEntry::Disk(path),
                (_, Some((place, step, from))) => {
                    let back = || path.rebase(from, &step.path);
                    let other = match &step.action {
                        Action::Exchange { .. } if path.is_within(from) => back(),
                        _ => path.rebase(&step.path, from),
                    };
                    match other {
                        Some(old) => (path, before) = (old, place),
                        None => return SimulatedEntry::Missing,
                    }
                }
            }
        }
    }

    /// Returns the last step before `before` about the path or a directory above it.
    fn last_exact(&self, path: &WorkspacePath, before: usize) -> Option<(usize, SimulatedEntry)> {
        let mut last: Option<(usize, SimulatedEntry)> = None;
        for above in path.ancestors().into_iter().chain([path.clone()]) {
            let Some(places) = self.exact.get(&above) else { continue };
            let Some(place) = places.iter().rev().find(|place| **place < before) else { continue };
            if last.as_ref().is_some_and(|(latest, _)| latest > place) {
                continue;
            }
            let answer = match self.taken.get(*place).map(|step| &step.action) {
                Some(Action::Restore(id)) if above == *path => SimulatedEntry::Backup(*id),
                Some(Action::Restore(id)) => SimulatedEntry::Inside(above, *id, path.clone()),
                _ => SimulatedEntry::Missing,
            };
            last = Some((*place, answer));
        }
        last
    }
}
