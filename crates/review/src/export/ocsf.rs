//! Events of the Open Cybersecurity Schema Framework: class 1001, File System Activity, class 4001,
//! Network Activity, and class 6003, API Activity, with the profile `security_control`.
//!
//! Each request that named a path or a host becomes one event, and each other denial. A decision is in the position of its
//! record, a change or a connection in that of its outcome.

mod network;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    ops::ControlFlow,
};

use jiff::Timestamp;
use portcullis_audit::{Hash, RecordView};
use serde_json::{Map, Value, json};

use super::{Exported, Writer, untimed};
use crate::{Filter, Log, ScanOrder, Scanned, scan::OVERHEAD, visible_json};

/// Version of the schema.
pub const SCHEMA: &str = "1.8.0";

/// The number of SHA-256 in the schema (`fingerprint.algorithm_id`).
const SHA256: u32 = 3;

enum ExportPart {
    Event(String),
    /// A change without its outcome yet, and the number of bytes of its record.
    Waiting(u64, Waiting),
    /// A request with an invalid time, for which there is no event.
    Untimed(u64),
    Outcome {
        of: u64,
        seq: u64,
        result: String,
        reason: Option<String>,
        counts: Option<BTreeMap<String, u64>>,
        denial: Option<network::Denial>,
    },
}

struct Waiting {
    event: Box<Map<String, Value>>,
    bytes: usize,
}

/// Maximum of bytes of changes without an outcome yet: an event contains the path several times.
/// Gateways leave few of them, and small ones.
const MAX_WAITING: usize = 16 << 20;

/// Writes the requests that match `filter`, one JSON object per line. `device` is the name of the
/// machine on which the gateway ran, which is not recorded.
///
/// # Errors
/// If the log cannot be read or `out` cannot be written.
pub fn events(
    log: &Log,
    filter: &Filter,
    device: &str,
    out: &mut impl Write,
) -> io::Result<Exported> {
    let mut writer = Writer { out, rows: 0, error: None };
    let (mut waiting, mut bytes) = (BTreeMap::<u64, Waiting>::new(), 0);
    let pick = |record: &RecordView<'_>, line: &[u8]| match (record.kind_name(), record.of) {
        ("outcome" | "recovered", Some(of)) => Some(ExportPart::Outcome {
            of,
            seq: record.seq,
            result: record.result().unwrap_or_default().to_owned(),
            reason: record.reason().map(str::to_owned),
            counts: record.counts.clone(),
            denial: network::Denial::of(record, line, device, filter),
        }),
        ("decision" | "intent", _) if filter.matches(record) => {
            let about = match (is_connection(record), record.canonical_path()) {
                (true, _) => record.subject()?.into_owned(),
                (false, Some(path)) => path.to_owned(),
                (false, None) => other_denial(record)?,
            };
            let Ok(time) = record.t.as_str().parse() else {
                return Some(ExportPart::Untimed(record.seq));
            };
            let mut event = event(record, line, device, &about, time);
            if record.kind_name() == "intent" {
                let bytes = line.len() + OVERHEAD;
                return Some(ExportPart::Waiting(
                    record.seq,
                    Waiting { event: Box::new(event), bytes },
                ));
            }
            let result = record.result().unwrap_or_default();
            finish(&mut event, Some((result, record.reason())), None);
            Some(ExportPart::Event(text(event)))
        }
        _ => None,
    };
    // An outcome may be later than the period, and repeats little of its intent.
    let everything = Filter { since: filter.since.clone(), ..Filter::default() };
    let mut lost = Scanned::default();
    let mut scanned = log.scan(&everything, ScanOrder::Oldest, pick, |piece| match piece {
        ExportPart::Event(line) => writer.line(&line),
        ExportPart::Untimed(seq) => {
            untimed(seq, &mut lost);
            ControlFlow::Continue(())
        }
        ExportPart::Waiting(seq, event) => {
            bytes += event.bytes;
            waiting.insert(seq, event);
            while bytes > MAX_WAITING
                && let Some((seq, Waiting { mut event, bytes: its })) = waiting.pop_first()
            {
                bytes -= its;
                lost.damage(|| {
                    format!(
                        "too many changes wait for an outcome: that of record {seq} was not looked \
                         for any more"
                    )
                });
                finish(&mut event, None, None);
                writer.line(&text(*event))?;
            }
            ControlFlow::Continue(())
        }
        ExportPart::Outcome { of, seq, result, reason, counts, denial } => {
            let (mut event, outcome) = match (waiting.remove(&of), denial) {
                (Some(Waiting { mut event, bytes: its }), denial) => {
                    bytes -= its;
                    if let Some(denial) = denial {
                        denial.add_to(&mut event);
                    }
                    (event, Some(seq))
                }
                (None, Some(denial)) if denial.is_wanted => (denial.event, None),
                (None, _) => return ControlFlow::Continue(()),
            };
            finish(&mut event, Some((&result, reason.as_deref())), outcome);
            if event.contains_key("dst_endpoint") {
                network::end(&mut event, &result, counts.as_ref());
            }
            writer.line(&text(*event))
        }
    })?;
    for Waiting { mut event, .. } in waiting.into_values() {
        finish(&mut event, None, None);
        if writer.line(&text(*event)).is_break() {
            break;
        }
    }
    scanned.add(lost);
    writer.finish(scanned)
}

