//! The items of a report.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// Decisions in an hour or a day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Activity {
    /// The hour, day or month: `2026-11-21T08`, `2026-11-21` or `2026-11`.
    pub from: String,
    /// Number of allowed requests.
    pub allowed: u64,
    /// Number of denied requests.
    pub denied: u64,
}

/// The activity of one agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of allowed requests.
    pub allowed: u64,
    /// Number of denied requests.
    pub denied: u64,
    /// Number of changes made.
    pub changes: u64,
    /// Bytes of content disclosed.
    pub bytes_read: u64,
    /// Bytes of content stored.
    pub bytes_written: u64,
    /// The time of its first record.
    pub first: String,
    /// The time of its last record.
    pub last: String,
    #[serde(skip)]
    pub(super) ids: BTreeSet<String>,
}

/// The decisions of one rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// The rule.
    pub rule: String,
    /// The decision: `allow`, `deny`, `ask`, or `observed` if only observe mode allowed it.
    pub decision: String,
    /// The name of the policy file that contains it, without its directory.
    pub policy: Option<String>,
    /// Number of decisions.
    pub records: u64,
}

/// Decisions about one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The operation.
    pub op: String,
    /// Number of allowed requests.
    pub allowed: u64,
    /// Number of denied requests.
    pub denied: u64,
}

/// Bytes received from and sent to one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connected {
    /// The host and the port.
    pub host: String,
    /// Number of connections that have ended.
    pub connections: u64,
    /// Number of these that were cut off.
    pub denied: u64,
    /// Number of these whose bytes are unknown: an end has no record, or no count of both
    /// directions.
    pub uncounted: u64,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// Bytes sent to it.
    pub bytes_out: u64,
}

impl Connected {
    pub(super) fn add(&mut self, more: &Self) {
        self.connections += more.connections;
        self.denied += more.denied;
        self.uncounted += more.uncounted;
        self.bytes_in = self.bytes_in.saturating_add(more.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(more.bytes_out);
    }
}

/// The uses of a label that are on record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelUse {
    /// The label.
    pub label: String,
    /// Reads and searches that were shown its content.
    pub reads: u64,
    /// Changes by agents that carried it.
    pub changes: u64,
}

/// Equal requests that were denied, or that only observe mode allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "FORMAT.md says what the fields are")]
pub struct Denied {
    /// The index of the first record.
    pub seq: u64,
    /// The time of the first record.
    pub t: String,
    /// The time of the last record.
    pub last: String,
    /// Number of records.
    pub times: u64,
    pub agent: Option<String>,
    pub op: Option<String>,
    pub path: Option<String>,
    pub to: Option<String>,
    pub rule: Option<String>,
    /// The reason of the first record.
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
    /// The number of findings by rule.
    pub rules: BTreeMap<String, u64>,
}

/// The changes of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Its path; for a rename the old one.
    pub path: String,
    /// Number of changes.
    pub changes: u64,
    /// Hash of the content before the first change.
    pub before: Option<String>,
    /// Hash of the content after the last change.
    pub after: Option<String>,
    /// The last operation.
    pub op: String,
    /// Its new path, if the last operation was a rename.
    pub to: Option<String>,
    /// The agent that made the last change.
    pub agent: String,
    /// The index of the last change.
    pub seq: u64,
    /// The index of the first change.
    #[serde(skip)]
    pub(super) first: u64,
}

/// A person's reply to a question.
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
    /// The person who replied, and further facts.
    pub facts: BTreeMap<String, Value>,
}

/// The start of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStart {
    /// The index of the record.
    pub seq: u64,
    /// The time.
    pub t: String,
    /// The agent that it served.
    pub agent: Option<String>,
    /// The enforcement of the agent's sandbox: `full`, `partial`, `none`; `None` for commands of a
    /// person.
    pub enforcement: Option<String>,
    /// The policy's mode: `enforce` or `observe`.
    pub mode: Option<String>,
    /// The mode of rules of hosts: `enforce` or `observe`.
    pub network_mode: Option<String>,
    /// The agent's network: `none`, or the connections that it could make past the rules of hosts and
    /// the record, because it shared the host's (`--agent-network`): `ports`, and `dns`. `None` for
    /// commands of a person.
    pub agent_network: Option<serde_json::Value>,
    /// True if it stopped in order.
    pub stopped: bool,
    #[serde(skip)]
    pub(super) boot: String,
}

impl GatewayStart {
    /// Returns the connections that the agent could make past the rules of hosts, if it shared the
    /// host's network.
    pub(super) fn shared_network(&self) -> Option<&serde_json::Value> {
        self.agent_network.as_ref().filter(|network| network.is_object())
    }
}

/// A policy that a running gateway loaded or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyChange {
    /// The index of the record.
    pub seq: u64,
    /// The time.
    pub t: String,
    /// The agent that the gateway served.
    pub agent: Option<String>,
    /// `ok` or `refused`.
    pub result: Option<String>,
    /// The reason for a refusal.
    pub reason: Option<String>,
    /// Its hash, if it could be computed.
    pub sha256: Option<String>,
    /// Version, trigger and further facts.
    pub facts: BTreeMap<String, Value>,
}

/// Damaged bytes that a recovery set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetAside {
    /// The index of the record.
    pub seq: u64,
    /// The time.
    pub t: String,
    /// The damage, its place and the hash of the bytes.
    pub facts: BTreeMap<String, Value>,
}

impl Agent {
    /// Adds the agent's activity in a later part of the log.
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
