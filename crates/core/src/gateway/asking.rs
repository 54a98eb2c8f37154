//! Waiting for a person, and holding the answer against what is then done.
//!
//! A request that a rule asks about is prepared like any other and stops where
//! it would be recorded and carried out. The question says exactly what was
//! prepared. Once it is approved, everything is decided and prepared again,
//! and only if that is the same in every respect it goes on.

use std::time::Duration;

use portcullis_audit::{Draft, Kind};

use super::{
    Error, ErrorKind, Gateway,
    approvals::{Answer, Approver, Binding, End, Question, Told},
    error::{Failure, Stopped},
    pending_approval::Asking,
    record,
};
use crate::{model::Session, policy::Decision, random::random_hex};

impl Asking {
    /// The denial where nobody can be asked; `reason` says why.
    pub(super) fn refused(self, reason: &'static str) -> Failure {
        self.told.refusal(self.rules.first(), reason)
    }
}

/// What a person said yes to.
#[derive(Debug)]
pub(super) struct Approved {
    binding: Binding,
    /// The record of the answer.
    seq: u64,
}

impl Approved {
    /// The record of the answer, if `binding` is what it was given to.
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

impl Told {
    /// The denial by the first of the rules that ask.
    fn refusal(&self, first: Option<&Decision>, reason: &'static str) -> Failure {
        let Some(first) = first else {
            return Decision::built_in_denial("default", reason).into();
        };
        let decision = first.clone().denying().with_reason(reason);
        match self.rules.iter().any(|rule| rule.rule() == first.rule()) {
            true => decision.into(),
            false => Failure::Hidden(Box::new(decision), reason),
        }
    }
}

impl Stopped {
    fn because(draft: Draft, why: Failure) -> Box<Self> {
        Box::new(Self { draft, why })
    }
}

impl Gateway {
    /// Puts a question to whoever may answer and waits. Records the question
    /// and the answer.
    ///
    /// # Errors
    /// Unless a person approves.
    pub(super) fn ask(
        &self,
        session: &Session,
        mut draft: Draft,
        asking: Asking,
        timeout: Duration,
        approver: &dyn Approver,
    ) -> Result<Approved, Box<Stopped>> {
        let Asking { binding, rules, change, told } = asking;
        let Some(first) = rules.first().cloned() else {
            return Err(Stopped::because(
                draft,
                Decision::built_in_denial("default", "nothing asks").into(),
            ));
        };
        record::decide(&mut draft, &first);
        let Ok(id) = random_hex::<4>() else {
            let failure =
                Decision::built_in_denial("approval.id", "no random bytes for a question");
            return Err(Stopped::because(draft, failure.into()));
        };
        draft.facts.get_or_insert_default().insert("question".to_owned(), id.clone().into());
        let asked = Draft { counts: None, ..draft.clone() };
        let refused = |reason| told.refusal(Some(&first), reason);
        let question = Question {
            id,
            session: session.clone(),
            asked_path: draft.path.clone().unwrap_or_default(),
            binding: binding.clone(),
            rules,
            change,
            told: told.clone(),
            bytes: draft.bytes,
            timeout,
            since: std::time::Instant::now(),
        };
        let Some(ticket) = self.approvals.open(question, self.turns.is_some()) else {
            let why = refused("too many requests wait for a person already");
            return Err(Stopped::because(draft, why));
        };
        // The question shows content, so it is on record first.
        let recorded = self.ledger.record(asked);
        let end = match &recorded {
            Ok(_) => {
                approver.ask(&ticket);
                let end = ticket.wait();
                approver.over(&ticket);
                end
            }
            Err(_) => End::Withdrawn,
        };
        self.approvals.close(&ticket, &end);
        if let Err(error) = recorded {
            return Err(Stopped::because(draft, error.into()));
        }
        let approved = matches!(&end, End::Answered { answer: Answer::Once | Answer::Session, .. });
        let mut answer = Draft { result: Some(end.as_str().to_owned()), ..draft.clone() };
        (answer.bytes, answer.counts) = (None, None);
        answer.decision = match end {
            // Nothing was decided about what its sender took back.
            End::Withdrawn => None,
            _ => Some(if approved { "allow" } else { "deny" }.to_owned()),
        };
        if let End::Answered { by, .. } = &end {
            answer.facts.get_or_insert_default().insert("by".to_owned(), by.clone().into());
        }
        let seq = match self.ledger.note(Kind::Approval, answer, true) {
            Ok(receipt) => receipt.seq,
            Err(error) => return Err(Stopped::because(draft, error.into())),
        };
        draft.facts.get_or_insert_default().insert("approval".to_owned(), seq.into());
        let reason = match end {
            End::Answered { answer: Answer::Reject, .. } => "a person was asked and rejected it",
            End::TimedOut => "a person was asked and did not answer in time",
            End::Withdrawn => {
                let error = Error::new(ErrorKind::Cancelled, "cancelled");
                draft.decision = None;
                return Err(Stopped::because(draft, Failure::Rendered(error)));
            }
            End::Answered { answer, .. } => {
                if answer == Answer::Session {
                    self.approvals.grant(&session.id, &binding, seq);
                }
                return Ok(Approved { binding, seq });
            }
        };
        Err(Stopped::because(draft, refused(reason)))
    }
}
