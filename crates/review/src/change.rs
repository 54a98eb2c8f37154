//! A change of the workspace in the log: an intent with its outcome.

use portcullis_audit::{Hash, Kind, RecordView};

use crate::{
    gateway::{BackupId, EntryIdentity, SomeAttributes},
    model::{OperationKind, WorkspacePath},
};

/// The fact in the record of an undo's step that lists the records which are undone after it.
pub(crate) const UNDOES: &str = "undoes";

/// The fact in the record of an undo's step that lists the records which later steps finish undoing.
pub(crate) const STEP_OF: &str = "stepOf";

/// The fact in the record of a change that names the first change which a program made of the file
/// while it had it open.
pub(crate) const CONTINUES: &str = "continues";

/// The fact in the record of a rename that exchanged two entries.
pub(crate) const EXCHANGE: &str = "exchange";

/// One change. All texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The index of the intent.
    pub seq: u64,
    /// The time of the decision.
    pub t: String,
    /// The session of the request.
    pub session: String,
    /// The agent's name.
    pub agent: String,
    /// The system user that the gateway served.
    pub user: Option<String>,
    /// The transport of the request.
    pub transport: Option<String>,
    /// The operation.
    pub operation: OperationKind,
    /// The canonical path; for a rename the old one.
    pub path: WorkspacePath,
    /// The new path of a rename.
    pub to: Option<WorkspacePath>,
    /// The target of a new symbolic link.
    pub target: Option<String>,
    /// True if a rename exchanged the entries of both paths.
    pub exchange: bool,
    /// True if the rule denies it and observe mode allowed it.
    pub would_deny: bool,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The policy file that contains it.
    pub policy: Option<String>,
    /// Its line in that file.
    pub line: Option<u64>,
    /// The hash of the policy in force.
    pub policy_sha256: Option<String>,
    /// Number of bytes stored.
    pub bytes: Option<u64>,
    /// Hash of the content before.
    pub before: Option<Hash>,
    /// Hash of the content after, or fingerprint of a tree.
    pub after: Option<Hash>,
    /// The backup of the entry that was replaced or removed.
    pub backup: Option<BackupId>,
    /// The backup that was restored.
    pub restored: Option<BackupId>,
    /// Attributes that were set.
    pub attributes: Option<SomeAttributes>,
    /// The attributes before.
    pub attributes_before: Option<SomeAttributes>,
    /// The entry that got another name or attributes, as it was afterwards.
    pub entry: Option<EntryIdentity>,
    /// The entry that got the old path in an exchange.
    pub other_entry: Option<EntryIdentity>,
    /// Number of parent directories that were missing when it was decided. Another request may have
    /// made some of them meanwhile.
    pub directories: usize,
    /// The records that it undid, if it is of an undo; several changes may undo one record.
    pub undoes: Option<Vec<u64>>,
    /// The records that it undid in part, if it is of an undo: further steps finish that.
    pub step_of: Vec<u64>,
    /// The index of the change that it continues; both are undone together.
    pub continues: Option<u64>,
    /// True if the content went to a buffer of the editor.
    pub editor: bool,
    /// The index of the outcome.
    pub outcome: Option<u64>,
    /// The result: `ok`, or another word.
    pub result: Option<String>,
    /// The reason of another result, in words.
    pub reason: Option<String>,
}

