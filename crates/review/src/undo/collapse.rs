//! Removal of steps whose work an older step repeats.
//!
//! Intermediate states of a path do not matter once it is as it was before, and retention may have
//! deleted their backups. So of two steps that put something at one path only the older one is
//! taken, even with renames and attributes in between. An entry that would be restored only to be
//! removed again is not restored.

use std::collections::BTreeMap;

use super::{Action, Step, plan::Expected};
use crate::model::WorkspacePath;

/// Removes unnecessary steps; the first step is that of the newest change. Their records move to
/// steps that remain.
pub(super) fn collapse(steps: Vec<Step>) -> Vec<Step> {
    let mut plan = Plan { steps: Vec::new(), open: BTreeMap::new(), records: Vec::new() };
    for step in steps {
        plan.take(step);
    }
    let mut steps: Vec<Step> = plan.steps.into_iter().flatten().collect();
    if let Some(last) = steps.last_mut() {
        last.records.append(&mut plan.records);
    }
    steps
}

struct Plan {
    steps: Vec<Option<Step>>,
    /// The entries that were last restored or removed, by their current path.
    open: BTreeMap<WorkspacePath, OpenStep>,
    /// The records of steps that cancelled each other.
    records: Vec<u64>,
}

struct OpenStep {
    /// The position of its step.
    step: usize,
    /// The positions of later steps about its content and attributes only.
    within: Vec<usize>,
    /// The positions of steps that rename it.
    renames: Vec<usize>,
}

impl Plan {
    fn take(&mut self, mut step: Step) {
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
                    is_needed = self.override_by(&mut step, open);
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
    }

    /// Takes the open entries that a step concerns.
    fn concerned(&mut self, step: &Step) -> Vec<(WorkspacePath, OpenStep)> {
        let mut concerned = Vec::new();
        for path in step.paths() {
            let beneath = self.open.range(path.clone()..).map(|(at, _)| at);
            let beneath = beneath.take_while(|at| at.as_str().starts_with(path.as_str()));
            let mut related: Vec<_> = beneath.filter(|at| at.is_within(path)).cloned().collect();
            related.extend(path.ancestors());
            concerned.extend(related.iter().filter_map(|at| self.open.remove_entry(at)));
        }
        concerned
    }

    /// Removes the open step, since `step` replaces or removes its entry. True if `step` itself is
    /// needed.
    fn override_by(&mut self, step: &mut Step, open: OpenStep) -> bool {
        let Some(Some(newer)) = self.steps.get(open.step) else { return true };
        let expected = newer.expected;
        let was_there = expected != Expected::Missing;
        if was_there && step.action == Action::RemoveDirectory {
            return true;
        }
        // The existing entry still has to move to its old path.
        let renames = if was_there { Vec::new() } else { open.renames };
        let mut records = Vec::new();
        for place in [vec![open.step], open.within, renames].into_iter().flatten() {
            let dropped = self.steps.get_mut(place).and_then(Option::take);
            records.extend(dropped.into_iter().flat_map(|step| step.records));
        }
        records.append(&mut step.records);
        if was_there || matches!(step.action, Action::Restore(_)) {
            (step.expected, step.records) = (expected, records);
            return true;
        }
        self.records.append(&mut records);
        false
    }
}
