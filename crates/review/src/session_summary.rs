//! A summary of one session: prompt turns, and for each the parties with what they read, changed
//! and were denied, in the order of their first records.
//!
//! Paths are counted rather than listed one by one, and bounded. Claims of a program about itself
//! are separate from what the gateway knows.

mod paths;
mod record;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

pub use paths::Paths;
use portcullis_audit::RecordView;
use record::{ConnectionKey, EndedConnection, SummaryRecord, SummaryRecordKind, piece};
use serde_json::Value;

use super::{
    Filter, Log, ScanOrder, Scanned, SessionError,
    actor::Actor,
    change::Change,
    scan::{MAX_STORED_BYTES, OVERHEAD},
    traffic::Traffic,
};
use crate::model::Quoted;

/// Maximum number of parties and notes.
const MAX_PARTS: usize = 10_000;
/// Maximum number of prompt turns that are open at once.
const MAX_TURNS: usize = 1000;
/// The operation of connections.
const CONNECT: &str = "connect";
/// The result of a connection that was never made.
const UNREACHABLE: &str = "unreachable";
/// Maximum number of sessions that are listed if a prefix is ambiguous.
const MAX_SESSIONS: usize = 1000;

/// The summary of a session.
#[derive(Debug)]
pub struct SessionSummary {
    /// Its identifier.
    pub id: String,
    /// The agent.
    pub agent: String,
    /// Its parts, in the order of first records.
    pub parts: Vec<SummaryPart>,
    /// Number of records that were left out because there were too many parts.
    pub left_out: u64,
    /// The parts of the log that could not be read.
    pub scanned: Scanned,
}

/// One part of a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SummaryPart {
    /// A record about the session itself.
    Note(Box<Note>),
    /// The activity of one party, within a turn if there are turns.
    Activity(Box<PartyActivity>),
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
pub struct PartyActivity {
    /// The party.
    pub actor: Actor,
    /// The prompt turn, counted from 1.
    pub turn: Option<u64>,
    /// The arguments of a command, as the gateway started it.
    pub command: Vec<String>,
    /// The arguments of a process, as it claims.
    pub claimed_arguments: Vec<String>,
    /// The times of its first and its last record.
    pub times: (String, String),
    /// The indices of these records.
    pub records: (u64, u64),
    /// Files whose content was disclosed.
    pub read: Paths,
    /// Changes, by operation.
    pub changed: Paths,
    /// Denied requests and connections that were cut off, by rule.
    pub denied: Paths,
    /// Changes that failed or have no known outcome, and hosts that could not be reached, by result.
    pub failed: Paths,
    /// Requests for which the operator was asked, by rule.
    pub asked: Paths,
    /// Connections that were allowed and recorded before being made, with host and port as the
    /// path and the id of the credential as the word; also those that were cut off, but not those
    /// that could not be made.
    pub connected: Paths,
    /// Bytes sent to and received from the hosts of `connected` by connections that have ended, by
    /// path and word.
    pub traffic: BTreeMap<(String, String), Traffic>,
    /// Paths of labelled content that was read first, with the label.
    pub labelled: Paths,
    /// The connections that a command could make past the rules of hosts and the record, because it
    /// shared the host's network: `ports`, and `dns`.
    pub agent_network: Option<Value>,
    /// The tool calls to which records belong, as the agent claims.
    pub claimed_tool_calls: Paths,
    /// Number of records of requests for directories, names and attributes of files.
    pub lookups: u64,
    /// The number of findings by rule.
    pub findings: BTreeMap<String, u64>,
}

