//! Requests that wait for an operator's approval.
//!
//! A question goes to the transport that the request came by ([`Approver`]) and to every reader of
//! [`Approvals::waiting`]. The first answer counts. This module decides neither what is asked nor
//! carries out what was approved; the code that carries a request out checks that the answer covers
//! it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use portcullis_audit::Hash;
use serde_json::Value;

use super::{lock::lock, waiting_observer::ApprovalObserver};
use crate::{
    model::{OperationKind, Session},
    policy::{Decision, ObjectKind},
};

/// Maximum number of approvals of one session in its lifetime.
const MAX_GRANTS: usize = 1024;
/// Number of ended questions that are remembered, to report the end to a later answer.
const MAX_REMEMBERED: usize = 256;

/// The exact request that is approved: the same request with any field changed is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The operation.
    pub operation: OperationKind,
    /// The canonical path, `.` for the root; of a connection host, port and credential, of a command
    /// the beginning of its line.
    pub path: String,
    /// The new canonical path of a rename.
    pub to: Option<String>,
    /// SHA-256 of what is replaced, removed or disclosed.
    pub before: Option<Hash>,
    /// SHA-256 of the editor's unsaved text that is replaced, where the disk has
    /// another one.
    pub buffer: Option<String>,
    /// SHA-256 of the content after the request.
    pub after: Option<Hash>,
    /// SHA-256 of what a rename moves and its permission bits; of a directory, over everything in
    /// it.
    pub moved: Option<String>,
    /// The facts that the question shows of the entry that a rename moves or a removal removes.
    pub(super) object: Option<ShownObject>,
    /// Attributes that are set, as the record has them.
    pub attributes: Option<Value>,
    /// SHA-256 of a command with its arguments, variables and directory.
    pub command: Option<Hash>,
    /// SHA-256 of the policy in force; of a connection, of the policies of all workspaces, joined.
    pub policy_sha256: String,
    /// The ids of the rules that ask; of a connection, with their places and the labels that were
    /// read.
    pub rules: Vec<String>,
}

impl Binding {
    /// Makes the binding of a request that changes no content.
    pub(super) fn new(
        operation: OperationKind,
        path: String,
        policy_sha256: String,
        rules: Vec<String>,
    ) -> Self {
        Self {
            operation,
            path,
            to: None,
            before: None,
            buffer: None,
            after: None,
            moved: None,
            object: None,
            attributes: None,
            command: None,
            policy_sha256,
            rules,
        }
    }

    /// Returns the mode that is set.
    fn mode(&self) -> Option<&Value> {
        self.attributes.as_ref()?.get("mode")
    }
}

/// The facts that a question shows of an entry besides its names and contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShownObject {
    pub(super) kind: ObjectKind,
    /// The permission bits of a file that is moved.
    pub(super) mode: Option<u32>,
    /// True of a directory that is moved with an executable file.
    pub(super) has_executable: bool,
    /// True of a rename that replaces an entry.
    pub(super) replaces: bool,
}

/// A question to the operator.
#[derive(Debug, Clone)]
pub struct Question {
    /// Random, 8 hex digits, unique among those that wait.
    pub id: String,
    /// The session that sent the request.
    pub session: Session,
    /// The canonical path of the workspace.
    pub workspace: PathBuf,
    /// The request that would be carried out.
    pub binding: Binding,
    /// The path in the request.
    pub asked_path: String,
    /// The rules that ask, with their places and reasons.
    pub rules: Vec<Decision>,
    /// The change as a unified diff, or a sentence that says why there is none. Contains the file's
    /// content: not for the agent, nor for a client that may be the agent
    /// ([`Question::for_sender`]).
    pub change: String,
    /// The part that the sender of the request may see.
    pub(super) disclosed_part: DisclosedQuestion,
    /// Bytes that would be stored.
    pub bytes: Option<u64>,
    /// Timeout of the answer, if there is one.
    pub timeout: Option<Duration>,
    /// Time of the question.
    pub since: Instant,
}

/// The part of a question for the program that sent the request, which may be the agent: nothing
/// that the agent could not find out without a person.
#[derive(Debug, Clone)]
pub(super) struct DisclosedQuestion {
    pub(super) path: String,
    pub(super) to: Option<String>,
    pub(super) rules: Vec<Decision>,
    pub(super) change: String,
}

impl Question {
    /// Returns the question as the sender of the request may see it: without what the policy hides
    /// from the agent, and without the places of rules in policy files.
    #[must_use]
    pub fn for_sender(&self) -> Self {
        let DisclosedQuestion { path, to, rules, change } = self.disclosed_part.clone();
        let rules = rules.into_iter().map(Decision::without_place).collect();
        let binding = Binding { path, to, ..self.binding.clone() };
        Self { binding, rules, change, ..self.clone() }
    }
}

