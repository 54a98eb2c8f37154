//! A summary of one session: prompt turns, and for each the parties with what they read, changed
//! and were denied, in the order of their first records.
//!
//! Paths are counted rather than listed one by one, and bounded. Claims of a program about itself
//! are separate from what the gateway knows.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use portcullis_audit::{Kind, RecordView};
use serde_json::Value;

use super::{
    Filter, Log, Order, Scanned, SessionError,
    actor::Actor,
    change::Change,
    report::digest::findings,
    scan::{MAX_KEPT, OVERHEAD},
};

/// Maximum number of paths of one kind for one party.
const MAX_PATHS: usize = 200;
/// Maximum number of parties and notes.
const MAX_PARTS: usize = 10_000;
/// Maximum number of sessions that are listed if a prefix is ambiguous.
const MAX_SESSIONS: usize = 1000;

/// The summary of a session.
#[derive(Debug)]
pub struct Story {
    /// Its identifier.
    pub id: String,
    /// The agent.
    pub agent: String,
    /// Its parts, in the order of first records.
    pub parts: Vec<StoryPart>,
    /// Number of records that were left out because there were too many parts.
    pub left_out: u64,
    /// The parts of the log that could not be read.
    pub scanned: Scanned,
}

/// One part of a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoryPart {
    /// A record about the session itself.
    Note(Box<Note>),
    /// The activity of one party, within a turn if there are turns.
    Activity(Box<Activity>),
}

/// A record about the session itself. All texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Its index.
    pub seq: u64,
    /// Its time.
    pub t: String,
    /// The operation of an event, else the kind of the record.
    pub what: String,
    /// The turn that it begins or ends.
    pub turn: Option<u64>,
    /// The result.
    pub result: Option<String>,
    /// The path.
    pub path: Option<String>,
    /// Further facts of the record.
    pub facts: BTreeMap<String, Value>,
}

/// The activity of one party in a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// The party.
    pub actor: Actor,
    /// The prompt turn, counted from 1.
    pub turn: Option<u64>,
    /// The arguments of a command, as the gateway started it.
    pub command: Vec<String>,
    /// The arguments of a process, as it claims.
    pub claimed_arguments: Option<String>,
    /// The times of its first and its last record.
    pub times: (String, String),
    /// The indices of these records.
    pub records: (u64, u64),
    /// Files whose content was disclosed.
    pub read: Paths,
    /// Changes, by operation.
    pub changed: Paths,
    /// Denied requests, by rule.
    pub denied: Paths,
    /// Changes that failed or have no known outcome, by result.
    pub failed: Paths,
    /// Requests for which the operator was asked, by rule.
    pub asked: Paths,
    /// Connections that were allowed and recorded before being made, with host and port as the
    /// path.
    pub connected: Paths,
    /// Number of records of requests for directories, names and attributes of files.
    pub looked: u64,
    /// The number of findings by rule.
    pub findings: BTreeMap<String, u64>,
}

/// Numbers of occurrences by path and word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    /// The first of them.
    pub listed: BTreeMap<(String, String), u64>,
    /// Number of further occurrences.
    pub more: u64,
}

