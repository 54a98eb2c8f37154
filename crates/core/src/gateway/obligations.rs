//! Obligations of decisions that are not denials: an approval, and a record of what only observe
//! mode allowed.

use std::cell::RefCell;

use portcullis_audit::Draft;

use super::record;
use crate::{model::WorkspacePath, policy::Decision};

/// The obligations of one attempt at a request. A decision that asks is stored once for each rule,
/// so a large tree asks no more than a file.
#[derive(Debug, Default)]
pub(super) struct Obligations(RefCell<PendingObligations>);

#[derive(Debug, Default)]
struct PendingObligations {
    asks: Vec<Decision>,
    relaxed: Option<Decision>,
    followed: Vec<WorkspacePath>,
}

impl Obligations {
    /// Stores the obligations of a decision that does not deny.
    pub(super) fn add(&self, decision: &Decision) {
        if !decision.is_ask() && !decision.would_deny() {
            return;
        }
        let mut kept = self.0.borrow_mut();
        for question in decision.questions() {
            let is_same = |known: &Decision| {
                known.rule() == question.rule() && known.location() == question.location()
            };
            if !kept.asks.iter().any(is_same) {
                kept.asks.push(question.clone());
            }
        }
        if decision.would_deny() && kept.relaxed.is_none() {
            kept.relaxed = Some(decision.clone());
        }
    }

    /// Stores a name to which a link led.
    pub(super) fn follow(&self, name: &WorkspacePath) {
        self.0.borrow_mut().followed.push(name.clone());
    }

    /// Returns the names to which links led.
    pub(super) fn followed(&self) -> Vec<WorkspacePath> {
        self.0.borrow().followed.clone()
    }

    /// Returns the decisions that ask, in their order.
    pub(super) fn asks(&self) -> Vec<Decision> {
        self.0.borrow().asks.clone()
    }

    /// Drops the decisions that ask; true if there were any.
    pub(super) fn withdraw_asks(&self) -> bool {
        !std::mem::take(&mut self.0.borrow_mut().asks).is_empty()
    }

    /// Writes into the record the rule that would have denied what observe mode allowed.
    pub(super) fn observe(&self, draft: &mut Draft) {
        if let Some(relaxed) = &self.0.borrow().relaxed {
            if relaxed.is_allow() {
                record::decide(draft, relaxed);
            }
            draft.would_deny = Some(true);
        }
    }
}
