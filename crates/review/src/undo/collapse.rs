//! Leaves out the steps whose work an older one does over again.
//!
//! What a path had in between matters to nobody once it is as it was before, and retention may
//! have let go of it. So of two steps that put something at one place the older one is taken
//! alone, whatever was renamed and set in between; and what would be put back only to be removed
//! again is not put back.

use std::collections::BTreeMap;

use super::{Action, Step, plan::Expected};
use crate::model::WorkspacePath;

/// The steps, newest change first, without those that are not needed. Their records go
/// with steps that are.
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
    /// What was last put at a path or removed there, by where it is now.
    open: BTreeMap<WorkspacePath, Open>,
    /// Those of steps that cancelled each other.
    records: Vec<u64>,
}

struct Open {
    /// Its step.
    step: usize,
    /// Later steps that are about nothing else but what is in it and its attributes.
    within: Vec<usize>,
    /// Those that rename it.
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
                // It stays what it is in a directory that gets other attributes.
                Action::SetAttributes(_) if step.path != at && at.is_within(&step.path) => {
                    self.open.insert(at, open);
                }
                _ if step.paths().into_iter().all(|path| path.is_within(&at))
                    && !matches!(&step.action, Action::Rename { .. } if step.path == at) =>
                {
                    open.within.push(place);
                    self.open.insert(at, open);
                }
                // It is part of something else from here on.
                _ => {}
            }
        }
        if is_needed && matches!(step.action, Action::Restore(_) | Action::Remove) {
            self.open.insert(
                step.path.clone(),
                Open { step: place, within: Vec::new(), renames: Vec::new() },
            );
        }
        self.steps.push(Some(step).filter(|_| is_needed));
    }

    /// Takes out what is open and has to do with a step.
    fn concerned(&mut self, step: &Step) -> Vec<(WorkspacePath, Open)> {
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

    /// Leaves out the step that is open, for `step` replaces or removes what that is about;
    /// whether `step` itself is needed.
    fn override_by(&mut self, step: &mut Step, open: Open) -> bool {
        let Some(Some(newer)) = self.steps.get(open.step) else { return true };
        let expected = newer.expected;
        let was_there = expected != Expected::Missing;
        if was_there && step.action == Action::RemoveDirectory {
            return true;
        }
        // What is there now goes where it was.
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
