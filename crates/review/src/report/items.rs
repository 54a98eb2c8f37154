//! What a report consists of.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// Decisions in an hour or a day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Activity {
    /// Which: `2026-11-21T08` or `2026-11-21`.
    pub from: String,
    /// Requests allowed.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
}

/// What one agent did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Sessions.
    pub sessions: u64,
    /// Requests allowed.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Changes made.
    pub changes: u64,
    /// Bytes of content disclosed.
    pub bytes_read: u64,
    /// Bytes of content stored.
    pub bytes_written: u64,
    /// Its first record's time.
    pub first: String,
    /// Its last one's.
    pub last: String,
    #[serde(skip)]
    pub(super) ids: BTreeSet<String>,
}

/// What one rule decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// The rule.
    pub rule: String,
    /// How: `allow`, `deny`, `ask`, or `observed`: it would be denied in another mode.
    pub decision: String,
    /// The policy file that holds it.
    pub policy: Option<String>,
    /// Decisions.
    pub records: u64,
}

/// Decisions about one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The operation.
    pub op: String,
    /// Requests allowed.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
}

/// What went to and came from one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connected {
    /// The host and the port.
    pub host: String,
    /// Connections that have ended.
    pub connections: u64,
    /// Bytes that came from it.
    pub bytes_in: u64,
    /// Bytes that were sent to it.
    pub bytes_out: u64,
}

impl Connected {
    pub(super) fn add(&mut self, connections: u64, bytes_in: u64, bytes_out: u64) {
        self.connections += connections;
        self.bytes_in = self.bytes_in.saturating_add(bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(bytes_out);
    }
}

/// An attempt that was denied, or would be in another mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "FORMAT.md says what the fields are")]
pub struct Denied {
    pub seq: u64,
    pub t: String,
    pub agent: Option<String>,
    pub op: Option<String>,
    pub path: Option<String>,
    pub to: Option<String>,
    pub rule: Option<String>,
    pub reason: Option<String>,
}

/// Secrets found in one content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "FORMAT.md says what the fields are")]
pub struct Finding {
    pub seq: u64,
    pub t: String,
    pub agent: Option<String>,
    pub op: Option<String>,
    pub path: Option<String>,
    pub decision: Option<String>,
    /// The rules that found them, each with how often.
    pub rules: BTreeMap<String, u64>,
}

/// What became of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Its path; of a rename the old one.
    pub path: String,
    /// Changes made.
    pub changes: u64,
    /// Content before the first.
    pub before: Option<String>,
    /// Content after the last.
    pub after: Option<String>,
    /// The last operation.
    pub op: String,
    /// Its new path, when that was a rename.
    pub to: Option<String>,
    /// Who made it.
    pub agent: String,
    /// In which record.
    pub seq: u64,
    /// The first change's record.
    #[serde(skip)]
    pub(super) first: u64,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "FORMAT.md says what the fields are")]
pub struct Approval {
    pub seq: u64,
    pub t: String,
    pub agent: Option<String>,
    pub op: Option<String>,
    pub path: Option<String>,
    pub decision: Option<String>,
    pub result: Option<String>,
    pub reason: Option<String>,
    /// Who answered, and what else there is to say.
    pub facts: BTreeMap<String, Value>,
}

/// A gate began to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateStart {
    /// The record.
    pub seq: u64,
    /// When.
    pub t: String,
    /// The agent that it served.
    pub agent: Option<String>,
    /// How the agent was confined: `full`, `partial`, `none`; `None` for
    /// commands of a person.
    pub enforcement: Option<String>,
    /// The policy's mode: `enforce` or `observe`.
    pub mode: Option<String>,
    /// Whether it stopped in order.
    pub stopped: bool,
    #[serde(skip)]
    pub(super) boot: String,
}

/// A policy that a running gate took up, or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyChange {
    /// The record that tells of it.
    pub seq: u64,
    /// When.
    pub t: String,
    /// The agent that the gate served.
    pub agent: Option<String>,
    /// `ok` or `refused`.
    pub result: Option<String>,
    /// Why it was refused.
    pub reason: Option<String>,
    /// Its hash, if it got that far.
    pub sha256: Option<String>,
    /// Version, trigger and the like.
    pub facts: BTreeMap<String, Value>,
}

/// What a recovery took out of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetAside {
    /// The record that tells of it.
    pub seq: u64,
    /// When.
    pub t: String,
    /// What, where and which hash.
    pub facts: BTreeMap<String, Value>,
}

impl Agent {
    /// Adds what it did later in the log.
    pub(super) fn merge(&mut self, later: Self) {
        self.allowed += later.allowed;
        self.denied += later.denied;
        self.changes += later.changes;
        self.bytes_read = self.bytes_read.saturating_add(later.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(later.bytes_written);
        self.last = later.last;
        self.ids.extend(later.ids);
        self.sessions = self.ids.len() as u64;
    }
}
