//! The gate itself: decide → keep the old bytes → record → act → record.
//!
//! This is the only caller of `ops`, and the only place that puts decision,
//! backup, record and effect in their order. It knows no protocol.

mod approvals;
mod asking;
mod batch;
mod decide;
mod diff;
mod error;
mod events;
mod following;
mod keeping;
mod limits;
mod locks;
mod numbers;
mod record;
mod recovery;
mod redress;
mod reload;
mod reservations;
mod restoration;
mod search;
mod showing;
mod span;
mod turn;
mod turns;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use cap_std::fs::Dir;
use portcullis_audit::{Draft, Receipt};

pub use approvals::{Answer, AnswerError, Approvals, Approver, Binding, Nobody, Question, Ticket};
pub use batch::BatchError;
pub use diff::{CONTEXT, unified_diff};
pub use error::{Error, ErrorKind, Refusal};
pub use following::Following;
pub use numbers::{Decided, Numbers, Times};
pub use recovery::RecoveryError;
pub use reload::{Herald, ReloadError};
pub use turns::Shares;
pub use watch::Watching;

use crate::{
    backup::{BackupMaintenance, BackupStore},
    ledger::AuditLog,
    model::{Operation, Session},
    ops::{
        Committed, Content, Entries, Entry, Findings, Follower, Found, Known, Matches, NameLocks,
        Names, Source, Subscription, Unfollowed, Watcher,
    },
    policy::{Decision, Policy, SecretKey},
    view::WorkspaceView,
    workspace::Workspace,
};
use asking::Approved;
use error::Failure;
use limits::{Meter, Meters};
use locks::{Locks, changed_paths};
use numbers::Counter;
use redress::Terms;
use reload::Heralds;
use reservations::Reservations;
use turn::Turn;
use turns::Turns;

/// How often a request is begun again because something moved under it.
const ATTEMPTS: usize = 16;

/// A gate in front of one workspace. It can be used by many threads at once.
#[derive(Debug)]
pub struct Gateway {
    workspace: Workspace,
    policy: RwLock<Arc<Policy>>,
    approvals: Arc<Approvals>,
    ledger: AuditLog,
    vault: Arc<BackupStore>,
    locks: Locks,
    meters: Meters,
    key: SecretKey,
    known: Known,
    name_locks: NameLocks,
    watcher: Watcher,
    heralds: Heralds,
    /// Whether each file of which a search discloses lines has a record.
    search_files: bool,
    /// Where many share this gate.
    turns: Option<Turns>,
    counter: Option<Arc<Counter>>,
}

/// What a request gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The record of it: of a change its intent, which is durable.
    pub receipt: Receipt,
    /// The answer.
    pub output: Output,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A file's content.
    Content(Content),
    /// A directory's entries.
    Entries(Entries),
    /// A directory's names.
    Names(Names),
    /// One entry.
    Stat(Entry),
    /// What a search by name found.
    Found(Found),
    /// What a search in content found.
    Matches(Matches),
    /// What changes from now on.
    Watching(Subscription),
    /// The workspace was changed.
    Changed(Changed),
}

impl Output {
    /// Bytes of content that went out or in.
    fn weight(&self) -> u64 {
        match self {
            Self::Content(content) => u64::try_from(content.bytes.len()).unwrap_or(u64::MAX),
            Self::Changed(changed) => changed.bytes.unwrap_or(0),
            _ => 0,
        }
    }
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Whether it is on the disk, in the editor, or there was nothing to do.
    pub committed: Committed,
    /// Bytes stored.
    pub bytes: Option<u64>,
    /// The vault entry that keeps what was replaced.
    pub backup: Option<String>,
}

/// Who waits for a request.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Whom a rule that asks is put to.
    pub approver: &'a dyn Approver,
    /// Who follows a search.
    pub follower: &'a dyn Follower,
}

/// A request that was not done, before that is recorded.
struct Stopped {
    draft: Draft,
    why: Failure,
}

impl Gateway {
    /// The target of the spans of requests.
    pub const SPANS: &str = span::SPANS;

    /// Opens the backups in the state directory `state`, puts the parts together and
    /// settles what dead gates left behind. `key`
    /// is what placeholders of secrets are made with; every gate over the same
    /// state must have the same one.
    ///
    /// # Errors
    /// When the backups cannot be opened, or the log cannot be read or written, or holds
    /// an intent that makes no sense: the workspace is not served then.
    pub fn open(
        workspace: Workspace,
        policy: Arc<Policy>,
        ledger: AuditLog,
        state: &Dir,
        key: SecretKey,
    ) -> Result<Self, RecoveryError> {
        let vault = BackupStore::open(state, *policy.backups()).map_err(RecoveryError::Backups)?;
        let vault = Arc::new(vault.of_gate(ledger.boot()));
        let (locks, meters, approvals) = (Locks::default(), Meters::default(), Arc::default());
        let policy = RwLock::new(policy);
        let name_locks = NameLocks::new(ledger.lock_file("names")?);
        let gateway = Self {
            workspace,
            policy,
            approvals,
            ledger,
            vault,
            locks,
            meters,
            key,
            known: Known::default(),
            name_locks,
            watcher: Watcher::default(),
            heralds: Heralds::default(),
            search_files: true,
            turns: None,
            counter: None,
        };
        let settled = recovery::run(&gateway)?;
        if settled > 0 {
            tracing::warn!(settled, "settled changes that a gate left unfinished");
        }
        Ok(gateway)
    }

