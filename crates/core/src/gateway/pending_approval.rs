//! A request that waits for an approval, its description, and what was approved.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use portcullis_audit::Draft;

use super::approvals::{Binding, DisclosedQuestion, Ticket};
use crate::{model::Session, policy::Decision};

/// A request that stopped because a person must approve it.
#[derive(Debug)]
pub(super) struct ApprovalNeeded {
    pub(super) binding: Binding,
    pub(super) rules: Vec<Decision>,
    pub(super) change: String,
    pub(super) disclosed_part: DisclosedQuestion,
}

/// The effect of a request, described for a person.
pub(super) struct ApprovalPreview {
    pub(super) text: String,
    /// True if an agent that may list and read the paths that the request names may
    /// see all of it.
    pub(super) is_open: bool,
}

impl ApprovalPreview {
    pub(super) fn open(text: String) -> Self {
        Self { text, is_open: true }
    }
}

/// The request that a person approved.
#[derive(Debug)]
pub(super) struct Approved {
    pub(super) binding: Binding,
    /// The sequence number of the answer's record.
    pub(super) seq: u64,
}

impl Approved {
    /// Returns the record of the answer if `binding` is the approved one.
    ///
    /// # Errors
    /// A denial by `rule`, which asks, if it is another one.
    pub(super) fn covers(&self, binding: &Binding, rule: &Decision) -> Result<u64, Decision> {
        if self.binding == *binding {
            return Ok(self.seq);
        }
        let reason = "what would be done now is not what was approved; ask again";
        Err(rule.clone().denying().with_reason(reason))
    }
}

/// The questions whose answers are not used yet.
#[derive(Debug, Default)]
pub(super) struct OpenQuestions(Mutex<Vec<OpenQuestion>>);

/// A question whose answer is not used yet.
#[derive(Debug)]
pub(super) struct OpenQuestion {
    pub(super) ticket: Arc<Ticket>,
    /// The draft of the answer's record.
    pub(super) draft: Draft,
    pub(super) state: ApprovalState,
}

/// The state of an open question.
#[derive(Debug)]
pub(super) enum ApprovalState {
    Waiting,
    /// Approved for one request.
    Approved(Box<Approved>),
    /// Rejected; until then the question is not put again.
    Rejected {
        until: Instant,
    },
}

impl OpenQuestion {
    pub(super) fn is_of(&self, session: &Session) -> bool {
        self.ticket.question().session.id == session.id
    }

    pub(super) fn binding(&self) -> &Binding {
        &self.ticket.question().binding
    }

    /// True if it is about the same change with another content.
    pub(super) fn is_superseded_by(&self, binding: &Binding) -> bool {
        let own = self.binding();
        (own.operation, &own.path, &own.to) == (binding.operation, &binding.path, &binding.to)
    }
}

impl OpenQuestions {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<OpenQuestion>> {
        // A panic elsewhere leaves plain data behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
