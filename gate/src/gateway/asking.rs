//! Waiting for a person, and holding the answer against what is then done.
//!
//! A request that a rule asks about is prepared like any other and stops where
//! it would be recorded and carried out. The question says exactly what was
//! prepared. Once it is approved, everything is decided and prepared again,
//! and only if that is the same in every respect it goes on.

use std::{io::Read as _, time::Duration};

use portcullis_audit::{Draft, Kind};

use super::{
    Error, ErrorKind, Gateway, Stopped,
    approvals::{Answer, Approver, Binding, End, Question},
    decide::built_in,
    diff::{CONTEXT, unified_diff},
    error::Failure,
    turn::Turn,
};
use crate::{
    backup::Saved,
    model::{Access, OperationKind, Session, WorkspacePath},
    ops::{Change, Sealed},
    policy::{Decision, Query},
};

/// Longest content of which a diff is made, in bytes.
const LONGEST: u64 = 1 << 20;
/// Longest diff that is shown, in bytes.
const LONGEST_DIFF: usize = 64 << 10;

/// Instead of a diff.
const TOO_LARGE: &str = "the content is too large to be shown";

const SECRET: &str = "the content has secrets and is not shown";

/// A request that stopped because a person must be asked.
#[derive(Debug)]
pub(super) struct Asking {
    binding: Binding,
    rules: Vec<Decision>,
    change: String,
}

impl Asking {
    /// The denial where nobody can be asked.
    pub(super) fn refused(self) -> Decision {
        let reason = "a person has to be asked, and a batch asks nobody; send it alone";
        match self.rules.into_iter().next() {
            Some(rule) => Decision { reason: Some(reason.to_owned()), ..rule.denying() },
            None => built_in("default", reason),
        }
    }
}

/// What a person said yes to.
#[derive(Debug)]
pub(super) struct Approved {
    binding: Binding,
    /// The record of the answer.
    seq: u64,
}