impl Paths {
    /// Counts occurrences; a new path takes its bytes from `room`.
    fn add(&mut self, path: &str, word: &str, times: u64, room: &mut usize) {
        let key = (path.to_owned(), word.to_owned());
        let bytes = path.len() + word.len() + OVERHEAD;
        if let Some(count) = self.listed.get_mut(&key) {
            *count = count.saturating_add(times);
        } else if self.listed.len() < MAX_PATHS && *room >= bytes {
            *room -= bytes;
            self.listed.insert(key, times);
        } else {
            self.more = self.more.saturating_add(times);
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.more == 0
    }
}

/// The parts of one record that the summary needs.
struct StoryRecord {
    session: String,
    agent: String,
    seq: u64,
    t: String,
    actor: Actor,
    process: Option<String>,
    /// The length of its line in bytes.
    bytes: usize,
    what: What,
}

enum What {
    Change(Box<Change>),
    Answer {
        of: u64,
        result: String,
    },
    Request {
        op: String,
        path: String,
        word: Option<(&'static str, String)>,
        findings: BTreeMap<String, u64>,
    },
    Repeats(Vec<(String, u64, u64)>),
    Connection(String),
    Command {
        arguments: Vec<String>,
        is_own: bool,
    },
    Note(Box<Note>),
}

impl Story {
    /// Summarizes the one session whose identifier begins with `prefix`.
    ///
    /// # Errors
    /// If there is none or more than one, or if the log cannot be read.
    pub fn find(log: &Log, prefix: &str) -> Result<Self, SessionError> {
        let filter = Filter { sessions: vec![prefix.to_owned()], ..Filter::default() };
        let pick = |record: &RecordView<'_>, line: &[u8]| piece(record, line.len());
        let (mut telling, mut ids) = (Telling::new(), BTreeSet::new());
        let scanned = log.scan(&filter, Order::Oldest, pick, |piece| {
            if !ids.contains(&piece.session) {
                // Several sessions are an error, so further records do not matter.
                if ids.len() >= MAX_SESSIONS {
                    return ControlFlow::Break(());
                }
                ids.insert(piece.session.clone());
            }
            telling.take(piece);
            ControlFlow::Continue(())
        })?;
        telling.end();
        let mut ids = Vec::from_iter(ids);
        let Telling { agent, parts, left_out, .. } = telling;
        match (ids.pop(), ids.is_empty()) {
            (None, _) => Err(SessionError::Unknown),
            (Some(id), true) => Ok(Self { id, agent, parts, left_out, scanned }),
            (Some(id), false) => {
                ids.push(id);
                Err(SessionError::Ambiguous(ids))
            }
        }
    }

