//! Comparison of an undo's steps with the current state.

use std::collections::BTreeSet;

use super::{Action, History, Step, related::groups, state_reader::StateReader};
use crate::{gateway::Gateway, model::Session};

/// The status of a step, before or after the undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// It can be taken.
    Ready,
    /// The state is already the one after the step.
    Unchanged,
    /// Another change affected what it would replace; the text describes it.
    Conflict(String),
    /// It cannot be taken; the text says why.
    Impossible(String),
    /// The directory remains because it is not empty; the text says why.
    Skipped(String),
    /// It depends on a step that is not taken.
    Depends,
    /// It was taken.
    Done,
    /// The gateway did not carry it out; the text says why.
    Failed(String),
}

/// The steps of an undo, compared with the current state.
#[derive(Debug, Default)]
pub struct Preview {
    /// The steps with their status.
    pub steps: Vec<(Step, Status)>,
    /// Number of changes that were undone before and need no step.
    pub undone: usize,
    /// The value of [`History::undone_by`].
    pub undone_by: BTreeSet<String>,
    /// The value of [`History::undo_of`].
    pub undo_of: BTreeSet<String>,
    /// The value of [`History::begins`].
    pub begins: Option<u64>,
}

impl Preview {
    /// Compares everything that `steps` would change with the current state, and the backups that they
    /// restore with their hashes. Changes nothing.
    pub fn new(gateway: &Gateway, session: &Session, history: &History, steps: Vec<Step>) -> Self {
        let mut look = StateReader::new(gateway, session, Some(history));
        let mut preview = Self {
            steps: Vec::new(),
            undone: history.undone,
            undone_by: history.undone_by.clone(),
            undo_of: history.undo_of.clone(),
            begins: history.begins,
        };
        let mut unsettled = BTreeSet::new();
        for mut step in steps {
            look.keep_comparable(&mut step);
            let mut status = look.at(&step);
            if status == Status::Unchanged
                && let Some(reason) = look.moved(&step)
            {
                status = Status::Impossible(reason);
                unsettled.insert(preview.steps.len());
            }
            if step.has_others {
                unsettled.insert(preview.steps.len());
            }
            let is_final = status == Status::Unchanged && !history.is_without_undone;
            if matches!(status, Status::Ready | Status::Unchanged)
                && !is_final
                && let Some(reason) = step.interrupted.clone()
            {
                status = Status::Conflict(reason);
                if history.is_without_undone {
                    unsettled.insert(preview.steps.len());
                }
            }
            if matches!(status, Status::Conflict(_)) {
                step.in_the_way = look.in_the_way(&step);
            }
            if !matches!(status, Status::Skipped(_)) {
                look.simulation.take(&step);
            }
            preview.steps.push((step, status));
        }
        preview.settle(&look, &unsettled);
        preview
    }

    /// Marks related steps as done if together they lead to the current state: changes that were
    /// undone since, and their undos. Not those between whose changes something else changed the
    /// path, not those of an entry that others moved, and not those of what others put into a directory.
    fn settle(&mut self, look: &StateReader<'_>, unsettled: &BTreeSet<usize>) {
        let groups = groups(self.steps.iter().map(|(step, _)| step.paths()));
        for group in groups.iter().filter(|group| group.len() > 1) {
            let mut already = !group.iter().any(|place| unsettled.contains(place));
            for (step, status) in group.iter().filter_map(|place| self.steps.get(*place)) {
                // Equal paths do not imply equal attributes.
                let is_set = !matches!(step.action, Action::SetAttributes(_));
                already = already && (is_set || *status == Status::Unchanged);
                for path in step.paths() {
                    already = already && look.is_final(path).unwrap_or(false);
                }
            }
            for place in group.iter().filter(|_| already) {
                if let Some((_, status)) = self.steps.get_mut(*place) {
                    *status = Status::Unchanged;
                }
            }
        }
    }

    /// Counts the steps whose status meets a condition.
    pub fn count(&self, what: impl Fn(&Status) -> bool) -> usize {
        self.steps.iter().filter(|(_, status)| what(status)).count()
    }
}

/// Compares one step with the current state, just before it is taken.
pub(super) fn now(gateway: &Gateway, session: &Session, step: &Step) -> Status {
    StateReader::new(gateway, session, None).at(step)
}