    /// From now on a search has one record of its own, and the files of which
    /// it discloses lines have none.
    pub fn summarise_searches(&mut self) {
        self.search_files = false;
    }

    /// From now on requests wait for their turn, and an agent has a bounded
    /// share of the gate. Its sessions are bounded where they are let in.
    pub fn share(&mut self, shares: Shares) {
        self.meters.count_all();
        self.turns = Some(Turns::new(shares));
    }

    /// From now on this gate counts what it does.
    pub fn count(&mut self) {
        let counter = Arc::<Counter>::default();
        self.counter = Some(Arc::clone(&counter));
        self.ledger.observe(move |kind, draft| {
            counter.record(kind, draft);
            span::decided(kind, draft);
        });
    }

    /// What it has done since it counts.
    pub fn numbers(&self) -> Numbers {
        let counted = self.counter.as_ref().map(|counter| counter.numbers()).unwrap_or_default();
        let (waiting, running) = self.turns.as_ref().map(Turns::count).unwrap_or_default();
        Numbers { waiting, running, uncovered: self.ledger.uncovered(), ..counted }
    }

    /// The policy in force now; a request is judged by one alone.
    pub fn policy(&self) -> Arc<Policy> {
        // A panic elsewhere left one policy or the other behind.
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The requests that wait for a person.
    pub fn approvals(&self) -> Arc<Approvals> {
        Arc::clone(&self.approvals)
    }

    /// The random identifier of this process's lifetime in every record.
    pub fn boot(&self) -> &str {
        self.ledger.boot()
    }

    /// The backups, to be read.
    pub fn backups(&self) -> &BackupStore {
        &self.vault
    }

    /// The maintenance of the backups.
    pub fn maintenance(&self) -> BackupMaintenance {
        BackupMaintenance::of(&self.vault)
    }

    /// A read-only view of the workspace.
    pub fn workspace(&self) -> WorkspaceView<'_> {
        self.workspace.view()
    }

    /// Decides about an operation, does it if it is allowed, and records both.
    /// Waits where a rule asks for a person, who is told by nobody: the door
    /// must have another way ([`Gateway::approvals`]).
    ///
    /// # Errors
    /// When it was denied or failed; the error carries the record of that. An
    /// error without a receipt means that no record could be written: the gate
    /// serves nothing any more.
    pub fn handle(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
    ) -> Result<Reply, Error> {
        self.handle_asking(session, operation, source, &Nobody)
    }

    /// The same; where a rule asks for a person, `approver` asks.
    ///
    /// # Errors
    /// As [`Gateway::handle`].
    pub fn handle_asking(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        approver: &dyn Approver,
    ) -> Result<Reply, Error> {
        self.handle_for(session, operation, source, Caller { approver, follower: &Unfollowed })
    }

    /// The same for a caller who also follows a search while it is under way.
    ///
    /// # Errors
    /// As [`Gateway::handle`]; a search that is given up is
    /// [`ErrorKind::Cancelled`].
    pub fn handle_for(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        caller: Caller<'_>,
    ) -> Result<Reply, Error> {
        let kind = operation.kind().as_str();
        let span = span::of(session, kind);
        let _inside = span.enter();
        let begun = Instant::now();
        let answer = self.answer(session, operation, source, caller);
        let time = begun.elapsed();
        if let Some(counter) = &self.counter {
            counter.answered(kind, time);
        }
        let receipt = match &answer {
            Ok(reply) => Some(&reply.receipt),
            Err(error) => error.receipt(),
        };
        let result = answer.as_ref().map_or_else(|error| error.kind().as_str(), |_| "ok");
        span::answered(&span, receipt, result);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(record = receipt.map(|receipt| receipt.seq), micros, "answered");
        answer
    }

    fn answer(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        caller: Caller<'_>,
    ) -> Result<Reply, Error> {
        let policy = self.policy();
        let begun = self.meters.of(&session.id, policy.limits()).and_then(|meter| {
            meter.as_ref().map_or(Ok(()), |meter| meter.begin(Instant::now()))?;
            Ok(meter)
        });
        let meter = match begun {
            Ok(meter) => meter,
            Err(decision) => {
                let draft = record::operation(session, &policy, operation);
                return Err(self.fail(draft, Failure::Denied(Box::new(decision)), None));
            }
        };
        let terms = Terms { meter: meter.as_ref(), facts: &BTreeMap::new(), redress: false };
        self.carry_out(session, operation, source, terms, caller)
    }