impl Change {
    /// Parses an intent; `None` if the record is none, or not of a change that can be interpreted.
    pub fn of(record: &RecordView<'_>) -> Option<Self> {
        if record.kind != Kind::Intent {
            return None;
        }
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let path = |text: &str| WorkspacePath::parse(text).ok();
        let id = |text: &str| text.parse().ok();
        let attributes = |name| SomeAttributes::parse(record.facts.as_ref()?.get(name)?);
        let entry = |name| EntryIdentity::parse(record.facts.as_ref()?.get(name)?);
        let list = |name| {
            let list = record.facts.as_ref()?.get(name)?.as_array()?;
            Some(list.iter().filter_map(serde_json::Value::as_u64).collect())
        };
        let directories = record.counts.as_ref().and_then(|counts| counts.get("directories"));
        Some(Self {
            seq: record.seq,
            t: record.t.as_str().to_owned(),
            session: record.session().unwrap_or_default().to_owned(),
            agent: record.agent().unwrap_or_default().to_owned(),
            user: owned(record.user()),
            transport: owned(record.transport()),
            operation: record.op()?.parse().ok()?,
            path: path(record.canonical_path()?)?,
            to: match record.to() {
                Some(to) => Some(path(to)?),
                None => None,
            },
            target: owned(record.fact("target")),
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
            entry: entry("entry"),
            other_entry: entry("otherEntry"),
            directories: usize::try_from(directories.copied().unwrap_or(0)).unwrap_or(usize::MAX),
            undoes: list(UNDOES),
            step_of: list(STEP_OF).unwrap_or_default(),
            continues: record.facts.as_ref().and_then(|facts| facts.get(CONTINUES)?.as_u64()),
            editor: record.source() == Some("editor"),
            outcome: None,
            result: None,
            reason: None,
        })
    }

    /// True if an intent is of a change that cannot be interpreted: it has no path, or one that no
    /// gateway writes, such as one with `..`.
    pub fn is_unreadable(record: &RecordView<'_>) -> bool {
        let is_path = |text: &str| WorkspacePath::parse(text).is_ok();
        let is_change = |op: &str| {
            let kind = op.parse::<OperationKind>();
            kind.is_ok_and(|kind| !matches!(kind, OperationKind::Connect | OperationKind::Command))
        };
        record.kind == Kind::Intent
            && record.op().is_some_and(is_change)
            && !(record.canonical_path().is_some_and(is_path) && record.to().is_none_or(is_path))
    }

    /// Returns the entry that it renames or gives attributes, as it is before.
    pub fn entry_before(&self) -> Option<EntryIdentity> {
        let modified = self.attributes_before.and_then(|attributes| attributes.modified);
        Some(self.entry.clone()?.with_modified(modified))
    }

    /// True if it is known to have been made.
    pub fn is_made(&self) -> bool {
        is_made(self.result.as_deref()) && !self.is_nothing()
    }

    /// True if it is known to have failed.
    pub fn is_failed(&self) -> bool {
        self.result.is_some() && !self.is_made() && !self.is_nothing()
    }

    /// True if it changed nothing: a rename onto itself, or a directory that existed. Taken for a
    /// change it would hide the state that the last one left.
    pub fn is_nothing(&self) -> bool {
        self.result.as_deref() == Some("unchanged") || self.to.as_ref() == Some(&self.path)
    }

    /// Returns the parent directories that it made, the innermost first.
    pub fn made_directories(&self) -> impl Iterator<Item = WorkspacePath> {
        let above = self.to.as_ref().unwrap_or(&self.path).ancestors();
        above.into_iter().rev().take(self.directories).filter(|directory| !directory.is_root())
    }

    /// True if it made the directory at `name` as a parent.
    pub fn makes_directory(&self, name: &WorkspacePath) -> bool {
        self.directories > 0 && self.made_directories().any(|directory| directory == *name)
    }

    /// True if it changed the path, something beneath it, or something above it.
    pub fn touches(&self, path: &WorkspacePath) -> bool {
        let related = |other: &WorkspacePath| other.is_within(path) || path.is_within(other);
        related(&self.path) || self.to.as_ref().is_some_and(related)
    }
}

/// True if a change is known to have been made, by the result of its outcome.
pub fn is_made(result: Option<&str>) -> bool {
    matches!(result, Some("ok" | "buffered" | "committed"))
}

/// True if a change was made, or may have been.
pub(crate) fn was_made(result: Option<&str>) -> bool {
    is_made(result) || matches!(result, None | Some("superseded"))
}
