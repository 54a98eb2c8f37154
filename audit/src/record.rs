//! One record of the audit log: the fields, their order and their meaning.
//!
//! FORMAT.md is the specification; this file follows it.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use serde_json::Value;

use crate::{Hash, LineError, RecordView};

/// Kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// A gateway started: enforcement, policy, configuration.
    Start,
    /// A request was decided and, unless it was denied or failed, answered; nothing in the
    /// workspace changed.
    Decision,
    /// A change was decided and backed up, and is about to be made.
    Intent,
    /// The outcome of the intent `of`.
    Outcome,
    /// A state left by a crash was repaired.
    Recovered,
    /// A policy came into force.
    Policy,
    /// A person replied to a question.
    Approval,
    /// A signed checkpoint was made.
    Checkpoint,
    /// Old segments were removed; their root hashes remain.
    Pruned,
    /// A gateway stopped in order.
    Stop,
    /// A kind that this version does not know.
    Unknown,
}

impl Kind {
    /// The number of kinds, including the unknown one.
    pub(crate) const COUNT: usize = 11;
    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Start,
        Self::Decision,
        Self::Intent,
        Self::Outcome,
        Self::Recovered,
        Self::Policy,
        Self::Approval,
        Self::Checkpoint,
        Self::Pruned,
        Self::Stop,
        Self::Unknown,
    ];

    /// Returns the name in records; for [`Kind::Unknown`] it is `unknown`, which no record
    /// contains.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Decision => "decision",
            Self::Intent => "intent",
            Self::Outcome => "outcome",
            Self::Recovered => "recovered",
            Self::Policy => "policy",
            Self::Approval => "approval",
            Self::Checkpoint => "checkpoint",
            Self::Pruned => "pruned",
            Self::Stop => "stop",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the kind with this name, or [`Kind::Unknown`].
    pub fn from_word(word: &str) -> Self {
        match word {
            "start" => Self::Start,
            "decision" => Self::Decision,
            "intent" => Self::Intent,
            "outcome" => Self::Outcome,
            "recovered" => Self::Recovered,
            "policy" => Self::Policy,
            "approval" => Self::Approval,
            "checkpoint" => Self::Checkpoint,
            "pruned" => Self::Pruned,
            "stop" => Self::Stop,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The content of a record without the fields that depend on its position. Fields that do not apply
/// are omitted from the line.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draft {
    /// Random ID of the gateway process's lifetime, 32 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The session of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The agent's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The system user that the gateway serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The transport: `cli`, `acp`, `mcp`, `mount`, `proxy`, ….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The operation: `read`, `write`, ….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The path in the request, relative to the workspace root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The canonical path, if links made it a different one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<String>,
    /// The new path of a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The name, beside the object, under which a change is prepared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temp: Option<String>,
    /// `allow`, `deny` or `ask`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// True if the policy denies it in observe mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<bool>,
    /// The ID of the rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The policy file that contains the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// SHA-256 of the policy in force, with all files that it extends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_sha256: Option<String>,
    /// The rule's line in that file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The reason, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes disclosed or stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// SHA-256 of the content before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Hash>,
    /// SHA-256 of the content after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Hash>,
    /// The backup of the entry that was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// The source or destination of content other than the disk: `editor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Secrets found: rule ID, line and salted hash of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub findings: Option<Vec<Value>>,
    /// Named numbers, such as that of the entries that a list disclosed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<BTreeMap<String, u64>>,
    /// Named facts for which there is no other field, such as the enforcement of a `start` record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<BTreeMap<String, Value>>,
    /// The sequence number of the intent that this record refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// The result: `ok` or the kind of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// Version of the format: 1.
    pub v: u64,
    /// Index in the chain, counted from 0.
    pub seq: u64,
    /// The kind.
    pub kind: Kind,
    /// The time, RFC 3339 in UTC with microseconds.
    pub t: String,
    /// The fields that depend on the kind.
    #[serde(flatten)]
    pub draft: Draft,
    /// 128 random bits in hex, so that a leaf hash discloses no content.
    pub nonce: String,
    /// Leaf hash of the record before; 64 zeros for the first.
    pub prev: Hash,
}

impl AuditRecord {
    /// Parses a line without its newline. Fields that this version does not know are left out.
    ///
    /// # Errors
    ///
    /// If the line is not a record, see [`LineError`].
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        RecordView::parse(line).map(RecordView::into_record)
    }
}