    /// Does what may be done, asking a person where a rule says so.
    fn carry_out(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        terms: Terms<'_>,
        caller: Caller<'_>,
    ) -> Result<Reply, Error> {
        let meter = terms.meter.map(|meter| &**meter);
        let fail = |stopped: Box<Stopped>| self.fail(stopped.draft, stopped.why, meter);
        let attempt = |approved: Option<&Approved>| {
            self.attempt(session, operation, source, terms, caller.follower, approved)
        };
        let (draft, asking) = match attempt(None) {
            Ok(reply) => return Ok(reply),
            Err(stopped) => match *stopped {
                Stopped { draft, why: Failure::Ask(asking) } => (draft, *asking),
                stopped => return Err(fail(Box::new(stopped))),
            },
        };
        // Nothing is held while a person thinks.
        let timeout = self.policy().approval_timeout();
        self.ask(session, draft, asking, timeout, caller.approver)
            .and_then(|yes| attempt(Some(&yes)))
            .map_err(fail)
    }

    /// Tries until nothing moves under it, each time under the policy of then.
    fn attempt(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        Terms { meter, facts, redress }: Terms<'_>,
        follower: &dyn Follower,
        approved: Option<&Approved>,
    ) -> Result<Reply, Box<Stopped>> {
        let denied = |decision| {
            let mut draft = record::operation(session, &self.policy(), operation);
            draft.facts = (!facts.is_empty()).then(|| facts.clone());
            Box::new(Stopped { draft, why: Failure::Denied(Box::new(decision)) })
        };
        // The session may have been closed while a person thought.
        let meter_of_yes = meter.filter(|_| approved.is_some());
        meter_of_yes.map_or(Ok(()), |meter| meter.open()).map_err(denied)?;
        let turn = self.turns.as_ref().map(|turns| turns.enter(session)).transpose();
        let pass = turn.map_err(denied)?;
        let _held = self.locks.hold(changed_paths(operation));
        let mut attempt = 1;
        loop {
            let policy = self.policy();
            let mut draft = record::operation(session, &policy, operation);
            draft.facts = (!facts.is_empty()).then(|| facts.clone());
            let (reservations, findings) = (Reservations::default(), Findings::default());
            let turn = Turn {
                gate: self,
                policy: &policy,
                session,
                operation,
                source,
                meter,
                reservations,
                findings: &findings,
                follower,
                redress,
                approved,
            };
            match turn.run(&mut draft) {
                Err(Failure::Moved) if attempt < ATTEMPTS => attempt += 1,
                Ok(reply) => {
                    if let Some(pass) = &pass {
                        pass.charge(reply.output.weight());
                    }
                    return Ok(reply);
                }
                Err(why) => {
                    let why = turn.heed_failing(&mut draft, why);
                    record::findings(&mut draft, findings.take());
                    // A denial is one, whatever was let pass before it.
                    if !matches!(why, Failure::Denied(_) | Failure::Hidden(..)) {
                        turn.reservations.observe(&mut draft);
                    }
                    return Err(Box::new(Stopped { draft, why }));
                }
            }
        }
    }

    /// Records a request that was not done and renders why.
    fn fail(&self, mut draft: Draft, failure: Failure, meter: Option<&Meter>) -> Error {
        let error = match failure {
            Failure::Moved => Error::new(
                ErrorKind::Conflict,
                "the path keeps changing, or another process holds a lease on the file; try again",
            ),
            Failure::Denied(decision) => {
                record::decide(&mut draft, &decision);
                Error::denied(&decision)
            }
            Failure::Hidden(decision, reason) => {
                record::decide(&mut draft, &decision);
                record::fail(&mut draft, &Error::denied(&decision));
                Error::denied(&Decision::built_in_denial(decide::HIDDEN, reason))
            }
            // A person is asked once; whoever still asks has gone astray.
            Failure::Ask(_) => Error::denied(&Decision::built_in_denial("default", "asked twice")),
            Failure::Rendered(error) => error,
            Failure::Operation(error) => error::render(&error),
            Failure::Log(error) => return error.into(),
            Failure::Answered(error) => {
                if closes(&error, meter) {
                    self.end_subscriptions(draft.session.as_deref());
                }
                return error;
            }
        };
        self.record_error(draft, error, meter)
    }

    /// Records and counts; the denial that closes the session says so.
    fn record_error(&self, mut draft: Draft, error: Error, meter: Option<&Meter>) -> Error {
        record::fail(&mut draft, &error);
        let closed = closes(&error, meter);
        if closed {
            draft.facts.get_or_insert_default().insert("sessionClosed".to_owned(), true.into());
        }
        let session = draft.session.clone().filter(|_| closed);
        let error = match self.ledger.record(draft) {
            Ok(receipt) => error.with_receipt(receipt),
            Err(error) => error.into(),
        };
        self.end_subscriptions(session.as_deref());
        error
    }

    /// Tells a session that was closed of no more changes.
    fn end_subscriptions(&self, session: Option<&str>) {
        if let Some(session) = session {
            self.watcher.end_session(session);
            self.record_ended(self.watcher.ended());
        }
    }
}

/// Counts a denial, if it is one; whether that closes the session.
fn closes(error: &Error, meter: Option<&Meter>) -> bool {
    error.kind() == ErrorKind::Denied && meter.is_some_and(|meter| meter.denied(error.rule()))
}
