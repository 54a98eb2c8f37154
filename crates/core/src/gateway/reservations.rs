//! What answers that do not deny want besides: that a person is asked, and
//! that the log says what only observe mode let pass.

use std::cell::RefCell;

use portcullis_audit::Draft;

use super::record;
use crate::{model::WorkspacePath, policy::Decision};

/// Collected while one try at a request puts its questions. Everything that
/// asks is kept once by rule, so a large tree asks no more than a file.
#[derive(Debug, Default)]
pub(super) struct Reservations(RefCell<Kept>);

#[derive(Debug, Default)]
struct Kept {
    asks: Vec<Decision>,
    relaxed: Option<Decision>,
    followed: Vec<WorkspacePath>,
}

impl Reservations {
    /// Takes note of an answer that does not deny.
    pub(super) fn hear(&self, decision: &Decision) {
        if !decision.is_ask() && !decision.would_deny() {
            return;
        }
        let mut kept = self.0.borrow_mut();
        if decision.is_ask() && !kept.asks.iter().any(|known| known.rule() == decision.rule()) {
            kept.asks.push(decision.clone());
        }
        if decision.would_deny() && kept.relaxed.is_none() {
            kept.relaxed = Some(decision.clone());
        }
    }

    /// Takes note of a name to which a link led.
    pub(super) fn follow(&self, name: &WorkspacePath) {
        self.0.borrow_mut().followed.push(name.clone());
    }

    /// The names to which links led.
    pub(super) fn followed(&self) -> Vec<WorkspacePath> {
        self.0.borrow().followed.clone()
    }

    /// The rules that ask, in the order in which they did.
    pub(super) fn asks(&self) -> Vec<Decision> {
        self.0.borrow().asks.clone()
    }

    /// Has nobody asked; whether a rule does ask.
    pub(super) fn withdraw_asks(&self) -> bool {
        !std::mem::take(&mut self.0.borrow_mut().asks).is_empty()
    }

    /// Writes into the record what observe mode let pass, and the rule that
    /// would have denied it.
    pub(super) fn observe(&self, draft: &mut Draft) {
        if let Some(relaxed) = &self.0.borrow().relaxed {
            if relaxed.is_allow() {
                record::decide(draft, relaxed);
            }
            draft.would_deny = Some(true);
        }
    }
}