impl SessionSummary {
    /// Summarizes the one session whose identifier begins with `prefix`.
    ///
    /// # Errors
    /// If there is none or more than one, or if the log cannot be read.
    pub fn find(log: &Log, prefix: &str) -> Result<Self, SessionError> {
        let filter = Filter { sessions: vec![prefix.to_owned()], ..Filter::default() };
        let pick = |record: &RecordView<'_>, line: &[u8]| piece(record, line.len());
        let (mut telling, mut ids) = (SummaryBuilder::new(), BTreeSet::new());
        let scanned = log.scan(&filter, ScanOrder::Oldest, pick, |piece| {
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
        let SummaryBuilder { agent, parts, left_out, .. } = telling;
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
    pub fn has_start(&self) -> bool {
        matches!(self.parts.first(), Some(SummaryPart::Note(note)) if note.what == "start")
    }
}

/// A summary under construction.
struct SummaryBuilder {
    agent: String,
    parts: Vec<SummaryPart>,
    left_out: u64,
    /// Number of bytes that may still be stored.
    room: usize,
    /// The open turns by ACP session, and the number of the last one.
    open_turns: BTreeMap<String, u64>,
    turns: u64,
    /// The command of the session itself, for `exec` and `shell`.
    own: Option<u64>,
    /// The position of each party's activity in each turn.
    places: BTreeMap<(Option<u64>, Actor), usize>,
    commands: BTreeMap<u64, StartedCommand>,
    /// Changes without an outcome yet, with the position of the activity and the bytes they occupy.
    open: BTreeMap<u64, (usize, usize, Box<Change>)>,
    /// The positions of the activities of connections without an outcome yet.
    connections: BTreeMap<u64, usize>,
}

/// A command of the session.
struct StartedCommand {
    arguments: Vec<String>,
    /// The ACP session that started it.
    acp_session: Option<String>,
}

impl SummaryBuilder {
    fn new() -> Self {
        Self {
            agent: String::new(),
            parts: Vec::new(),
            left_out: 0,
            room: MAX_STORED_BYTES,
            open_turns: BTreeMap::new(),
            turns: 0,
            own: None,
            places: BTreeMap::new(),
            commands: BTreeMap::new(),
            open: BTreeMap::new(),
            connections: BTreeMap::new(),
        }
    }

    fn take(&mut self, piece: SummaryRecord) {
        let SummaryRecord { agent, seq, what, bytes, .. } = &piece;
        if self.agent.is_empty() {
            self.agent.clone_from(agent);
        }
        match what {
            SummaryRecordKind::Note(note) => return self.note(Note::clone(note), *bytes),
            SummaryRecordKind::Outcome { of, result, ended } => {
                return self.outcome(*of, result, ended.as_ref());
            }
            SummaryRecordKind::CutOff { of, host, rule, ended }
                if self.connections.contains_key(of) =>
            {
                return self.cut_off(*of, host, rule, ended.as_ref());
            }
            SummaryRecordKind::Command { arguments, is_own, .. } => {
                if *is_own {
                    self.own = Some(*seq);
                }
                if *bytes <= self.room {
                    self.room -= bytes;
                    let (arguments, acp_session) = (arguments.clone(), piece.acp_session.clone());
                    self.commands.insert(*seq, StartedCommand { arguments, acp_session });
                }
            }
            SummaryRecordKind::Change(_)
            | SummaryRecordKind::Request { .. }
            | SummaryRecordKind::Repeats(_)
            | SummaryRecordKind::Connection(_)
            | SummaryRecordKind::Labels(_)
            | SummaryRecordKind::CutOff { .. } => {}
        }
        let Some(place) = self.activity(&piece) else { return self.left_out += 1 };
        if let SummaryRecordKind::Change(change) = piece.what {
            if piece.bytes > self.room {
                return self.left_out += 1;
            }
            self.room -= piece.bytes;
            self.open.insert(piece.seq, (place, piece.bytes, change));
            return;
        }
        if matches!(piece.what, SummaryRecordKind::Connection(_)) && self.room >= OVERHEAD {
            self.room -= OVERHEAD;
            self.connections.insert(piece.seq, place);
        }
        let Some(SummaryPart::Activity(activity)) = self.parts.get_mut(place) else { return };
        activity.take(piece.what, &mut self.room);
    }

    fn note(&mut self, mut note: Note, bytes: usize) {
        if note.what == "acp.prompt" {
            let fact = |name: &str| note.facts.get(name).and_then(Value::as_str);
            let acp_session = fact("acpSession").unwrap_or_default();
            if fact("event") != Some("begin") {
                note.turn = self.open_turns.remove(acp_session);
            } else if self.open_turns.len() < MAX_TURNS {
                self.turns += 1;
                note.turn = Some(self.turns);
                self.open_turns.insert(acp_session.to_owned(), self.turns);
            }
        }
        if self.push(SummaryPart::Note(Box::new(note)), bytes).is_none() {
            self.left_out += 1;
        }
    }

    fn push(&mut self, part: SummaryPart, bytes: usize) -> Option<usize> {
        if self.parts.len() >= MAX_PARTS || bytes > self.room {
            return None;
        }
        self.room -= bytes;
        self.parts.push(part);
        Some(self.parts.len() - 1)
    }

    /// Returns the turn to which a record belongs: that of the ACP session that it or its command
    /// names, else the only one.
    fn turn_of(&self, actor: &Actor, acp_session: Option<&str>) -> Option<u64> {
        let of_command = || match actor {
            Actor::Command(record) => self.commands.get(record)?.acp_session.as_deref(),
            _ => None,
        };
        if let Some(acp_session) = acp_session.or_else(of_command) {
            return self.open_turns.get(acp_session).copied();
        }
        let mut open = self.open_turns.values();
        open.next().copied().filter(|_| open.next().is_none())
    }

    /// Returns the position of the party's activity in the turn of a record.
    fn activity(&mut self, piece: &SummaryRecord) -> Option<usize> {
        let actor = match (self.own, &piece.actor) {
            (Some(own), Actor::Process { .. }) => Actor::Command(own),
            (Some(own), Actor::Client(transport)) if transport == "mount" => Actor::Command(own),
            (_, actor) => actor.clone(),
        };
        let (seq, t) = (piece.seq, &piece.t);
        let key = (self.turn_of(&actor, piece.acp_session.as_deref()), actor);
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None => {
                let activity = PartyActivity::new(&key, self.command_of(&key.1), piece);
                let place = self.push(SummaryPart::Activity(Box::new(activity)), piece.bytes)?;
                self.places.insert(key, place);
                place
            }
        };
        let Some(SummaryPart::Activity(activity)) = self.parts.get_mut(place) else { return None };
        activity.times.1.clone_from(t);
        activity.records.1 = seq;
        if let Some(id) = &piece.tool_call {
            activity.claimed_tool_calls.add(id, "", 1, &mut self.room);
        }
        Some(place)
    }

    fn command_of(&self, actor: &Actor) -> Vec<String> {
        let Actor::Command(record) = actor else { return Vec::new() };
        self.commands.get(record).map(|command| command.arguments.clone()).unwrap_or_default()
    }

    /// Counts a denial for the party that made the connection: the record of its end names none.
    fn cut_off(&mut self, of: u64, host: &str, rule: &str, ended: Option<&EndedConnection>) {
        let Some(place) = self.connections.remove(&of) else { return };
        self.room += OVERHEAD;
        if let Some(SummaryPart::Activity(activity)) = self.parts.get_mut(place) {
            activity.denied.add(host, rule, 1, &mut self.room);
            activity.end(ended);
        }
    }

    fn outcome(&mut self, of: u64, result: &str, ended: Option<&EndedConnection>) {
        if let Some(place) = self.connections.remove(&of) {
            self.room += OVERHEAD;
            if let Some(SummaryPart::Activity(activity)) = self.parts.get_mut(place) {
                match (result, ended) {
                    (UNREACHABLE, Some(ended)) => activity.fail(&ended.key, &mut self.room),
                    _ => activity.end(ended),
                }
            }
        }
        let Some((place, bytes, mut change)) = self.open.remove(&of) else { return };
        self.room += bytes;
        change.result = Some(result.to_owned());
        self.settle(place, &change);
    }

    fn settle(&mut self, place: usize, change: &Change) {
        if let Some(SummaryPart::Activity(activity)) = self.parts.get_mut(place) {
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

impl PartyActivity {
    fn new(
        (turn, actor): &(Option<u64>, Actor),
        command: Vec<String>,
        piece: &SummaryRecord,
    ) -> Self {
        let is_process = matches!(actor, Actor::Process { .. });
        Self {
            actor: actor.clone(),
            turn: *turn,
            command,
            claimed_arguments: if is_process {
                piece.claimed_arguments.clone()
            } else {
                Vec::new()
            },
            times: (piece.t.clone(), piece.t.clone()),
            records: (piece.seq, piece.seq),
            read: Paths::default(),
            changed: Paths::default(),
            denied: Paths::default(),
            failed: Paths::default(),
            asked: Paths::default(),
            connected: Paths::default(),
            traffic: BTreeMap::new(),
            labelled: Paths::default(),
            agent_network: None,
            claimed_tool_calls: Paths::default(),
            lookups: 0,
            findings: BTreeMap::new(),
        }
    }

    fn take(&mut self, what: SummaryRecordKind, room: &mut usize) {
        match what {
            SummaryRecordKind::Repeats(paths) => {
                for (path, opens, denials) in paths {
                    if opens > 0 {
                        self.read.add(&path, "read", opens, room);
                    }
                    if denials > 0 {
                        self.denied.add(&path, "repeated", denials, room);
                    }
                }
            }
            SummaryRecordKind::Request { op, path, word, findings } => {
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
                    None if op == CONNECT => {}
                    None => self.lookups += 1,
                }
            }
            SummaryRecordKind::Connection((host, credential)) => {
                self.connected.add(&host, &credential, 1, room);
            }
            SummaryRecordKind::CutOff { host, rule, .. } => self.denied.add(&host, &rule, 1, room),
            SummaryRecordKind::Labels(labels) => {
                for (path, label) in labels {
                    self.labelled.add(&path, &label, 1, room);
                }
            }
            SummaryRecordKind::Command { network, .. } => self.agent_network = network,
            SummaryRecordKind::Change(_)
            | SummaryRecordKind::Outcome { .. }
            | SummaryRecordKind::Note(_) => {}
        }
    }

    /// Adds the bytes of a connection to a host that is counted.
    fn end(&mut self, ended: Option<&EndedConnection>) {
        let Some(EndedConnection { key, counts }) = ended else { return };
        if self.connected.counts.contains_key(key) {
            self.traffic.entry(key.clone()).or_default().add(counts.as_ref());
        }
    }

    /// Counts a connection as one that failed.
    fn fail(&mut self, (host, credential): &ConnectionKey, room: &mut usize) {
        if self.connected.take_back(host, credential) {
            self.failed.add(host, &format!("{CONNECT}: {UNREACHABLE}"), 1, room);
        }
    }

    fn settle(&mut self, change: &Change, room: &mut usize) {
        let word = match (&change.to, &change.target) {
            (Some(to), _) => format!("{} to {}", change.operation, to.quoted()),
            (None, Some(target)) => format!("{} -> {}", change.operation, Quoted(target)),
            (None, None) => change.operation.to_string(),
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
