//! The service's own log: what belongs to no workspace.
//!
//! A chain like every other, in the service's state directory: when it began
//! and stopped, workers, changes of its configuration, and failed logins. The
//! broker writes it. It holds no content and no token.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use crate::{
    app::{
        audit_log::{open_ledger, own_key},
        failure::{Context as _, Failure},
        session::{random_id, user},
        state_directory,
    },
    gateway::{AuditLog, LogError},
    model::Door,
};

/// The log's name in messages.
const LOG: &str = "the service's log";
/// How long records may wait for a checkpoint.
const CHECKPOINT: Duration = Duration::from_secs(60);
/// Where copies of it go beneath a target: no workspace can be called so.
pub(super) const COPY: &str = "service.log";
/// Most failed logins, and most refused sessions, in a minute that have a record each;
/// the rest is counted.
const SINGLY: u32 = 100;
/// How long they are counted before they are recorded together.
const TOGETHER: Duration = Duration::from_secs(60);

/// The log.
pub(super) struct Journal {
    ledger: AuditLog,
    user: String,
    session: String,
    /// Since when there are records that no checkpoint covers.
    uncovered: Option<Instant>,
    /// Since when is counted what was refused.
    since: Instant,
    logins: Count,
    sessions: Count,
    broken: bool,
}

/// What is refused to whoever comes over the network.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    /// Their token is no agent's.
    Login,
    /// The agent may not have what it asks for, or not now.
    Session,
}

impl Refused {
    fn op(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Session => "session",
        }
    }
}

/// How often that was, within a while.
#[derive(Default)]
struct Count {
    singly: u32,
    together: u64,
}

impl Count {
    /// Whether one more has a record of its own, that stands for so many.
    fn has_room(&mut self, attempts: u64) -> bool {
        let has_room = self.singly < SINGLY;
        if has_room {
            self.singly += 1;
        } else {
            self.together = self.together.saturating_add(attempts);
        }
        has_room
    }
}

impl Journal {
    /// Opens the log in the directory `path`, which is made when it is missing.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let (_, state) = state_directory::open(path)?;
        let ledger = open_ledger(&state, Some(own_key(&state, LOG)?), LOG)?;
        let (session, user) = (random_id()?, user());
        Ok(Self {
            ledger,
            user,
            session,
            uncovered: None,
            since: Instant::now(),
            logins: Count::default(),
            sessions: Count::default(),
            broken: false,
        })
    }

    /// Whether it could not be written: nobody is let in any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Records that the service begins.
    pub(super) fn start(&mut self, facts: BTreeMap<String, Value>) -> Result<(), Failure> {
        let draft = Draft { facts: Some(facts), ..self.draft(None) };
        self.put(Kind::Start, draft, true).or_fail("cannot record the start")
    }

    /// Records something that happened.
    pub(super) fn note(&mut self, op: &str, facts: BTreeMap<String, Value>) {
        let result = Some("ok".to_owned());
        let draft = Draft { facts: Some(facts), result, ..self.draft(Some(op)) };
        self.try_put(draft);
    }

    /// Records something that was refused or failed.
    pub(super) fn deny(&mut self, op: &str, reason: &str, facts: BTreeMap<String, Value>) {
        let draft = Draft {
            decision: Some("deny".to_owned()),
            reason: Some(reason.to_owned()),
            result: Some("denied".to_owned()),
            facts: Some(facts),
            ..self.draft(Some(op))
        };
        self.try_put(draft);
    }

    /// Records what a peer was refused, alone or, when there is too much of it,
    /// with others of the same kind: agents that are known must not hide wrong
    /// tokens.
    pub(super) fn refused(
        &mut self,
        what: Refused,
        reason: &str,
        peer: &str,
        mut facts: BTreeMap<String, Value>,
    ) {
        self.settle(false);
        if self.count(what).has_room(1) {
            facts.insert("peer".to_owned(), json!(peer));
            self.deny(what.op(), reason, facts);
        }
    }

    /// Records so many that were refused unseen; the front says so, and must not
    /// fill the log with it.
    pub(super) fn throttled(&mut self, peer: &str, attempts: u64) {
        self.settle(false);
        if self.count(Refused::Login).has_room(attempts) {
            let facts = BTreeMap::from([
                ("peer".to_owned(), json!(peer)),
                ("attempts".to_owned(), json!(attempts)),
            ]);
            self.deny("login", "too many failed logins from this address", facts);
        }
    }

    fn count(&mut self, what: Refused) -> &mut Count {
        match what {
            Refused::Login => &mut self.logins,
            Refused::Session => &mut self.sessions,
        }
    }

    /// When there is something to do, if nothing comes before.
    pub(super) fn next(&self) -> Option<Instant> {
        let counted = self.logins.together > 0 || self.sessions.together > 0;
        let settle = counted.then_some(self.since + TOGETHER);
        [self.uncovered.map(|since| since + CHECKPOINT), settle].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) fn tend(&mut self) {
        self.settle(false);
        if self.uncovered.is_some_and(|since| since.elapsed() >= CHECKPOINT) {
            self.uncovered = None;
            if let Err(error) = self.ledger.checkpoint() {
                errln!("portcullis: warning: no checkpoint of the service's log: {error}");
            }
        }
    }

    /// Records the stop.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.settle(true);
        let draft = self.draft(None);
        let unsigned = self.ledger.close(draft).or_fail("cannot record the stop")?;
        if let Some(error) = unsigned {
            errln!("portcullis: warning: no checkpoint of the service's log: {error}");
        }
        Ok(())
    }

    /// Records what was only counted.
    fn settle(&mut self, now: bool) {
        if !now && self.since.elapsed() < TOGETHER {
            return;
        }
        self.since = Instant::now();
        for what in [Refused::Login, Refused::Session] {
            let together = std::mem::take(self.count(what)).together;
            if together > 0 {
                let facts = BTreeMap::from([("attempts".to_owned(), json!(together))]);
                self.deny(what.op(), "more refusals than have a record each", facts);
            }
        }
    }

    fn draft(&self, op: Option<&str>) -> Draft {
        Draft {
            session: Some(self.session.clone()),
            user: Some(self.user.clone()),
            door: Some(Door::Serve.as_str().to_owned()),
            op: op.map(str::to_owned),
            ..Draft::default()
        }
    }

    fn try_put(&mut self, draft: Draft) {
        if let Err(error) = self.put(Kind::Decision, draft, false) {
            self.broken = true;
            errln!("portcullis: error: cannot write the service's log: {error}");
        }
    }

    fn put(&mut self, kind: Kind, draft: Draft, durable: bool) -> Result<(), LogError> {
        self.uncovered.get_or_insert_with(Instant::now);
        self.ledger.note(kind, draft, durable).map(drop)
    }
}