impl Turn<'_> {
    /// Goes on if no rule asks, or if exactly this was approved; writes into
    /// the record on what grounds. `change` describes what would be done.
    pub(super) fn heed(
        &self,
        draft: &mut Draft,
        change: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.reservations.observe(draft);
        let rules = self.reservations.asks();
        let Some(first) = rules.first() else {
            return Ok(());
        };
        let moved = draft.facts.as_ref().and_then(|facts| facts.get("moved")?.as_str());
        let binding = Binding {
            operation: self.operation.kind(),
            path: draft.resolved.clone().or_else(|| draft.path.clone()).unwrap_or_default(),
            to: draft.to.clone(),
            before: draft.before,
            after: draft.after,
            moved: moved.map(str::to_owned),
            policy_sha256: self.policy.sha256().to_owned(),
            rules: rules.iter().map(|rule| rule.rule.clone()).collect(),
        };
        let seq = match (self.approved, self.gate.approvals.granted(&self.session.id, &binding)) {
            (Some(approved), _) if approved.binding == binding => approved.seq,
            (Some(_), _) => return Err(stale(first)),
            (None, Some(seq)) => seq,
            (None, None) => {
                let asking = Asking { binding, change: change(), rules };
                return Err(Failure::Ask(Box::new(asking)));
            }
        };
        super::record::decide(draft, first);
        draft.decision = Some("allow".to_owned());
        draft.facts.get_or_insert_default().insert("approval".to_owned(), seq.into());
        Ok(())
    }

    /// What comes of a failure where a rule asks: the question. It tells what is
    /// there or not, and whoever may not look without a person hears of that after a
    /// yes.
    pub(super) fn heed_failing(&self, draft: &mut Draft, failure: Failure) -> Failure {
        use crate::model::Operation as O;
        let is_told =
            matches!(failure, Failure::Ask(_) | Failure::Ledger(_) | Failure::Answered(_));
        let is_operators = matches!(self.operation, O::Recall { .. } | O::Restore { .. });
        let asks = !self.reservations.asks().is_empty();
        if is_told || is_operators || !asks || self.is_denied_by_name() || self.may_look(draft) {
            return failure;
        }
        let change = || match self.operation.kind().is_mutation() {
            // There is nothing to show of it.
            true => format!("{}, which fails as things are", self.named()),
            false => self.discloses(),
        };
        self.heed(draft, change).err().unwrap_or(failure)
    }

    /// Whether the names that were asked for are enough to refuse the request,
    /// whatever is there.
    fn is_denied_by_name(&self) -> bool {
        let decider = self.decider();
        let to = match self.operation {
            crate::model::Operation::Rename { to, .. } => Some(to),
            _ => None,
        };
        decider.names(self.operation.path()).is_err()
            || to.is_some_and(|to| decider.name(Access::Write, to).is_deny())
    }

    /// Whether the agent may list and read what the request is about without asking
    /// anybody.
    fn may_look(&self, draft: &Draft) -> bool {
        let paths = [&draft.path, &draft.resolved, &draft.to];
        let kinds = [(OperationKind::Stat, Access::List), (OperationKind::Read, Access::Read)];
        paths.into_iter().flatten().all(|path| {
            WorkspacePath::parse(path).is_ok_and(|path| {
                kinds.into_iter().all(|(operation, access)| {
                    let agent = &self.session.agent;
                    let query = Query { agent, operation, access, path: &path };
                    self.policy.evaluate(&query).is_allow()
                })
            })
        })
    }

    /// What a request for content or names would do, for a person.
    pub(super) fn discloses(&self) -> String {
        format!("discloses `{}`", self.operation.path())
    }

    fn named(&self) -> String {
        format!("{} `{}`", self.operation.kind(), self.operation.path())
    }

    /// What a change would do, for a person: of a file's content a unified
    /// diff from what the vault keeps.
    pub(super) fn describe(
        &self,
        saved: &[Saved],
        sealed: &Sealed<Box<dyn Change + '_>>,
    ) -> String {
        use crate::model::Operation as O;
        let path = sealed.permit().path();
        match (self.operation, sealed.content()) {
            (O::Rename { to, .. }, _) => {
                let replaced = if saved.is_empty() { "" } else { ", replacing what is there" };
                format!("renames `{path}` to `{to}`{replaced}")
            }
            (O::Mkdir { .. }, _) => format!("makes the directory `{path}`"),
            (O::Restore { backup, .. }, _) => format!("puts the backup {backup} at `{path}`"),
            (O::Remove { recursive, .. }, _) => match self.kept(saved) {
                Some(old) if !recursive => match self.shown(path, old) {
                    Some(old) => diff(path.as_str(), &old, &[], true),
                    None => SECRET.to_owned(),
                },
                _ if *recursive => format!("removes `{path}` with everything in it"),
                _ => format!("removes `{path}`"),
            },
            (_, Some(new)) => match self.kept(saved) {
                Some(old) => match (self.shown(path, old), self.shown(path, new.to_vec())) {
                    (Some(old), Some(new)) => diff(path.as_str(), &old, &new, false),
                    _ => SECRET.to_owned(),
                },
                None => TOO_LARGE.to_owned(),
            },
            (_, None) => self.named(),
        }
    }

    /// The content as the policy lets a reader see it.
    fn shown(&self, path: &WorkspacePath, content: Vec<u8>) -> Option<Vec<u8>> {
        self.context().shown(path, content)
    }

    /// What the vault keeps of what is replaced; nothing for a new file.
    fn kept(&self, saved: &[Saved]) -> Option<Vec<u8>> {
        // The buffer, where there is one, is what the agent saw; it is kept
        // last.
        let Some(saved) = saved.last() else { return Some(Vec::new()) };
        let vault = &self.gate.vault;
        let entry = vault.entry(saved).ok()?;
        let mut old = Vec::new();
        vault.content(&entry).ok()?.take(LONGEST + 1).read_to_end(&mut old).ok()?;
        (old.len() as u64 <= LONGEST).then_some(old)
    }
}

