//! A simulation of the entries' positions after some steps.

use std::collections::BTreeMap;

use super::{Action, Step, related::beneath};
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
    /// The positions of the steps by each of their paths.
    places: BTreeMap<WorkspacePath, Vec<usize>>,
}

impl Simulation {
    /// Simulates a step.
    pub(super) fn take(&mut self, step: &Step) {
        // Attributes do not move an entry.
        if let Action::SetAttributes(_) = step.action {
            return;
        }
        for path in step.paths() {
            self.places.entry(path.clone()).or_default().push(self.taken.len());
        }
        self.taken.push(step.clone());
    }

    /// True if a step changed something beneath one of these paths.
    pub(super) fn changed_beneath(&self, names: [&WorkspacePath; 2]) -> bool {
        let is_changed = |name| beneath(&self.places, name).any(|(path, _)| path != name);
        names.into_iter().any(is_changed)
    }

    /// Returns the entry at `path` after the steps.
    pub(super) fn find(&self, path: &WorkspacePath) -> SimulatedEntry {
        let (mut path, mut before) = (path.clone(), self.taken.len());
        while let Some((place, step)) = self.last(&path, before) {
            let moved = match &step.action {
                Action::Restore(id) if step.path == path => return SimulatedEntry::Backup(*id),
                Action::Restore(id) => {
                    return SimulatedEntry::Inside(step.path.clone(), *id, path);
                }
                Action::Exchange { with: from } if path.is_within(from) => {
                    path.rebase(from, &step.path)
                }
                Action::Rename { from } | Action::Exchange { with: from } => {
                    path.rebase(&step.path, from)
                }
                _ => None,
            };
            let Some(old) = moved else { return SimulatedEntry::Missing };
            (path, before) = (old, place);
        }
        SimulatedEntry::Disk(path)
    }

    /// Returns the last step before `before` about the path or a directory above it.
    fn last(&self, path: &WorkspacePath, before: usize) -> Option<(usize, &Step)> {
        let last = |path| {
            let places = self.places.get(path)?;
            places.get(places.partition_point(|place| *place < before).checked_sub(1)?).copied()
        };
        let place = path.ancestors().iter().chain([path]).filter_map(last).max()?;
        Some((place, self.taken.get(place)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::undo::plan::{Expected, ExpectedMode};

    /// Regression: each rename of a chain was searched among all later ones.
    #[test]
    fn a_chain_of_renames_took_the_square_of_its_length() {
        let path = |number: usize| WorkspacePath::parse(&format!("d/{number}")).unwrap();
        let mut simulation = Simulation::default();
        for number in 0..80_000 {
            simulation.take(&Step {
                action: Action::Rename { from: path(number) },
                path: path(number + 1),
                expected: Expected::Missing,
                mode: ExpectedMode::Kept,
                interrupted: None,
                has_others: false,
                entries: Vec::new(),
                in_the_way: None,
                records: Vec::new(),
                cancelled: Vec::new(),
            });
        }
        // A machine that stops for a while makes one of them slow.
        let times = [(); 3].map(|()| {
            let begun = Instant::now();
            assert_eq!(simulation.find(&path(80_000)), SimulatedEntry::Disk(path(0)));
            assert_eq!(simulation.find(&path(3)), SimulatedEntry::Missing);
            begun.elapsed()
        });
        assert!(times.iter().any(|time| *time < Duration::from_secs(3)), "{times:?}");
    }
}
