//! A request that waits for an approval, its description, and what was approved.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use portcullis_audit::Draft;

use super::approvals::{Approvals, Binding, DisclosedQuestion, Ticket};
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

impl Approvals {
    /// Returns the record of the approval that covers `binding`: `approved`, or one of the session.
    pub(super) fn record_of(
        &self,
        approved: Option<&Approved>,
        session: &Session,
        binding: &Binding,
    ) -> Option<u64> {
        let exact = approved.filter(|approved| approved.covers(binding));
        exact.map(|approved| approved.seq).or_else(|| self.granted(&session.id, binding))
    }
}

impl Approved {
    /// Returns true for the approved request, also where the approved content is there already:
    /// an equal request was approved and carried out first, and this one changes nothing. Only a
    /// change of content is bound to what was there before; attributes that are set already are the
    /// same request, and a second removal, rename or creation fails.
    fn covers(&self, binding: &Binding) -> bool {
        let is_done =
            binding.after.is_some() && binding.before == binding.after && binding.buffer.is_none();
        let before = if is_done { self.binding.before } else { binding.before };
        self.binding == Binding { before, ..binding.clone() }
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
