//! Questions of requests that do not wait for the answer: a program at a mount gets its error at
//! once. The answer applies to a later request that is the same in every respect.

use std::time::{Duration, Instant};

use portcullis_audit::Draft;

use super::{
    Gateway,
    approval_requests::REJECTED,
    approvals::Approver,
    error::Stopped,
    pending_approval::{ApprovalNeeded, ApprovalState, Approved, OpenQuestion},
};
use crate::model::Session;

/// Reason of the denial of a request that waits for an approval. Its sender does not get the
/// question's id: it could print it with a description of another request.
const WAITS: &str = "a person is asked; the same request passes once it is approved";

/// The time for which a rejected request is not asked about again, where the policy has no timeout.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(120);

impl Gateway {
    /// Puts a question to the approvers, unless it was put before, and does not wait.
    ///
    /// # Errors
    /// Unless a person has approved.
    pub(super) fn ask_without_waiting(
        &self,
        session: &Session,
        draft: Draft,
        asking: ApprovalNeeded,
        approver: &dyn Approver,
    ) -> Result<Approved, Box<Stopped>> {
        let mut open = self.open_questions.lock();
        self.settle(&mut open, session);
        let same = |one: &OpenQuestion| one.is_of(session) && *one.binding() == asking.binding;
        if let Some(at) = open.iter().position(same) {
            let question = open.swap_remove(at);
            let reason = match question.state {
                ApprovalState::Approved(approved) => return Ok(*approved),
                ApprovalState::Waiting => WAITS.to_owned(),
                ApprovalState::Rejected { .. } => REJECTED.to_owned(),
            };
            let draft = question.ticket.question().named_in(draft);
            open.push(question);
            return Err(Stopped::because(draft, asking.refused(reason)));
        }
        for older in open.iter().filter(|one| one.is_of(session)) {
            if older.is_superseded_by(&asking.binding) {
                older.ticket.withdraw();
            }
        }
        self.settle(&mut open, session);
        let (ticket, draft) = self.pose(session, draft, asking, approver)?;
        let reason = ticket.question().refusal(WAITS);
        open.push(OpenQuestion { ticket, draft: draft.clone(), state: ApprovalState::Waiting });
        Err(Stopped::because(draft, reason))
    }

    /// Records the answers to requests of `session` that did not wait.
    pub fn settle_questions(&self, session: &Session) {
        self.settle(&mut self.open_questions.lock(), session);
    }

    /// Withdraws the unanswered questions of a session that has ended.
    pub fn withdraw_questions(&self, session: &Session) {
        let mut open = self.open_questions.lock();
        open.iter().filter(|one| one.is_of(session)).for_each(|one| one.ticket.withdraw());
        self.settle(&mut open, session);
        open.retain(|one| !one.is_of(session));
    }

    fn settle(&self, open: &mut Vec<OpenQuestion>, session: &Session) {
        open.retain_mut(|one| {
            if !one.is_of(session) {
                return true;
            }
            if matches!(one.state, ApprovalState::Waiting) {
                let Some(end) = one.ticket.end() else { return true };
                let is_rejected = end.is_rejection();
                match self.conclude_question(&one.ticket, one.draft.clone(), end) {
                    Ok(approved) => one.state = ApprovalState::Approved(Box::new(approved)),
                    Err(_) if is_rejected => {
                        let until = one.ticket.deadline();
                        let until = until.unwrap_or_else(|| Instant::now() + REJECTION_TIMEOUT);
                        one.state = ApprovalState::Rejected { until };
                    }
                    Err(_) => return false,
                }
            }
            !matches!(one.state, ApprovalState::Rejected { until } if until <= Instant::now())
        });
    }
}