/// An operator's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Approves this request once.
    Once,
    /// Approves this request, and the same operation on the same path with the same mode (of a rename
    /// or removal also on the same kind of entry, and of a rename that replaces one only those that
    /// do), or the same command, for the rest of the session, as long as the policy stays in force.
    Session,
    /// Rejects the request.
    Reject,
}

impl Answer {
    /// Returns the word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
            Self::Reject => "rejected",
        }
    }
}

/// The reason why an answer had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No request of this id waits or has waited lately.
    #[error("no request `{0}` waits for an answer")]
    Unknown(String),
    /// The request was answered already, or no longer waits.
    #[error("the request `{id}` needs no answer any more: {how}")]
    Over {
        /// The id of the request.
        id: String,
        /// The end of the wait.
        how: String,
    },
}

/// Puts questions to the operator.
pub trait Approver: Sync {
    /// Shows the question and returns at once. Any thread may answer the ticket later.
    fn ask(&self, ticket: &Arc<Ticket>);

    /// Reports that the request no longer waits. Called once for each `ask`.
    fn over(&self, ticket: &Ticket);
}

/// The approver of transports that reach no person: only readers of the waiting requests can
/// answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct NoApprover;

impl Approver for NoApprover {
    fn ask(&self, _ticket: &Arc<Ticket>) {}

    fn over(&self, _ticket: &Ticket) {}
}

/// A request that waits.
#[derive(Debug)]
pub struct Ticket {
    question: Question,
    end: Mutex<Option<WaitOutcome>>,
    ended: Condvar,
}

/// The end of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    Answered { answer: Answer, by: String },
    TimedOut,
    Withdrawn,
}

impl WaitOutcome {
    pub(super) fn is_rejection(&self) -> bool {
        matches!(self, Self::Answered { answer: Answer::Reject, .. })
    }

    /// Returns the word in records.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Answered { answer, .. } => answer.as_str(),
            Self::TimedOut => "timeout",
            Self::Withdrawn => "withdrawn",
        }
    }

    fn sentence(&self, timeout: Option<Duration>) -> String {
        match self {
            Self::Answered { answer: Answer::Reject, by } => format!("rejected by {by}"),
            Self::Answered { by, .. } => format!("approved by {by}"),
            Self::TimedOut => timed_out(timeout),
            Self::Withdrawn => "the request was withdrawn".to_owned(),
        }
    }
}

/// Returns the sentence that an answer did not come in time.
pub(super) fn timed_out(timeout: Option<Duration>) -> String {
    let seconds = timeout.unwrap_or_default().as_secs();
    format!("it timed out: nobody answered within {seconds} s (`limits.approvalTimeout`)")
}

impl Ticket {
    pub(super) fn new(question: Question) -> Self {
        Self { question, end: Mutex::default(), ended: Condvar::new() }
    }

    /// Returns the question.
    pub fn question(&self) -> &Question {
        &self.question
    }

    /// Answers in the name of `by`, which the record repeats.
    ///
    /// # Errors
    /// When the waiting is over already.
    pub fn answer(&self, answer: Answer, by: &str) -> Result<(), AnswerError> {
        self.settle(WaitOutcome::Answered { answer, by: by.to_owned() })
    }

    /// Withdraws the request, because its sender did.
    pub fn withdraw(&self) {
        // The wait of a ticket that has ended needs no withdrawal.
        let _ = self.settle(WaitOutcome::Withdrawn);
    }

    fn settle(&self, end: WaitOutcome) -> Result<(), AnswerError> {
        let mut there = lock(&self.end);
        if let Some(before) = self.expire(&mut there) {
            let id = self.question.id.clone();
            return Err(AnswerError::Over { id, how: before.sentence(self.question.timeout) });
        }
        *there = Some(end);
        self.ended.notify_all();
        Ok(())
    }

