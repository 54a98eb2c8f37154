//! A change of the workspace as the log tells it: an intent with what became of it.

use portcullis_audit::{Hash, RecordView};

use crate::{
    gateway::{BackupId, SomeAttributes},
    model::{OperationKind, WorkspacePath},
};

/// The fact in the record of an undo's step that names the records which are undone
/// once it is taken.
pub(crate) const UNDOES: &str = "undoes";

/// The fact in the record of a change that names the first one of those that a program made of
/// a file while it had it open.
pub(crate) const CONTINUES: &str = "continues";

/// The fact in the record of a rename by which what had the new path got the old one.
pub(crate) const EXCHANGE: &str = "exchange";

/// One change. All texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The intent's number.
    pub seq: u64,
    /// When it was decided.
    pub t: String,
    /// The session that asked.
    pub session: String,
    /// The agent's name.
    pub agent: String,
    /// The system's user for whom the gateway ran.
    pub user: Option<String>,
    /// How the request came.
    pub door: Option<String>,
    /// The operation.
    pub operation: OperationKind,
    /// The canonical path; of a rename the old one.
    pub path: WorkspacePath,
    /// The new path of a rename.
    pub to: Option<WorkspacePath>,
    /// Whether what had the new path of a rename got the old one.
    pub exchange: bool,
    /// Whether the rule would deny it, and the mode let it pass.
    pub would_deny: bool,
    /// The deciding rule.
    pub rule: Option<String>,
    /// The policy file that holds it.
    pub policy: Option<String>,
    /// Its line there.
    pub line: Option<u64>,
    /// The policy in force.
    pub policy_sha256: Option<String>,
    /// Bytes stored.
    pub bytes: Option<u64>,
    /// Hash of the content before.
    pub before: Option<Hash>,
    /// Hash of the content after; of a tree its fingerprint.
    pub after: Option<Hash>,
    /// The backup of what was replaced or removed.
    pub backup: Option<BackupId>,
    /// The backup that a restore put back.
    pub restored: Option<BackupId>,
    /// Attributes that were set.
    pub attributes: Option<SomeAttributes>,
    /// What these were before.
    pub attributes_before: Option<SomeAttributes>,
    /// How many directories were made on the way.
    pub directories: usize,
    /// The records that it undid.
    pub undoes: Vec<u64>,
    /// The record of the change that it goes on with: both are undone together.
    pub continues: Option<u64>,
    /// True if content went to an editor's buffer.
    pub editor: bool,
    /// The record that says what became of it.
    pub answer: Option<u64>,
    /// What became of it: `ok`, or another word.
    pub result: Option<String>,
}

impl Change {
    /// The change that an intent tells of; `None` when it is none that could be
    /// understood.
    pub(crate) fn of(record: &RecordView<'_>) -> Option<Self> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let path = |text: &str| WorkspacePath::parse(text).ok();
        let id = |text: &str| text.parse().ok();
        let attributes = |name| SomeAttributes::parse(record.facts.as_ref()?.get(name)?);
        let undoes = record.facts.as_ref().and_then(|facts| facts.get(UNDOES)?.as_array());
        let directories = record.counts.as_ref().and_then(|counts| counts.get("directories"));
        Some(Self {
            seq: record.seq,
            t: record.t.as_str().to_owned(),
            session: record.session().unwrap_or_default().to_owned(),
            agent: record.agent().unwrap_or_default().to_owned(),
            user: owned(record.user()),
            door: owned(record.door()),
            operation: record.op()?.parse().ok()?,
            path: path(record.canonical_path()?)?,
            to: match record.to() {
                Some(to) => Some(path(to)?),
                None => None,
            },
            exchange: record.facts.as_ref().is_some_and(|facts| facts.contains_key(EXCHANGE)),
            would_deny: record.would_deny == Some(true),
            rule: owned(record.rule()),
            policy: owned(record.policy()),
            line: record.line,
            policy_sha256: owned(record.policy_sha256()),
            bytes: record.bytes,
            before: record.before,
            after: record.after,
            backup: record.backup().and_then(id),
            restored: record.fact("fromBackup").and_then(id),
            attributes: attributes("attributes"),
            attributes_before: attributes("attributesBefore"),
            directories: usize::try_from(directories.copied().unwrap_or(0)).unwrap_or(usize::MAX),
            undoes: undoes.into_iter().flatten().filter_map(|seq| seq.as_u64()).collect(),
            continues: record.facts.as_ref().and_then(|facts| facts.get(CONTINUES)?.as_u64()),
            editor: record.source() == Some("editor"),
            answer: None,
            result: None,
        })
    }

    /// True if it is known to have been made.
    pub fn is_made(&self) -> bool {
        matches!(self.result.as_deref(), Some("ok" | "buffered" | "committed"))
            && !self.is_nothing()
    }

    /// True if it left all as it was: a rename onto itself, or a directory that was
    /// there. Taken for a change it would hide what the last one left.
    pub fn is_nothing(&self) -> bool {
        self.result.as_deref() == Some("unchanged") || self.to.as_ref() == Some(&self.path)
    }

    /// True if it touched the path, what is beneath it, or what it is beneath.
    pub fn touches(&self, path: &WorkspacePath) -> bool {
        let related = |other: &WorkspacePath| other.is_within(path) || path.is_within(other);
        related(&self.path) || self.to.as_ref().is_some_and(related)
    }
}
