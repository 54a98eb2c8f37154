//! Removal of steps whose work an older step repeats.
//!
//! Intermediate states of a path do not matter once it is as it was before, and retention may have
//! deleted their backups. So of two steps that put something at one path only the older one is
//! taken, even with renames and attributes in between. An entry that would be restored only to be
//! removed again is not restored, unless it is a directory with what others put into it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Action, Error, Step,
    interruption::Interruptions,
    plan::Expected,
    related::related,
    state::{CurrentState, nodes},
};
use crate::{
    gateway::{BackupError, BackupStore},
    model::WorkspacePath,
};

/// Removes unnecessary steps; the first step is that of the newest change. Their records move to
/// steps that remain: of an entry that came and went to the last one, as `cancelled`. One that
/// something else changed meanwhile keeps its step, which shows the conflict.
pub(super) fn collapse(
    steps: Vec<Step>,
    interruptions: &Interruptions,
    trees: Option<&BackupStore>,
) -> Result<Vec<Step>, Error> {
    let (open, records) = (BTreeMap::new(), Vec::new());
    let mut plan = Plan { steps: Vec::new(), open, records, interruptions, trees };
    for step in steps {
        plan.take(step)?;
    }
    let mut steps: Vec<Step> = plan.steps.into_iter().flatten().collect();
    if let Some(last) = steps.last_mut() {
        last.cancelled.append(&mut plan.records);
    }
    for step in &mut steps {
        step.interrupted = interruptions.within(&step.records);
    }
    Ok(steps)
}

struct Plan<'a> {
    steps: Vec<Option<Step>>,
    /// The entries that were last restored or removed, by their current path.
    open: BTreeMap<WorkspacePath, OpenStep>,
    /// The records of steps that cancelled each other.
    records: Vec<u64>,
    interruptions: &'a Interruptions,
    /// The backups of directories, if what others put into these is to come back.
    trees: Option<&'a BackupStore>,
}

struct OpenStep {
    /// The position of its step.
    step: usize,
    /// The positions of later steps about its content and attributes only.
    within: Vec<usize>,
    /// The positions of steps that rename it.
    renames: Vec<usize>,
}

impl Plan<'_> {
    fn take(&mut self, mut step: Step) -> Result<(), Error> {
        let place = self.steps.len();
        let mut is_needed = true;
        for (at, mut open) in self.concerned(&step) {
            match &step.action {
                Action::Rename { from } if at.is_within(from) => {
                    let Some(now) = at.rebase(from, &step.path) else { continue };
                    if at == *from {
                        open.renames.push(place);
                    }
                    self.open.insert(now, open);
                }
                Action::Restore(_) | Action::Remove | Action::RemoveDirectory
                    if step.path == at =>
                {
                    is_needed = self.override_by(&mut step, open)?;
                }
                // Other attributes of its directory do not affect it.
                Action::SetAttributes(_) if step.path != at && at.is_within(&step.path) => {
                    self.open.insert(at, open);
                }
                _ if step.paths().into_iter().all(|path| path.is_within(&at))
                    && !matches!(&step.action, Action::Rename { .. } if step.path == at) =>
                {
                    open.within.push(place);
                    self.open.insert(at, open);
                }
                // It becomes part of something else.
                _ => {}
            }
        }
        if is_needed && matches!(step.action, Action::Restore(_) | Action::Remove) {
            self.open.insert(
                step.path.clone(),
                OpenStep { step: place, within: Vec::new(), renames: Vec::new() },
            );
        }
        self.steps.push(Some(step).filter(|_| is_needed));
        Ok(())
    }

    /// Takes the open entries that a step concerns.
    fn concerned(&mut self, step: &Step) -> Vec<(WorkspacePath, OpenStep)> {
        let mut concerned = Vec::new();
        for path in step.paths() {
            let related: Vec<_> = related(&self.open, path).map(|(at, _)| at.clone()).collect();
            concerned.extend(related.iter().filter_map(|at| self.open.remove_entry(at)));
        }
        concerned
    }

    /// Removes the open step, since `step` replaces or removes its entry. True if `step` itself is
    /// needed.
    fn override_by(&mut self, step: &mut Step, open: OpenStep) -> Result<bool, Error> {
        let Some(Some(newer)) = self.steps.get(open.step) else { return Ok(true) };
        let (expected, mut mode) = (newer.expected, newer.mode);
        let was_there = expected != Expected::Missing;
        if step.action == Action::RemoveDirectory {
            let has_others =
                !was_there && self.has_others(newer, &step.path, (&open.within, &open.renames))?;
            if was_there || has_others {
                let newer = self.steps.get_mut(open.step).and_then(Option::as_mut);
                newer.into_iter().for_each(|newer| newer.has_others = has_others);
                return Ok(true);
            }
        }
        // The existing entry still has to move to its old path.
        let renames = if was_there { Vec::new() } else { open.renames };
        let mut records = Vec::new();
        for place in [vec![open.step], open.within, renames].into_iter().flatten() {
            let Some(dropped) = self.steps.get_mut(place).and_then(Option::take) else { continue };
            mode = mode.after(dropped.mode);
            records.extend(dropped.records);
        }
        records.append(&mut step.records);
        let is_interrupted = self.interruptions.within(&records).is_some();
        if was_there || is_interrupted || matches!(step.action, Action::Restore(_)) {
            (step.expected, step.records) = (expected, records);
            step.mode = mode.after(step.mode);
            return Ok(true);
        }
        self.records.append(&mut records);
        Ok(false)
    }

    /// True if the tree that a step restores, which is at `path` after renames, has something that
    /// the steps `within` it do not remove: others made or changed it. Of a deleted backup that is
    /// not known, and the answer is false.
    fn has_others(
        &self,
        restored: &Step,
        path: &WorkspacePath,
        (within, renames): (&[usize], &[usize]),
    ) -> Result<bool, Error> {
        let (Action::Restore(id), Some(backup_store)) = (&restored.action, self.trees) else {
            return Ok(false);
        };
        let mut tree = match nodes(backup_store, &restored.path, *id) {
            // Its step stays, and says so.
            Err(Error::Backups(BackupError::Damaged(_))) => return Ok(true),
            tree => tree?,
        };
        let steps = within.iter().chain(renames).collect::<BTreeSet<_>>().into_iter();
        for step in steps.filter_map(|place| self.steps.get(*place)?.as_ref()) {
            let is_own = match (tree.get(&step.path), step.expected) {
                (Some(CurrentState::Content(found, _)), Expected::Content(hash)) => *found == hash,
                (Some(CurrentState::Content(..)), Expected::Missing) => false,
                _ => true,
            };
            match &step.action {
                Action::Rename { from } => {
                    let moved = |path: WorkspacePath| path.rebase(from, &step.path).unwrap_or(path);
                    tree = tree.into_iter().map(|(path, state)| (moved(path), state)).collect();
                }
                Action::Restore(_) if is_own => {
                    tree.insert(step.path.clone(), CurrentState::AsKept);
                }
                Action::Remove | Action::RemoveDirectory if is_own => {
                    tree.remove(&step.path);
                }
                _ => {}
            }
        }
        tree.remove(path);
        Ok(!tree.is_empty())
    }
}