    /// Returns the time at which the wait ends, if it has a limit.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.question.timeout.and_then(|timeout| self.question.since.checked_add(timeout))
    }

    /// Returns true once the wait has ended.
    pub fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// Returns the end of the wait, if it has come.
    pub(super) fn end(&self) -> Option<WaitOutcome> {
        self.expire(&mut lock(&self.end)).clone()
    }

    fn expire<'e>(&self, end: &'e mut Option<WaitOutcome>) -> &'e Option<WaitOutcome> {
        if end.is_none() && self.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
            *end = Some(WaitOutcome::TimedOut);
        }
        end
    }

    /// Waits for the end, which comes at the deadline at the latest, if there is one.
    pub(super) fn wait(&self) -> WaitOutcome {
        let mut end = lock(&self.end);
        loop {
            if let Some(end) = self.expire(&mut end) {
                return end.clone();
            }
            let Some(deadline) = self.deadline() else {
                end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            (end, _) = self.ended.wait_timeout(end, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The waiting requests of one gateway, and the approvals of its sessions.
#[derive(Debug, Default)]
pub struct Approvals {
    waiting: Mutex<BTreeMap<String, Arc<Ticket>>>,
    over: Mutex<VecDeque<(String, String)>>,
    granted: Mutex<HashMap<String, Vec<SessionApproval>>>,
    pub(super) observer: ApprovalObserver,
}

/// An approval for the rest of a session.
#[derive(Debug, PartialEq, Eq)]
struct SessionApproval {
    operation: OperationKind,
    path: String,
    to: Option<String>,
    object: Option<ShownObject>,
    command: Option<Hash>,
    /// The mode that is set, as the record has it.
    mode: Option<Value>,
    policy_sha256: String,
    rules: Vec<String>,
    /// Sequence number of the approval's record.
    seq: u64,
}

impl Approvals {
    /// Maximum number of requests that wait at once.
    pub const MAX_WAITING: usize = 16;

    /// Returns the requests that wait, the oldest first.
    pub fn waiting(&self) -> Vec<Arc<Ticket>> {
        let mut all: Vec<_> = lock(&self.waiting).values().cloned().collect();
        all.sort_by_key(|ticket| ticket.question.since);
        all
    }

    /// Answers the request `id` in the name of `by`.
    ///
    /// # Errors
    /// When no such request waits.
    pub fn answer(&self, id: &str, answer: Answer, by: &str) -> Result<Arc<Ticket>, AnswerError> {
        let ticket = lock(&self.waiting).get(id).cloned();
        match ticket {
            Some(ticket) => ticket.answer(answer, by).map(|()| ticket),
            None => {
                let over = lock(&self.over).iter().find(|(known, _)| known == id).cloned();
                Err(match over {
                    Some((id, how)) => AnswerError::Over { id, how },
                    None => AnswerError::Unknown(id.to_owned()),
                })
            }
        }
    }

    /// Adds a waiting request; `None` when too many wait. In a gateway that `is_shared` an agent has
    /// at most as many as it leaves to the others.
    pub(super) fn open(&self, question: Question, is_shared: bool) -> Option<Arc<Ticket>> {
        let mut waiting = lock(&self.waiting);
        let free = Self::MAX_WAITING.saturating_sub(waiting.len());
        if free == 0 || waiting.contains_key(&question.id) {
            return None;
        }
        let agent = &question.session.agent;
        let own = waiting.values().filter(|ticket| ticket.question.session.agent == *agent);
        if is_shared && own.count() >= free {
            return None;
        }
        let ticket = Arc::new(Ticket::new(question));
        waiting.insert(ticket.question.id.clone(), Arc::clone(&ticket));
        Some(ticket)
    }

    /// Removes a request whose wait has ended.
    pub(super) fn close(&self, ticket: &Ticket, end: &WaitOutcome) {
        let id = &ticket.question.id;
        let mut over = lock(&self.over);
        over.push_front((id.clone(), end.sentence(ticket.question.timeout)));
        over.truncate(MAX_REMEMBERED);
        drop(over);
        lock(&self.waiting).remove(id);
        self.report();
    }

    /// Remembers an approval for a session, with the sequence number of its record.
    pub(super) fn grant(&self, session: &str, binding: &Binding, seq: u64) {
        let mut granted = lock(&self.granted);
        let grants = granted.entry(session.to_owned()).or_default();
        // Other operations may be bound to other policies.
        grants.retain(|grant| {
            grant.operation != binding.operation || grant.policy_sha256 == binding.policy_sha256
        });
        // A further request is asked about again.
        if grants.len() < MAX_GRANTS {
            grants.push(SessionApproval {
                operation: binding.operation,
                path: binding.path.clone(),
                to: binding.to.clone(),
                object: binding.object,
                command: binding.command,
                mode: binding.mode().cloned(),
                policy_sha256: binding.policy_sha256.clone(),
                rules: binding.rules.clone(),
                seq,
            });
        }
    }

    /// Returns the record of the session's approval that covers `binding`.
    pub(super) fn granted(&self, session: &str, binding: &Binding) -> Option<u64> {
        let granted = lock(&self.granted);
        let covers = |grant: &&SessionApproval| {
            grant.operation == binding.operation
                && grant.path == binding.path
                && grant.to == binding.to
                && grant.object == binding.object
                && grant.command == binding.command
                && grant.mode.as_ref() == binding.mode()
                && grant.policy_sha256 == binding.policy_sha256
                && binding.rules.iter().all(|rule| grant.rules.contains(rule))
        };
        granted.get(session)?.iter().find(covers).map(|grant| grant.seq)
    }

    /// Forgets the approvals of a session that has ended.
    pub(super) fn forget(&self, session: &str) {
        lock(&self.granted).remove(session);
    }
}

#[cfg(test)]
mod tests;
