//! The service's own log: events that belong to no workspace.
//!
//! A log in the service's state directory, with starts and stops, workers, changes of
//! the configuration, and failed logins. The broker writes it. It contains no content
//! and no token.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use crate::{
    app::{
        audit_log::{open_audit_log, own_key},
        failure::{Context as _, Failure},
        session::{random_id, user},
        state_directory, state_owner,
    },
    gateway::{AuditLog, LogError},
    model::Transport,
};

/// The log's name in messages.
const LOG: &str = "the service's log";
/// Maximum time for which records wait for a checkpoint.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// The name of its copy beneath a target, which no workspace can have.
pub(super) const COPY: &str = "service.log";
/// Maximum of failed logins, and of refused sessions, per minute that are recorded
/// separately; further ones are counted.
const MAX_SINGLE_RECORDS: u32 = 100;
/// Time for which they are counted before they are recorded together.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// The log.
pub(super) struct ServiceLog {
    audit_log: AuditLog,
    user: String,
    session: String,
    /// The time of the first record that no checkpoint covers.
    uncovered: Option<Instant>,
    /// The beginning of the current count of refusals.
    since: Instant,
    logins: Count,
    sessions: Count,
    broken: bool,
}

/// A refusal of a request from the network.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    /// The token is no agent's.
    Login,
    /// The agent may not have the session, or not now.
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

/// The number of refusals in the current period.
#[derive(Default)]
struct Count {
    singly: u32,
    together: u64,
}

impl Count {
    /// Returns true if a refusal, which stands for `attempts`, is recorded separately.
    fn has_room(&mut self, attempts: u64) -> bool {
        let has_room = self.singly < MAX_SINGLE_RECORDS;
        if has_room {
            self.singly += 1;
        } else {
            self.together = self.together.saturating_add(attempts);
        }
        has_room
    }
}

impl ServiceLog {
    /// Opens the log in the directory `path`, which is created if it is missing and must belong to
    /// no workspace.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let (path, state) = state_directory::open(path)?;
        state_owner::check_service(&state, &path)?;
        state_directory::mark(&state).or_fail("cannot write the state directory's format")?;
        let audit_log = open_audit_log(&state, Some(own_key(&state, LOG)?), LOG)?;
        let (session, user) = (random_id()?, user());
        Ok(Self {
            audit_log,
            user,
            session,
            uncovered: None,
            since: Instant::now(),
            logins: Count::default(),
            sessions: Count::default(),
            broken: false,
        })
    }

    /// Returns true if it could not be written: no session begins any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Records the start of the service.
    pub(super) fn start(&mut self, facts: BTreeMap<String, Value>) -> Result<(), Failure> {
        let draft = Draft { facts: Some(facts), ..self.draft(None) };
        self.put(Kind::Start, draft, true).or_fail("cannot record the start")
    }

    /// Records an event.
    pub(super) fn note(&mut self, op: &str, facts: BTreeMap<String, Value>) {
        let result = Some("ok".to_owned());
        let draft = Draft { facts: Some(facts), result, ..self.draft(Some(op)) };
        self.try_put(draft);
    }

    /// Records a refusal or a failure.
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

    /// Records a refusal, separately or, if there are too many, with others of the
    /// same kind: refusals of known agents must not hide wrong tokens.
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

    /// Records refusals that the front made without asking; they must not fill the
    /// log.
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

    /// Returns the time of the next due work.
    pub(super) fn next(&self) -> Option<Instant> {
        let counted = self.logins.together > 0 || self.sessions.together > 0;
        let settle = counted.then_some(self.since + SUMMARY_INTERVAL);
        [self.uncovered.map(|since| since + CHECKPOINT_INTERVAL), settle]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does due work.
    pub(super) fn handle_deadlines(&mut self) {
        self.settle(false);
        if self.uncovered.is_some_and(|since| since.elapsed() >= CHECKPOINT_INTERVAL) {
            self.uncovered = None;
            if let Err(error) = self.audit_log.checkpoint() {
                errln!("portcullis: warning: no checkpoint of the service's log: {error}");
            }
        }
    }

    /// Records the stop.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.settle(true);
        let draft = self.draft(None);
        let unsigned = self.audit_log.close(draft).or_fail("cannot record the stop")?;
        if let Some(error) = unsigned {
            errln!("portcullis: warning: no checkpoint of the service's log: {error}");
        }
        Ok(())
    }

    /// Records refusals that were counted.
    fn settle(&mut self, now: bool) {
        if !now && self.since.elapsed() < SUMMARY_INTERVAL {
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
            transport: Some(Transport::Serve.as_str().to_owned()),
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
        self.audit_log.note(kind, draft, durable).map(drop)
    }
}