fn text(event: Map<String, Value>) -> String {
    visible_json(&Value::Object(event).to_string()).into_owned()
}

fn is_connection(record: &RecordView<'_>) -> bool {
    record.op() == Some("connect")
}

/// A class of events.
struct Class {
    uid: u32,
    name: &'static str,
    category: u32,
    category_name: &'static str,
    profiles: &'static [&'static str],
}

const FILES: Class = Class {
    uid: 1001,
    name: "File System Activity",
    category: 1,
    category_name: "System Activity",
    profiles: &["security_control"],
};

/// Denials of requests that named neither a path nor a host, such as commands and messages.
const API: Class = Class {
    uid: 6003,
    name: "API Activity",
    category: 6,
    category_name: "Application Activity",
    profiles: &["host", "security_control"],
};

/// Returns the subject of such a denial; `None` for another record.
fn other_denial(record: &RecordView<'_>) -> Option<String> {
    if record.decision() != Some("deny") || record.canonical_path().is_some() {
        return None;
    }
    let command = record.subject().map(std::borrow::Cow::into_owned);
    Some(command.unwrap_or_else(|| record.op().unwrap_or("message").to_owned()))
}

/// Returns the operation, and the machine and the transport as its source.
fn api_attributes(record: &RecordView<'_>, device: &str) -> Map<String, Value> {
    object(json!({
        "api": { "operation": record.op().unwrap_or("message") },
        "src_endpoint": {
            "hostname": device,
            "svc_name": record.transport().unwrap_or("unknown"),
        },
    }))
}

impl Class {
    /// Sets the activity of an event; `name` is the name of the event type.
    fn describe(&self, event: &mut Map<String, Value>, activity: ActivityId, name: &str) {
        let ActivityId(id, caption) = activity;
        event.extend(object(json!({
            "activity_id": id,
            "activity_name": name,
            "category_uid": self.category,
            "category_name": self.category_name,
            "class_uid": self.uid,
            "class_name": self.name,
            "type_uid": self.uid * 100 + id,
            "type_name": format!("{}: {caption}", self.name),
        })));
    }
}

/// An activity (`activity_id`), with its caption. The constants are those of the class for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ActivityId(u32, &'static str);

impl ActivityId {
    const CREATE: Self = Self(1, "Create");
    const READ: Self = Self(2, "Read");
    const UPDATE: Self = Self(3, "Update");
    const DELETE: Self = Self(4, "Delete");
    const RENAME: Self = Self(5, "Rename");
    const SET_ATTRIBUTES: Self = Self(6, "Set Attributes");
    const GET_ATTRIBUTES: Self = Self(8, "Get Attributes");
    const OTHER: Self = Self(99, "Other");

    fn of(record: &RecordView<'_>) -> Self {
        match record.op().unwrap_or_default() {
            "read" | "list" | "glob" | "grep" | "watch" => Self::READ,
            "stat" => Self::GET_ATTRIBUTES,
            "mkdir" | "symlink" => Self::CREATE,
            "setattr" => Self::SET_ATTRIBUTES,
            "write" | "append" | "edit" | "restore" => match record.before {
                None if record.kind_name() == "intent" => Self::CREATE,
                _ => Self::UPDATE,
            },
            "remove" => Self::DELETE,
            "rename" => Self::RENAME,
            _ => Self::OTHER,
        }
    }
}