/// A unified diff, at most so long.
fn diff(path: &str, old: &[u8], new: &[u8], removed: bool) -> String {
    if new.len() as u64 > LONGEST {
        return TOO_LARGE.to_owned();
    }
    let (Ok(old), Ok(new)) = (str::from_utf8(old), str::from_utf8(new)) else {
        return format!("binary content: {} bytes become {}", old.len(), new.len());
    };
    if old == new {
        return if removed { format!("removes the empty file `{path}`") } else { String::new() };
    }
    let (from, to) = match (old.is_empty(), removed) {
        (true, _) => ("/dev/null".to_owned(), format!("b/{path}")),
        (_, true) => (format!("a/{path}"), "/dev/null".to_owned()),
        _ => (format!("a/{path}"), format!("b/{path}")),
    };
    let text = unified_diff(old, new, (&from, &to), CONTEXT);
    let Some((end, _)) = text.char_indices().take_while(|(at, _)| *at <= LONGEST_DIFF).last()
    else {
        return text;
    };
    if text.len() <= LONGEST_DIFF {
        return text;
    }
    let shown = text.get(..end).unwrap_or_default();
    let shown = shown.rsplit_once('\n').map_or(shown, |(lines, _)| lines);
    format!("{shown}\n(the rest of the change, {} bytes, is not shown)\n", text.len() - shown.len())
}

fn stale(decision: &Decision) -> Failure {
    let reason = "what would be done now is not what was approved; ask again".to_owned();
    Failure::Denied(Box::new(Decision { reason: Some(reason), ..decision.clone().denying() }))
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
        let Asking { binding, rules, change } = asking;
        // What was prepared is given up and will be prepared again.
        (draft.backup, draft.temp) = (None, None);
        if let Some(facts) = &mut draft.facts {
            facts.retain(|name, _| !name.starts_with("buffer"));
        }
        let Some(first) = rules.first().cloned() else {
            return Err(Stopped::because(
                draft,
                Failure::Denied(Box::new(built_in("default", "nothing asks"))),
            ));
        };
        super::record::decide(&mut draft, &first);
        let Ok(id) = random_id() else {
            let failure = built_in("approval.id", "no random bytes for a question");
            return Err(Stopped::because(draft, Failure::Denied(Box::new(failure))));
        };
        draft.facts.get_or_insert_default().insert("question".to_owned(), id.clone().into());
        let asked = Draft { counts: None, ..draft.clone() };
        let question = Question {
            id,
            session: session.clone(),
            asked_path: draft.path.clone().unwrap_or_default(),
            binding: binding.clone(),
            rules,
            change,
            bytes: draft.bytes,
            timeout,
            since: std::time::Instant::now(),
        };
        let Some(ticket) = self.approvals.open(question, self.turns.is_some()) else {
            let reason = Some("too many requests wait for a person already".to_owned());
            let denied = Decision { reason, ..first.denying() };
            return Err(Stopped::because(draft, Failure::Denied(Box::new(denied))));
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
        let denied = Decision { reason: Some(reason.to_owned()), ..first.denying() };
        Err(Stopped::because(draft, Failure::Denied(Box::new(denied))))
    }
}

fn random_id() -> Result<String, rustix::io::Errno> {
    let mut bytes = [0_u8; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:08x}", u32::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_says_what_becomes_of_the_file() {
        let made = diff("a", b"", b"x\n", false);
        assert!(made.starts_with("--- /dev/null\n+++ b/a\n") && made.contains("\n+x"), "{made}");
        let gone = diff("a", b"x\n", b"", true);
        assert!(gone.contains("+++ /dev/null") && gone.contains("\n-x"), "{gone}");
        assert_eq!(diff("a", b"\xff", b"x", false), "binary content: 1 bytes become 1");
    }

    #[test]
    fn a_long_diff_is_cut_at_a_line_and_says_so() {
        let new = "żółć\n".repeat(50_000);
        let shown = diff("a", b"", new.as_bytes(), false);
        assert!(shown.len() < LONGEST_DIFF + 200, "{}", shown.len());
        assert!(shown.contains("\n(the rest of the change, "), "{shown}");
    }
}
