//! Approval of requests, and the check that a change is the approved one.
//!
//! A request that a rule asks about is prepared like any other and stops where it would be recorded
//! and carried out. The question describes what was prepared. After the approval everything is
//! decided and prepared again, and the request continues only if the result is the same in every
//! respect. Otherwise it waits for another approval.

use std::{sync::Arc, time::Instant};

use portcullis_audit::{Draft, Kind};

use super::{
    Error, ErrorKind, Gateway,
    approvals::{Answer, Approver, DisclosedQuestion, Question, Ticket, WaitOutcome, timed_out},
    error::{Failure, Stopped},
    pending_approval::{ApprovalNeeded, Approved},
    record,
};
use crate::{model::Session, policy::Decision, random::random_hex};

/// Reason of the denial of a request that a person rejected.
pub(super) const REJECTED: &str = "a person was asked and rejected it";

impl ApprovalNeeded {
    /// Returns the denial without an approval, with `reason`.
    pub(super) fn refused(self, reason: impl Into<String>) -> Failure {
        self.disclosed_part.refusal(self.rules.first(), reason)
    }
}

impl DisclosedQuestion {
    /// Returns the denial by the first of the rules that ask.
    fn refusal(&self, first: Option<&Decision>, reason: impl Into<String>) -> Failure {
        let reason = reason.into();
        let Some(first) = first else {
            return Decision::built_in_denial("default", &reason).into();
        };
        let decision = first.clone().denying().with_reason(&reason);
        match self.rules.iter().any(|rule| rule.rule() == first.rule()) {
            true => decision.into(),
            false => Failure::Hidden(Box::new(decision), reason),
        }
    }
}

impl Question {
    /// Returns the denial without an approval, with `reason`.
    pub(super) fn refusal(&self, reason: impl Into<String>) -> Failure {
        self.disclosed_part.refusal(self.rules.first(), reason)
    }

    /// Returns the draft with the question's id.
    pub(super) fn named_in(&self, mut draft: Draft) -> Draft {
        draft.facts.get_or_insert_default().insert("question".to_owned(), self.id.clone().into());
        draft
    }
}

/// Runs `attempt`, and asks for the approval that it needs: again each time that something else
/// would be done than was approved. Returns the last approval as well.
///
/// # Errors
/// When an attempt fails, or a person does not approve.
pub(super) fn with_approval<T>(
    ask: impl Fn(Draft, ApprovalNeeded) -> Result<Approved, Box<Stopped>>,
    attempt: impl Fn(Option<&Approved>) -> Result<T, Box<Stopped>>,
) -> Result<(T, Option<Approved>), Box<Stopped>> {
    let mut approved = None;
    loop {
        match attempt(approved.as_ref()).map_err(|stopped| *stopped) {
            Ok(done) => return Ok((done, approved)),
            Err(Stopped { draft, failure: Failure::Ask(asking) }) => {
                approved = Some(ask(draft, *asking)?);
            }
            Err(stopped) => return Err(Box::new(stopped)),
        }
    }
}

impl Stopped {
    pub(super) fn because(draft: Draft, failure: Failure) -> Box<Self> {
        Box::new(Self { draft, failure })
    }
}

impl Gateway {
    /// Puts a question to the approvers and waits. Records the question and the answer.
    ///
    /// # Errors
    /// Unless a person approves.
    pub(super) fn ask(
        &self,
        session: &Session,
        draft: Draft,
        asking: ApprovalNeeded,
        approver: &dyn Approver,
    ) -> Result<Approved, Box<Stopped>> {
        let (ticket, draft) = self.pose(session, draft, asking, approver)?;
        let end = ticket.wait();
        approver.over(&ticket);
        self.conclude_question(&ticket, draft, end)
    }

    /// Puts a question to the approvers and records it; the draft names it.
    ///
    /// # Errors
    /// When nobody can be asked.
    pub(super) fn pose(
        &self,
        session: &Session,
        mut draft: Draft,
        asking: ApprovalNeeded,
        approver: &dyn Approver,
    ) -> Result<(Arc<Ticket>, Draft), Box<Stopped>> {
        let ApprovalNeeded { binding, rules, change, disclosed_part } = asking;
        let Some(first) = rules.first() else {
            let failure = Decision::built_in_denial("default", "nothing asks");
            return Err(Stopped::because(draft, failure.into()));
        };
        record::decide(&mut draft, first);
        record::ask(&mut draft, &rules);
        let refusal =
            disclosed_part.refusal(Some(first), "too many requests wait for a person already");
        let Ok(id) = random_hex::<4>() else {
            let failure =
                Decision::built_in_denial("approval.id", "no random bytes for a question");
            return Err(Stopped::because(draft, failure.into()));
        };
        let question = Question {
            id,
            session: session.clone(),
            workspace: self.workspace.root().to_owned(),
            asked_path: draft.path.clone().unwrap_or_else(|| binding.path.clone()),
            binding,
            rules,
            change,
            disclosed_part,
            bytes: draft.bytes,
            timeout: self.policy().approval_timeout(),
            since: Instant::now(),
        };
        draft = question.named_in(draft);
        let Some(ticket) = self.approvals.open(question, self.slots.is_some()) else {
            return Err(Stopped::because(draft, refusal));
        };
        // The question shows content, so its record comes first.
        if let Err(error) = self.audit_log.record(Draft { counts: None, ..draft.clone() }) {
            self.approvals.close(&ticket, &WaitOutcome::Withdrawn);
            return Err(Stopped::because(draft, error.into()));
        }
        approver.ask(&ticket);
        self.approvals.report();
        Ok((ticket, draft))
    }

    /// Records how a question ended.
    ///
    /// # Errors
    /// Unless a person approved.
    pub(super) fn conclude_question(
        &self,
        ticket: &Ticket,
        mut draft: Draft,
        end: WaitOutcome,
    ) -> Result<Approved, Box<Stopped>> {
        self.approvals.close(ticket, &end);
        let Question { session, binding, .. } = ticket.question();
        let approved =
            matches!(&end, WaitOutcome::Answered { answer: Answer::Once | Answer::Session, .. });
        let mut answer = Draft { result: Some(end.as_str().to_owned()), ..draft.clone() };
        (answer.bytes, answer.counts) = (None, None);
        answer.decision = match end {
            // A request that its sender withdrew was not decided.
            WaitOutcome::Withdrawn => None,
            _ => Some(if approved { "allow" } else { "deny" }.to_owned()),
        };
        if let WaitOutcome::Answered { by, .. } = &end {
            answer.facts.get_or_insert_default().insert("by".to_owned(), by.clone().into());
        }
        let seq = match self.audit_log.note(Kind::Approval, answer, true) {
            Ok(receipt) => receipt.seq,
            Err(error) => return Err(Stopped::because(draft, error.into())),
        };
        draft.facts.get_or_insert_default().insert("approval".to_owned(), seq.into());
        let reason = match end {
            WaitOutcome::Answered { answer: Answer::Reject, .. } => REJECTED.to_owned(),
            WaitOutcome::TimedOut => timed_out(ticket.question().timeout),
            WaitOutcome::Withdrawn => {
                let error = Error::new(ErrorKind::Cancelled, "cancelled");
                draft.decision = None;
                return Err(Stopped::because(draft, Failure::Rendered(error)));
            }
            WaitOutcome::Answered { answer, .. } => {
                if answer == Answer::Session {
                    self.approvals.grant(&session.id, binding, seq);
                }
                return Ok(Approved { binding: binding.clone(), seq });
            }
        };
        Err(Stopped::because(draft, ticket.question().refusal(reason)))
    }
}
