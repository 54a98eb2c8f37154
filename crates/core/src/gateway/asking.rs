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
    pending_approval::{Asking, Shown},
    record,
    transaction::Transaction,
};
use crate::{
    model::{Access, Session},
    policy::Decision,
    random::random_hex,
};

impl Asking {
    /// The denial where nobody can be asked.
    pub(super) fn refused(self) -> Failure {
        let reason = "a person has to be asked, and a batch asks nobody; send it alone";
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

impl Told {
    /// The denial by the first of the rules that ask.
    fn refusal(&self, first: Option<&Decision>, reason: &'static str) -> Failure {
        let Some(first) = first else {
            return Failure::Denied(Box::new(Decision::built_in_denial("default", reason)));
        };
        let decision = first.clone().denying().with_reason(reason);
        match self.rules.iter().any(|rule| rule.rule() == first.rule()) {
            true => Failure::Denied(Box::new(decision)),
            false => Failure::Hidden(Box::new(decision), reason),
        }
    }
}

impl Transaction<'_> {
    /// Goes on if no rule asks, or if exactly this was approved; writes into
    /// the record on what grounds. `change` describes what would be done.
    pub(super) fn heed(
        &self,
        draft: &mut Draft,
        change: impl FnOnce() -> Shown,
    ) -> Result<(), Failure> {
        self.reservations.observe(draft);
        let rules = self.reservations.asks();
        let Some(first) = rules.first() else {
            return Ok(());
        };
        let fact = |name| draft.facts.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let binding = Binding {
            operation: self.operation.kind(),
            path: draft.resolved.clone().or_else(|| draft.path.clone()).unwrap_or_default(),
            to: draft.to.clone(),
            before: draft.before,
            buffer: fact(record::BUFFER_BEFORE),
            after: draft.after,
            moved: fact("moved"),
            policy_sha256: self.policy.sha256().to_owned(),
            rules: rules.iter().map(|rule| rule.rule().to_owned()).collect(),
        };
        let seq = match (self.approved, self.gate.approvals.granted(&self.session.id, &binding)) {
            (Some(approved), _) if approved.binding == binding => approved.seq,
            (Some(_), _) => return Err(stale(first)),
            (None, Some(seq)) => seq,
            (None, None) => {
                let shown = change();
                let told = self.told(draft, &binding, &rules, &shown);
                let asking = Asking { binding, rules, change: shown.text, told };
                return Err(Failure::Ask(Box::new(asking)));
            }
        };
        record::decide(draft, first);
        draft.decision = Some("allow".to_owned());
        draft.facts.get_or_insert_default().insert("approval".to_owned(), seq.into());
        Ok(())
    }

    /// What comes of a failure where a rule asks: the question. It tells what is
    /// there or not, and whoever may not look without a person hears of that after a
    /// yes.
    pub(super) fn heed_failing(&self, draft: &mut Draft, failure: Failure) -> Failure {
        let is_told = matches!(failure, Failure::Ask(_) | Failure::Log(_) | Failure::Answered(_));
        let asks = !self.reservations.asks().is_empty();
        if is_told
            || self.is_operators()
            || !asks
            || self.is_denied_by_name()
            || self.may_look(draft)
        {
            return failure;
        }
        self.heed(draft, || self.fails()).err().unwrap_or(failure)
    }

    /// Whether the names that were asked for are enough to refuse the request,
    /// whatever is there.
    fn is_denied_by_name(&self) -> bool {
        let authorizer = self.authorizer();
        authorizer.names(self.operation.path()).is_err()
            || self.new_name().is_some_and(|to| authorizer.name(Access::Write, to).is_deny())
    }
}

fn stale(decision: &Decision) -> Failure {
    let reason = "what would be done now is not what was approved; ask again".to_owned();
    Failure::Denied(Box::new(decision.clone().denying().with_reason(reason)))
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
                Failure::Denied(Box::new(Decision::built_in_denial("default", "nothing asks"))),
            ));
        };
        record::decide(&mut draft, &first);
        let Ok(id) = random_hex::<4>() else {
            let failure =
                Decision::built_in_denial("approval.id", "no random bytes for a question");
            return Err(Stopped::because(draft, Failure::Denied(Box::new(failure))));
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