    /// True if it begins with the start of its gateway.
    pub fn is_whole(&self) -> bool {
        matches!(self.parts.first(), Some(StoryPart::Note(note)) if note.what == "start")
    }
}

/// Returns the arguments of a command, if the record is that of its start.
fn arguments(record: &RecordView<'_>) -> Option<Vec<String>> {
    let list = record.facts.as_ref().and_then(|facts| facts.get("command")?.as_array());
    let is_start = record.kind == Kind::Decision && record.decision() != Some("deny");
    let texts = |list: &Vec<Value>| {
        list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    list.filter(|_| is_start).map(texts)
}

fn piece(record: &RecordView<'_>, bytes: usize) -> Option<StoryRecord> {
    let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let fact = |name: &str| record.facts.as_ref()?.get(name);
    let process = fact("process").and_then(|process| process.get("arguments")?.as_str());
    let command = arguments(record);
    let actor = match command {
        Some(_) => Actor::Command(record.seq),
        None => Actor::of(record),
    };
    Some(StoryRecord {
        session: record.session()?.to_owned(),
        agent: owned(record.agent()),
        seq: record.seq,
        t: record.t.as_str().to_owned(),
        actor,
        process: process.map(str::to_owned),
        bytes: bytes + OVERHEAD,
        what: what(record, command),
    })
}

fn what(record: &RecordView<'_>, command: Option<Vec<String>>) -> What {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    if let Some(arguments) = command {
        return What::Command { arguments, is_own: record.op() == Some("sandbox") };
    }
    if let (Kind::Outcome | Kind::Recovered, Some(of)) = (record.kind, record.of) {
        return What::Answer { of, result: record.result().unwrap_or_default().to_owned() };
    }
    if let (Kind::Intent, Some(change)) = (record.kind, Change::of(record)) {
        return What::Change(Box::new(change));
    }
    if record.op() == Some("connect") && record.kind == Kind::Intent {
        return What::Connection(record.subject().unwrap_or_default().into_owned());
    }
    if record.op() == Some("repeats") {
        let paths = record.facts.as_ref().and_then(|facts| facts.get("paths")?.as_array());
        let count = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        let repeat = |entry: &Value| {
            let path = entry.get("path")?.as_str()?.to_owned();
            Some((path, count(entry, "opens"), count(entry, "denials")))
        };
        return What::Repeats(paths.into_iter().flatten().filter_map(repeat).collect());
    }
    let path =
        record.subject().or_else(|| (record.decision() == Some("deny")).then_some("".into()));
    if let (Kind::Decision, Some(op), Some(path)) = (record.kind, record.op(), path) {
        let rule = || record.rule().unwrap_or("-").to_owned();
        let word = match (record.decision(), record.result()) {
            (Some("deny"), _) => Some(("denied", rule())),
            (Some("ask"), _) => Some(("asked", rule())),
            (_, Some("ok") | None) => None,
            (_, Some(result)) => Some(("failed", result.to_owned())),
        };
        let findings = findings(record);
        return What::Request { op: op.to_owned(), path: path.into_owned(), word, findings };
    }
    let what = match (record.kind, record.op()) {
        (Kind::Decision, Some(op)) => op.to_owned(),
        _ => record.kind_name().to_owned(),
    };
    What::Note(Box::new(Note {
        seq: record.seq,
        t: record.t.as_str().to_owned(),
        what,
        turn: None,
        result: owned(record.result()),
        path: owned(record.path()),
        facts: record.facts.clone().unwrap_or_default(),
    }))
}

/// A summary under construction.
struct Telling {
    agent: String,
    parts: Vec<StoryPart>,
    left_out: u64,
    /// Number of bytes that may still be stored.
    room: usize,
    /// The current turn, and the number of the last one.
    turn: Option<u64>,
    turns: u64,
    /// The command of the session itself, for `exec` and `shell`.
    own: Option<u64>,
    /// The position of each party's activity in each turn.
    places: BTreeMap<(Option<u64>, Actor), usize>,
    commands: BTreeMap<u64, Vec<String>>,
    /// Changes without an outcome yet, with the position of the activity and the bytes they occupy.
    open: BTreeMap<u64, (usize, usize, Box<Change>)>,
}

impl Telling {
    fn new() -> Self {
        Self {
            agent: String::new(),
            parts: Vec::new(),
            left_out: 0,
            room: MAX_KEPT,
            turn: None,
            turns: 0,
            own: None,
            places: BTreeMap::new(),
            commands: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    fn take(&mut self, piece: StoryRecord) {
        let StoryRecord { agent, seq, what, bytes, .. } = &piece;
        if self.agent.is_empty() {
            self.agent.clone_from(agent);
        }
        match what {
            What::Note(note) => return self.note(Note::clone(note), *bytes),
            What::Answer { of, result } => return self.answer(*of, result),
            What::Command { arguments, is_own } => {
                if *is_own {
                    self.own = Some(*seq);
                }
                if *bytes <= self.room {
                    self.room -= bytes;
                    self.commands.insert(*seq, arguments.clone());
                }
            }
            What::Change(_) | What::Request { .. } | What::Repeats(_) | What::Connection(_) => {}
        }
        let Some(place) = self.activity(&piece) else { return self.left_out += 1 };
        if let What::Change(change) = piece.what {
            if piece.bytes > self.room {
                return self.left_out += 1;
            }
            self.room -= piece.bytes;
            self.open.insert(piece.seq, (place, piece.bytes, change));
            return;
        }
        let Some(StoryPart::Activity(activity)) = self.parts.get_mut(place) else { return };
        activity.take(piece.what, &mut self.room);
    }

    fn note(&mut self, mut note: Note, bytes: usize) {
        if note.what == "acp.prompt" {
            match note.facts.get("event").and_then(Value::as_str) {
                Some("begin") => {
                    self.turns += 1;
                    self.turn = Some(self.turns);
                    note.turn = self.turn;
                }
                _ => note.turn = self.turn.take(),
            }
        }
        if self.push(StoryPart::Note(Box::new(note)), bytes).is_none() {
            self.left_out += 1;
        }
    }

    fn push(&mut self, part: StoryPart, bytes: usize) -> Option<usize> {
        if self.parts.len() >= MAX_PARTS || bytes > self.room {
            return None;
        }
        self.room -= bytes;
        self.parts.push(part);
        Some(self.parts.len() - 1)
    }

    /// Returns the position of the party's activity in the current turn.
    fn activity(&mut self, piece: &StoryRecord) -> Option<usize> {
        let actor = match (self.own, &piece.actor) {
            (Some(own), Actor::Process { .. }) => Actor::Command(own),
            (Some(own), Actor::Client(door)) if door == "mount" => Actor::Command(own),
            (_, actor) => actor.clone(),
        };
        let (seq, t) = (piece.seq, &piece.t);
        let key = (self.turn, actor);
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None => {
                let activity = Activity::new(&key, self.command_of(&key.1), piece);
                let place = self.push(StoryPart::Activity(Box::new(activity)), piece.bytes)?;
                self.places.insert(key, place);
                place
            }
        };
        let Some(StoryPart::Activity(activity)) = self.parts.get_mut(place) else { return None };
        activity.times.1.clone_from(t);
        activity.records.1 = seq;
        Some(place)
    }

    fn command_of(&self, actor: &Actor) -> Vec<String> {
        let Actor::Command(record) = actor else { return Vec::new() };
        self.commands.get(record).cloned().unwrap_or_default()
    }

    fn answer(&mut self, of: u64, result: &str) {
        let Some((place, bytes, mut change)) = self.open.remove(&of) else { return };
        self.room += bytes;
        change.result = Some(result.to_owned());
        self.settle(place, &change);
    }

    fn settle(&mut self, place: usize, change: &Change) {
        if let Some(StoryPart::Activity(activity)) = self.parts.get_mut(place) {
            activity.settle(change, &mut self.room);
        }
    }

    /// Adds the changes without an outcome.
    fn end(&mut self) {
        for (place, _, change) in std::mem::take(&mut self.open).into_values() {
            self.settle(place, &change);
        }
    }
}

impl Activity {
    fn new(
        (turn, actor): &(Option<u64>, Actor),
        command: Vec<String>,
        piece: &StoryRecord,
    ) -> Self {
        let is_process = matches!(actor, Actor::Process { .. });
        Self {
            actor: actor.clone(),
            turn: *turn,
            command,
            claimed_arguments: piece.process.clone().filter(|_| is_process),
            times: (piece.t.clone(), piece.t.clone()),
            records: (piece.seq, piece.seq),
            read: Paths::default(),
            changed: Paths::default(),
            denied: Paths::default(),
            failed: Paths::default(),
            asked: Paths::default(),
            connected: Paths::default(),
            looked: 0,
            findings: BTreeMap::new(),
        }
    }

