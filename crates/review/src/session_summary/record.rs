//! The parts of a record that a summary needs.

use std::collections::BTreeMap;

use portcullis_audit::{Kind, RecordView};
use serde_json::Value;

use super::Note;
use crate::{actor::Actor, change::Change, report::digest::findings, scan::OVERHEAD};

/// The parts of one record that the summary needs.
pub(super) struct SummaryRecord {
    pub(super) session: String,
    pub(super) agent: String,
    pub(super) seq: u64,
    pub(super) t: String,
    pub(super) actor: Actor,
    pub(super) claimed_arguments: Vec<String>,
    /// The ACP session, if it names one.
    pub(super) acp_session: Option<String>,
    /// The tool call to which it belongs, as the agent claims.
    pub(super) tool_call: Option<String>,
    /// The length of its line in bytes.
    pub(super) bytes: usize,
    pub(super) what: SummaryRecordKind,
}

pub(super) enum SummaryRecordKind {
    Change(Box<Change>),
    Outcome {
        of: u64,
        result: String,
        ended: Option<EndedConnection>,
    },
    Request {
        op: String,
        path: String,
        word: Option<(&'static str, String)>,
        findings: BTreeMap<String, u64>,
    },
    Repeats(Vec<(String, u64, u64)>),
    Connection(ConnectionKey),
    /// A connection was cut off.
    CutOff {
        of: u64,
        host: String,
        rule: String,
        ended: Option<EndedConnection>,
    },
    /// Content was read that has labels: path and label.
    Labels(Vec<(String, String)>),
    Command {
        arguments: Vec<String>,
        is_own: bool,
        /// The connections that the command could make past the rules of hosts.
        network: Option<Value>,
    },
    Note(Box<Note>),
}

/// The host and port of a connection, and the id of its credential, which is empty without one.
pub(super) type ConnectionKey = (String, String);

/// A connection that has ended, and its counts.
pub(super) struct EndedConnection {
    pub(super) key: ConnectionKey,
    pub(super) counts: Option<BTreeMap<String, u64>>,
}

impl EndedConnection {
    fn of(record: &RecordView<'_>) -> Option<Self> {
        Some(Self { key: connection_key(record)?, counts: record.counts.clone() })
    }
}

fn connection_key(record: &RecordView<'_>) -> Option<ConnectionKey> {
    let credential = record.fact("credential").unwrap_or_default();
    Some((record.target()?.into_owned(), credential.to_owned()))
}

/// Returns the words of the command that a decision is about.
fn command_words(record: &RecordView<'_>) -> Option<Vec<String>> {
    let list = record.facts.as_ref().and_then(|facts| facts.get("command")?.as_array());
    list.filter(|_| record.kind == Kind::Decision).map(|list| texts(list))
}

fn texts(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

pub(super) fn piece(record: &RecordView<'_>, bytes: usize) -> Option<SummaryRecord> {
    let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let fact = |name: &str| record.facts.as_ref()?.get(name);
    let process = fact("process").and_then(|process| process.get("arguments")?.as_array());
    let is_start = !matches!(record.decision(), Some("ask" | "deny"));
    let command = command_words(record).filter(|_| is_start);
    let actor = match command {
        Some(_) => Actor::Command(record.seq),
        None => Actor::of(record),
    };
    Some(SummaryRecord {
        session: record.session()?.to_owned(),
        agent: owned(record.agent()),
        seq: record.seq,
        t: record.t.as_str().to_owned(),
        actor,
        claimed_arguments: process.map(|list| texts(list)).unwrap_or_default(),
        acp_session: record.fact("acpSession").map(str::to_owned),
        tool_call: record.fact("toolCall").map(str::to_owned),
        bytes: bytes + OVERHEAD,
        what: what(record, command),
    })
}

/// Returns what was denied, if it has neither a path nor a host: a method, or what a message that
/// was dropped came from.
fn denied_message(record: &RecordView<'_>) -> String {
    let op = record.op().unwrap_or_default();
    match (record.fact("method"), record.fact("from")) {
        (Some(method), _) => method.to_owned(),
        (None, Some(from)) => format!("{op} from {from}"),
        (None, None) => op.to_owned(),
    }
}

fn what(record: &RecordView<'_>, command: Option<Vec<String>>) -> SummaryRecordKind {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    if let Some(arguments) = command {
        let network = record.facts.as_ref().and_then(|facts| facts.get("agentNetwork"));
        return SummaryRecordKind::Command {
            arguments,
            is_own: record.op() == Some("sandbox"),
            network: network.filter(|network| network.is_object()).cloned(),
        };
    }
    if let (Kind::Outcome | Kind::Recovered, Some(of)) = (record.kind, record.of) {
        if let (Some("deny"), Some(host)) = (record.decision(), record.subject()) {
            let rule = record.rule().unwrap_or("-").to_owned();
            return SummaryRecordKind::CutOff {
                of,
                host: host.into_owned(),
                rule,
                ended: EndedConnection::of(record),
            };
        }
        return SummaryRecordKind::Outcome {
            of,
            result: record.result().unwrap_or_default().to_owned(),
            ended: EndedConnection::of(record),
        };
    }
    if let Some(change) = Change::of(record) {
        return SummaryRecordKind::Change(Box::new(change));
    }
    if record.op() == Some("connect") && record.kind == Kind::Intent {
        return SummaryRecordKind::Connection(connection_key(record).unwrap_or_default());
    }
    if record.op() == Some("label") {
        let labels = record.facts.as_ref().and_then(|facts| facts.get("labels")?.as_object());
        let read = |(id, path): (&String, &Value)| Some((path.as_str()?.to_owned(), id.clone()));
        return SummaryRecordKind::Labels(labels.into_iter().flatten().filter_map(read).collect());
    }
    if record.op() == Some("repeats") {
        let paths = record.facts.as_ref().and_then(|facts| facts.get("paths")?.as_array());
        let count = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        let repeat = |entry: &Value| {
            let path = entry.get("path")?.as_str()?.to_owned();
            Some((path, count(entry, "opens"), count(entry, "denials")))
        };
        return SummaryRecordKind::Repeats(
            paths.into_iter().flatten().filter_map(repeat).collect(),
        );
    }
    let is_denied = record.decision() == Some("deny");
    let path = record.subject().or_else(|| is_denied.then(|| denied_message(record).into()));
    if let (Kind::Decision, Some(op), Some(path)) = (record.kind, record.op(), path) {
        let reason = || record.fact("reason").or(record.reason()).unwrap_or("-");
        let rule = || record.rule().unwrap_or_else(reason).to_owned();
        let word = match (record.decision(), record.result()) {
            (Some("deny"), _) => Some(("denied", rule())),
            (Some("ask"), _) => Some(("asked", rule())),
            (_, Some("ok") | None) => None,
            (_, Some(result)) => Some(("failed", result.to_owned())),
        };
        let findings = findings(record);
        return SummaryRecordKind::Request {
            op: op.to_owned(),
            path: path.into_owned(),
            word,
            findings,
        };
    }
    let what = match (record.kind, record.op()) {
        (Kind::Decision, Some(op)) => op.to_owned(),
        _ => record.kind_name().to_owned(),
    };
    SummaryRecordKind::Note(Box::new(Note {
        seq: record.seq,
        t: record.t.as_str().to_owned(),
        what,
        turn: None,
        result: owned(record.result()),
        path: owned(record.path()),
        facts: record.facts.clone().unwrap_or_default(),
    }))
}