/// Makes the event without its status.
fn event(
    record: &RecordView<'_>,
    line: &[u8],
    device: &str,
    about: &str,
    time: Timestamp,
) -> Map<String, Value> {
    let is_about_a_file = record.canonical_path().is_some();
    let (class, activity) = match (is_connection(record), is_about_a_file) {
        (true, _) => (network::CLASS, network::activity(record)),
        (false, true) => (FILES, ActivityId::of(record)),
        (false, false) => (API, ActivityId::OTHER),
    };
    let op = record.op().unwrap_or_default();
    let denied = record.decision() == Some("deny");
    let folder = matches!(op, "list" | "mkdir" | "glob" | "grep");
    // A denial does not disclose the object, nor its existence.
    let kind = match (denied, folder, record.before.is_some() || record.after.is_some()) {
        (false, true, _) => 2,
        (false, false, true) => 1,
        _ => 0,
    };
    let (severity, severity_id) = if denied { ("Medium", 3) } else { ("Informational", 1) };
    let (action, action_id, disposition, disposition_id) =
        match (record.decision(), record.would_deny) {
            (Some("deny"), _) => ("Denied", 2, "Blocked", 2),
            (Some("allow"), Some(true)) => ("Observed", 3, "Logged", 17),
            (Some("allow"), _) => ("Allowed", 1, "Allowed", 1),
            _ => ("Unknown", 0, "Unknown", 0),
        };
    let message = match record.rule() {
        Some(rule) => format!("{op} of {about}: {action} by {rule}"),
        None => format!("{op} of {about}"),
    };
    let mut event = object(json!({
        "severity_id": severity_id,
        "severity": severity,
        "time": time.as_millisecond(),
        "message": message,
        "action_id": action_id,
        "action": action,
        "disposition_id": disposition_id,
        "disposition": disposition,
        "is_alert": denied,
        "metadata": {
            "version": SCHEMA,
            "profiles": class.profiles,
            "product": {
                "name": "Portcullis",
                "vendor_name": "Portcullis",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "log_name": "audit",
            "log_version": "1",
            "original_time": record.t.as_str(),
            "sequence": record.seq,
            "uid": Hash::leaf(line),
        },
        "actor": { "app_name": record.agent().unwrap_or("unknown") },
        "device": { "type_id": 0, "type": "Unknown", "hostname": device },
    }));
    let ActivityId(id, caption) = activity;
    class.describe(&mut event, activity, if id == 99 && !op.is_empty() { op } else { caption });
    if is_connection(record) {
        event.extend(network::attributes(record));
    } else if !is_about_a_file {
        event.extend(api_attributes(record, device));
    } else {
        event.insert("file".to_owned(), file(about, kind, record.before));
    }
    if let Some(actor) = event.get_mut("actor").and_then(Value::as_object_mut) {
        if let Some(user) = record.user() {
            actor.insert("user".to_owned(), json!({ "name": user }));
        }
        if let Some(session) = record.session() {
            actor.insert("session".to_owned(), json!({ "uid": session }));
        }
    }
    let (to, after) = (record.to(), record.after);
    if !denied && !is_connection(record) && (to.is_some() || after.is_some()) {
        let result =
            file(to.unwrap_or(about), kind, after.filter(|_| record.kind_name() == "intent"));
        event.insert("file_result".to_owned(), result);
    }
    if let Some(policy) = record.policy_sha256() {
        let mut policy = object(json!({ "uid": policy, "is_applied": true }));
        if let Some(name) = record.policy() {
            policy.insert("name".to_owned(), name.into());
        }
        event.insert("policy".to_owned(), Value::Object(policy));
    }
    if let (Some(decision), Some(rule)) = (record.decision(), record.rule()) {
        let one = json!({ "decision": decision, "policy": { "name": rule, "type": "rule" } });
        event.insert("authorizations".to_owned(), json!([one]));
    }
    event.insert("unmapped".to_owned(), Value::Object(unmapped(record)));
    event
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn file(path: &str, kind: u32, hash: Option<Hash>) -> Value {
    let trimmed = path.trim_end_matches('/');
    let (parent, name) = trimmed.rsplit_once('/').unwrap_or((".", trimmed));
    let caption = match kind {
        1 => "Regular File",
        2 => "Folder",
        _ => "Unknown",
    };
    let mut file = object(json!({
        "name": name,
        "path": path,
        "parent_folder": parent,
        "type_id": kind,
        "type": caption,
    }));
    if let Some(hash) = hash {
        let print = json!({ "algorithm_id": SHA256, "algorithm": "SHA-256", "value": hash });
        file.insert("hashes".to_owned(), json!([print]));
    }
    Value::Object(file)
}

/// Collects the fields for which the schema has no attribute, under the names of the log.
fn unmapped(record: &RecordView<'_>) -> Map<String, Value> {
    let mut rest = object(json!({
        "kind": record.kind_name(),
        "boot": record.boot(),
        "transport": record.transport(),
        "op": record.op(),
        "requested": record.resolved().and(record.path()),
        "line": record.line,
        "reason": record.reason(),
        "bytes": record.bytes,
        "backup": record.backup(),
        "source": record.source(),
        "wouldDeny": record.would_deny,
        "findings": record.findings,
        "counts": record.counts,
        "facts": record.facts,
    }));
    rest.retain(|_, value| !value.is_null());
    rest
}

/// Adds the result.
fn finish(
    event: &mut Map<String, Value>,
    ended: Option<(&str, Option<&str>)>,
    outcome: Option<u64>,
) {
    let (status, id) = match ended.map(|(result, _)| result) {
        Some("ok" | "unchanged" | "buffered" | "committed" | "dryRun") => ("Success", 1),
        None | Some("superseded" | "") => ("Unknown", 0),
        Some(_) => ("Failure", 2),
    };
    event.insert("status".to_owned(), status.into());
    event.insert("status_id".to_owned(), id.into());
    if id != 1 {
        event.remove("file_result");
    }
    if let Some((result, reason)) = ended {
        if !result.is_empty() {
            event.insert("status_code".to_owned(), result.into());
        }
        if let Some(reason) = reason {
            event.insert("status_detail".to_owned(), reason.into());
        }
    }
    if let (Some(outcome), Some(rest)) =
        (outcome, event.get_mut("unmapped").and_then(Value::as_object_mut))
    {
        rest.insert("outcome".to_owned(), outcome.into());
    }
}