    fn take(&mut self, what: What, room: &mut usize) {
        match what {
            What::Repeats(paths) => {
                for (path, opens, denials) in paths {
                    if opens > 0 {
                        self.read.add(&path, "read", opens, room);
                    }
                    if denials > 0 {
                        self.denied.add(&path, "repeated", denials, room);
                    }
                }
            }
            What::Request { op, path, word, findings } => {
                for (rule, times) in findings {
                    *self.findings.entry(rule).or_default() += times;
                }
                match word {
                    Some(("denied", rule)) => self.denied.add(&path, &rule, 1, room),
                    Some(("asked", rule)) => self.asked.add(&path, &rule, 1, room),
                    Some((_, result)) => {
                        self.failed.add(&path, &format!("{op}: {result}"), 1, room);
                    }
                    None if matches!(op.as_str(), "read" | "grep") => {
                        self.read.add(&path, &op, 1, room);
                    }
                    // The connection has a record of its own.
                    None if op == "connect" => {}
                    None => self.looked += 1,
                }
            }
            What::Connection(host) => self.connected.add(&host, "connect", 1, room),
            What::Change(_) | What::Answer { .. } | What::Command { .. } | What::Note(_) => {}
        }
    }

    fn settle(&mut self, change: &Change, room: &mut usize) {
        let word = match &change.to {
            Some(to) => format!("{} to {}", change.operation, to.quoted()),
            None => change.operation.to_string(),
        };
        let path = change.path.as_str();
        if change.is_made() {
            self.changed.add(path, &word, 1, room);
        } else if !change.is_nothing() {
            let result = change.result.as_deref().unwrap_or("not settled");
            self.failed.add(path, &format!("{word}: {result}"), 1, room);
        }
    }
}
