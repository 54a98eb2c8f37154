//! The gate itself: decide → keep the old bytes → record → act → record.
//!
//! This is the only caller of `ops`, and the only place that puts decision,
//! backup, record and effect in their order. It knows no protocol.

mod approvals;
mod asking;
mod authorizer;
mod batch;
mod diff;
mod error;
mod events;
mod following;
mod heralds;
mod keeping;
mod limits;
mod locks;
mod numbers;
mod pending_approval;
mod record;
mod recovery;
mod redress;
mod refusals;
mod reload;
mod request;
mod reservations;
mod restoration;
mod saved;
mod search;
mod showing;
mod span;
mod transaction;
mod turns;
mod watch;

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use cap_std::fs::Dir;
use portcullis_audit::Receipt;

pub use approvals::{Answer, AnswerError, Approvals, Approver, Binding, Nobody, Question, Ticket};
pub use batch::BatchError;
pub use diff::{CONTEXT, unified_diff};
pub use error::{Error, ErrorKind, Refusal};
pub use following::Following;
pub use heralds::Herald;
pub use numbers::{Decided, Numbers, Times};
pub use recovery::RecoveryError;
pub use reload::ReloadError;
pub use turns::Shares;
pub use watch::Watching;

use crate::{
    backup::{BackupMaintenance, BackupStore},
    ledger::AuditLog,
    model::{Operation, Session},
    ops::{
        Committed, Content, Entries, Entry, Follower, Found, Known, Matches, NameLocks, Names,
        Source, Subscription, Unfollowed, Watcher,
    },
    policy::{Policy, SecretKey},
    view::WorkspaceView,
    workspace::Workspace,
};
use heralds::Heralds;
use limits::Meters;
use locks::Locks;
use numbers::Counter;
use refusals::Refusals;
use turns::Turns;

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
    refusals: Refusals,
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
            refusals: Refusals::default(),
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
}
