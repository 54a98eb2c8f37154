//! One session: its requests, decisions and changes, in order.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
    ops::ControlFlow,
};

use portcullis_audit::{Kind, RecordView, Segment};

use super::{
    Filter, Log, ScanOrder, Scanned,
    report::digest::findings,
    scan::{MAX_STORED_BYTES, OVERHEAD},
};
use crate::{
    change::{Change, was_made},
    model::{OperationKind, Transport},
    policy::nearest,
};

/// Maximum number of sessions that a name is taken for.
const MAX_NAMED: usize = 1000;

/// Minimum length of a text that is compared with the identifiers of sessions: a shorter one is
/// similar to many.
const MIN_SIMILAR: usize = 6;

/// A session's records in the order of the log.
#[derive(Debug)]
pub struct Session {
    /// Its identifier.
    pub id: String,
    /// Its events.
    pub events: Vec<Event>,
    /// The parts of the log that could not be read.
    pub scanned: Scanned,
}

/// One event. All texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A change, with its outcome.
    Change(Box<Change>),
    /// Any other record.
    Other(Box<OtherRecord>),
}

/// A record that is not about a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OtherRecord {
    /// Its index.
    pub seq: u64,
    /// The index of the record with its outcome.
    pub outcome: Option<u64>,
    /// Its time.
    pub t: String,
    /// Its kind.
    pub kind: String,
    /// The operation.
    pub op: Option<String>,
    /// The path.
    pub path: Option<String>,
    /// The new path of a rename.
    pub to: Option<String>,
    /// `allow` or `deny`; of a connection that was cut off `deny`, with the rule and the reason of
    /// its outcome.
    pub decision: Option<String>,
    /// True if the rule denies it and observe mode allowed it.
    pub would_deny: bool,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The reason, in words.
    pub reason: Option<String>,
    /// The result.
    pub result: Option<String>,
    /// Number of bytes disclosed.
    pub bytes: Option<u64>,
    /// Named numbers; for a connection those of its end.
    pub counts: BTreeMap<String, u64>,
    /// The number of findings by rule.
    pub findings: BTreeMap<String, u64>,
    /// Further facts of the record.
    pub facts: BTreeMap<String, serde_json::Value>,
}

impl OtherRecord {
    fn of(record: &RecordView<'_>) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            seq: record.seq,
            outcome: None,
            t: record.t.as_str().to_owned(),
            kind: record.kind_name().to_owned(),
            op: owned(record.op()),
            path: record.subject().map(Cow::into_owned),
            to: owned(record.to()),
            decision: owned(record.decision()),
            would_deny: record.would_deny == Some(true),
            rule: owned(record.rule()),
            reason: owned(record.reason()),
            result: owned(record.result()),
            bytes: record.bytes,
            counts: BTreeMap::new(),
            findings: findings(record),
            facts: record.facts.clone().unwrap_or_default(),
        }
    }

    /// Adds the outcome, which may be a denial.
    fn add_outcome(&mut self, outcome: Outcome) {
        let Outcome { seq, result, counts, reason, denial } = outcome;
        (self.outcome, self.result, self.counts) = (Some(seq), Some(result), counts);
        if let Some((rule, facts)) = denial {
            (self.decision, self.rule, self.reason) = (Some("deny".to_owned()), rule, reason);
            self.facts.extend(facts);
        }
    }
}

/// An outcome.
struct Outcome {
    seq: u64,
    result: String,
    counts: BTreeMap<String, u64>,
    reason: Option<String>,
    /// The rule of a denial, and the facts by which it applies.
    denial: Option<(Option<String>, BTreeMap<String, serde_json::Value>)>,
}

impl Outcome {
    fn of(record: &RecordView<'_>) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let is_denial = record.decision() == Some("deny");
        Self {
            seq: record.seq,
            result: record.result().unwrap_or_default().to_owned(),
            counts: record.counts.clone().unwrap_or_default(),
            reason: owned(record.reason()),
            denial: is_denial
                .then(|| (owned(record.rule()), record.facts.clone().unwrap_or_default())),
        }
    }
}

/// Reasons why a session could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The log cannot be read.
    #[error("cannot read the audit log: {0}")]
    Log(#[from] io::Error),
    /// No session's identifier has this prefix.
    #[error("no session's identifier begins so")]
    Unknown,
    /// Several sessions' identifiers have this prefix.
    #[error("{} sessions' identifiers begin so", .0.len())]
    Ambiguous(Vec<String>),
}

enum SessionPart {
    Event(String, Event),
    Outcome(u64, Outcome),
}

impl Session {
    /// Finds the one session whose identifier begins with `prefix`.
    ///
    /// # Errors
    /// If there is none or more than one, or if the log cannot be read.
    pub fn find(log: &Log, prefix: &str) -> Result<Self, SessionError> {
        Self::find_from(log, prefix, 0)
    }

    /// Finds a session among the records from `first` on, without reading older ones.
    ///
    /// # Errors
    /// As [`Session::find`].
    pub fn find_from(log: &Log, prefix: &str, first: u64) -> Result<Self, SessionError> {
        let filter = Filter {
            sessions: vec![prefix.to_owned()],
            records: Some(first..=u64::MAX),
            ..Filter::default()
        };
        let pick = |record: &RecordView<'_>, line: &[u8]| {
            let id = record.session()?.to_owned();
            let piece = match (record.kind, record.of) {
                (Kind::Outcome | Kind::Recovered, Some(of)) => {
                    SessionPart::Outcome(of, Outcome::of(record))
                }
                (Kind::Intent, _) => match Change::of(record) {
                    Some(change) => SessionPart::Event(id, Event::Change(Box::new(change))),
                    None => SessionPart::Event(id, Event::Other(Box::new(OtherRecord::of(record)))),
                },
                _ => SessionPart::Event(id, Event::Other(Box::new(OtherRecord::of(record)))),
            };
            Some((piece, record.seq, line.len() + OVERHEAD))
        };
        let (mut events, mut outcomes) = (Vec::new(), BTreeMap::new());
        let mut ids = BTreeSet::new();
        let (mut kept, mut cut) = (0, None);
        let mut scanned = log.scan(&filter, ScanOrder::Oldest, pick, |(piece, seq, bytes)| {
            kept += bytes;
            if kept > MAX_STORED_BYTES {
                cut = Some(seq);
                return ControlFlow::Break(());
            }
            match piece {
                SessionPart::Event(id, event) => {
                    ids.insert(id);
                    events.push(event);
                }
                SessionPart::Outcome(of, outcome) => {
                    outcomes.insert(of, outcome);
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(seq) = cut {
            scanned.damage(|| {
                format!(
                    "the session has more records than are shown at once: nothing from record \
                     {seq} on is shown; `portcullis audit query --session` shows all"
                )
            });
        }
        for event in &mut events {
            let seq = match event {
                Event::Change(change) => change.seq,
                Event::Other(other) => other.seq,
            };
            let Some(outcome) = outcomes.remove(&seq) else { continue };
            match event {
                Event::Change(change) => {
                    (change.outcome, change.result) = (Some(outcome.seq), Some(outcome.result));
                    change.reason = outcome.reason;
                }
                Event::Other(other) => other.add_outcome(outcome),
            }
        }
        let mut ids = Vec::from_iter(ids);
        match (ids.pop(), ids.is_empty()) {
            (None, _) => Err(SessionError::Unknown),
            (Some(id), true) => Ok(Self { id, events, scanned }),
            (Some(id), false) => {
                ids.push(id);
                Err(SessionError::Ambiguous(ids))
            }
        }
    }
}

impl Session {
    /// True if the session is known to be complete: its first record here is the start of its
    /// gateway.
    pub fn has_start(&self) -> bool {
        matches!(self.events.first(), Some(Event::Other(other)) if other.kind == "start")
    }
}

/// Returns the session of an agent with the newest record for which `matches` is true; if no agent
/// has one, that of an operator's command.
///
/// # Errors
/// When the log cannot be read.
pub fn last_session(
    log: &Log,
    matches: impl Fn(&RecordView<'_>) -> bool + Sync,
) -> io::Result<Option<String>> {
    let pick = |record: &RecordView<'_>, _: &[u8]| {
        let session = record.session().filter(|_| matches(record))?.to_owned();
        // Outcomes name none.
        let is_operators = record.transport()? == Transport::Cli.as_str();
        Some((Segment::of(record.seq), is_operators, session))
    };
    let (mut of_agents, mut of_operators) = (None, None);
    let all = Filter::default();
    log.scan(&all, ScanOrder::NewestSegment, pick, |(segment, is_operators, session)| {
        // The newest record of a segment is its last.
        let is_older = |newest: &Option<(Segment, String)>| {
            newest.as_ref().is_some_and(|(newer, _)| *newer != segment)
        };
        if is_older(&of_agents) {
            return ControlFlow::Break(());
        }
        let newest = if is_operators { &mut of_operators } else { &mut of_agents };
        if !is_older(newest) {
            *newest = Some((segment, session));
        }
        ControlFlow::Continue(())
    })?;
    Ok(of_agents.or(of_operators).map(|(_, session)| session))
}

/// Returns the session of an agent with the newest change for which `matches` is true and which was
/// made, among those that are wanted; if no agent has one, that of an operator's command.
///
/// # Errors
/// When the log cannot be read.
pub fn last_changing_session(
    log: &Log,
    matches: impl Fn(&Change) -> bool + Sync,
    mut is_wanted: impl FnMut(&str) -> bool,
) -> io::Result<Option<String>> {
    let pick = |record: &RecordView<'_>, _: &[u8]| match (record.kind, record.of) {
        (Kind::Outcome | Kind::Recovered, Some(of)) => {
            let failed = !was_made(record.result());
            failed.then_some((record.seq, of, None))
        }
        (Kind::Intent, _) => {
            let change = Change::of(record).filter(|change| matches(change))?;
            let is_change = change.operation != OperationKind::Connect && !change.is_nothing();
            let is_operators = change.transport.as_deref() == Some(Transport::Cli.as_str());
            let found = (is_operators, change.session);
            is_change.then_some((record.seq, record.seq, Some(found)))
        }
        _ => None,
    };
    // Newer segments first: the outcome of a change is in its segment or in a newer one.
    let (mut segment, mut changes, mut failed) = (None, BTreeMap::new(), BTreeSet::new());
    let (mut of_agents, mut of_operators, mut seen) = (None, Vec::new(), BTreeSet::new());
    let mut settle = |changes: &mut BTreeMap<u64, (bool, String)>, failed: &BTreeSet<u64>| {
        let made = std::mem::take(changes).into_iter().rev();
        for (_, (is_operators, session)) in made.filter(|(seq, _)| !failed.contains(seq)) {
            if !seen.insert(session.clone()) {
                continue;
            }
            if is_operators {
                of_operators.push(session);
            } else if of_agents.is_none() && is_wanted(&session) {
                of_agents = Some(session);
            }
        }
        of_agents.is_some()
    };
    let order = ScanOrder::NewestSegment;
    log.scan(&Filter::default(), order, pick, |(seq, of, change)| {
        if segment.replace(Segment::of(seq)).is_some_and(|last| last != Segment::of(seq)) {
            if settle(&mut changes, &failed) {
                return ControlFlow::Break(());
            }
            // Those of newer segments are settled.
            failed.retain(|of| Segment::of(*of) <= Segment::of(seq));
        }
        match change {
            Some(change) => drop(changes.insert(of, change)),
            None => drop(failed.insert(of)),
        }
        ControlFlow::Continue(())
    })?;
    settle(&mut changes, &failed);
    Ok(of_agents.or_else(|| of_operators.into_iter().find(|session| is_wanted(session))))
}

/// Returns the sessions that `name` names: those whose identifier begins with it, or if there is
/// none, the runs with an ACP session whose ID begins so.
///
/// # Errors
/// If the log cannot be read.
pub fn named_sessions(log: &Log, name: &str) -> io::Result<BTreeSet<String>> {
    let begins_so = Filter { sessions: vec![name.to_owned()], ..Filter::default() };
    let found = sessions_with(log, &begins_so, |_| true)?;
    if !found.is_empty() {
        return Ok(found);
    }
    let opened = Filter { ops: vec!["acp.session".to_owned()], ..Filter::default() };
    sessions_with(log, &opened, |record| {
        record.fact("acpSession").is_some_and(|id| id.starts_with(name))
    })
}

/// Returns the first sessions with a record that matches.
fn sessions_with(
    log: &Log,
    filter: &Filter,
    matches: impl Fn(&RecordView<'_>) -> bool + Sync,
) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let pick = |record: &RecordView<'_>, _: &[u8]| {
        record.session().filter(|_| matches(record)).map(str::to_owned)
    };
    log.scan(filter, ScanOrder::Oldest, pick, |session| {
        found.insert(session);
        if found.len() < MAX_NAMED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// Lists the sessions of a log, the newest last: identifier, agent, first and last time, number of
/// records.
///
/// # Errors
/// If the log cannot be read.
pub fn sessions(log: &Log) -> io::Result<super::Stats> {
    super::Stats::of(log, &Filter::default(), &[super::Field::Session, super::Field::Agent])
}

/// Returns the beginning of a known session's identifier that is similar to `text`, which none
/// begins with.
///
/// # Errors
/// If the log cannot be read.
pub fn similar_session(log: &Log, text: &str) -> io::Result<Option<String>> {
    if text.len() < MIN_SIMILAR {
        return Ok(None);
    }
    let known = sessions(log)?;
    let known = known.groups.iter().filter_map(|group| group.values.first()?.as_deref());
    let begins = known.filter_map(|id| id.get(..text.len().min(id.len())));
    Ok(nearest(text, begins).map(str::to_owned))
}
