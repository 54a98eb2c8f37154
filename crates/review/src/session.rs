//! One session: its requests, decisions and changes, in order.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{self, Read as _},
    ops::ControlFlow,
};

use portcullis_audit::{Hash, Kind, RecordView};

use super::{
    Filter, Log, MAX_READ, ScanOrder, Scanned,
    report::digest::findings,
    scan::{MAX_STORED_BYTES, OVERHEAD},
};
use crate::{
    change::Change,
    gateway::{
        Backup, BackupError, BackupKind, BackupStore, CONTEXT, Fingerprint, Workspace, unified_diff,
    },
    model::{OperationKind, WorkspacePath, is_text},
};

/// Maximum size of a content that is compared, in bytes.
const MAX_BYTES: u64 = 1 << 20;

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
    pub answer: Option<u64>,
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
            answer: None,
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
    fn answered(&mut self, answer: Answer) {
        let Answer { seq, result, counts, denial } = answer;
        (self.answer, self.result, self.counts) = (Some(seq), Some(result), counts);
        if let Some((rule, reason)) = denial {
            (self.decision, self.rule, self.reason) = (Some("deny".to_owned()), rule, reason);
        }
    }
}

/// An outcome.
struct Answer {
    seq: u64,
    result: String,
    counts: BTreeMap<String, u64>,
    /// The rule and the reason of a denial.
    denial: Option<(Option<String>, Option<String>)>,
}

impl Answer {
    fn of(record: &RecordView<'_>) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let is_denial = record.decision() == Some("deny");
        Self {
            seq: record.seq,
            result: record.result().unwrap_or_default().to_owned(),
            counts: record.counts.clone().unwrap_or_default(),
            denial: is_denial.then(|| (owned(record.rule()), owned(record.reason()))),
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
    Answer(u64, Answer),
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
                    SessionPart::Answer(of, Answer::of(record))
                }
                (Kind::Intent, _) => match Change::of(record) {
                    Some(change) => SessionPart::Event(id, Event::Change(Box::new(change))),
                    None => SessionPart::Event(id, Event::Other(Box::new(OtherRecord::of(record)))),
                },
                _ => SessionPart::Event(id, Event::Other(Box::new(OtherRecord::of(record)))),
            };
            Some((piece, record.seq, line.len() + OVERHEAD))
        };
        let (mut events, mut answers) = (Vec::new(), BTreeMap::new());
        let mut ids = std::collections::BTreeSet::new();
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
                SessionPart::Answer(of, answer) => {
                    answers.insert(of, answer);
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
            let Some(answer) = answers.remove(&seq) else { continue };
            match event {
                Event::Change(change) => {
                    (change.answer, change.result) = (Some(answer.seq), Some(answer.result));
                }
                Event::Other(other) => other.answered(answer),
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
    pub fn is_whole(&self) -> bool {
        matches!(self.events.first(), Some(Event::Other(other)) if other.kind == "start")
    }
}

/// Returns the session of the newest record for which `matches` is true.
///
/// # Errors
/// When the log cannot be read.
pub fn last_session(
    log: &Log,
    matches: impl Fn(&RecordView<'_>) -> bool + Sync,
) -> io::Result<Option<String>> {
    log.newest(&Filter::default(), |record| {
        record.session().filter(|_| matches(record)).map(str::to_owned)
    })
}

/// Lists the sessions of a log, the newest last: identifier, agent, first and last time, number of
/// records.
///
/// # Errors
/// If the log cannot be read.
pub fn sessions(log: &Log) -> io::Result<super::Stats> {
    super::Stats::of(log, &Filter::default(), &[super::Field::Session, super::Field::Agent])
}

/// The difference that a change made to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// A unified diff; empty if nothing changed.
    Text(String),
    /// At least one side is not text.
    Binary,
    /// At least one side is too large for a comparison.
    Large,
    /// No copy of this side exists any more: `before` or `after`.
    Lost(&'static str),
    /// No backup has this side, and the workspace is not available.
    NotLookedAt(&'static str),
    /// The change was not one of a single file's content.
    None,
}

/// Finds contents in the backup store and on the disk, and compares them. They are the stored
/// contents, without redaction.
pub struct Patches<'a> {
    backup_store: Option<&'a BackupStore>,
    workspace: Option<&'a Workspace>,
    entries: BTreeMap<WorkspacePath, Vec<Backup>>,
}

impl<'a> Patches<'a> {
    /// Uses this backup store and this workspace, if it is available.
    pub fn new(backup_store: Option<&'a BackupStore>, workspace: Option<&'a Workspace>) -> Self {
        Self { backup_store, workspace, entries: BTreeMap::new() }
    }

    /// Returns the difference that the change made.
    ///
    /// # Errors
    /// If the backup store cannot be read.
    pub fn of(&mut self, change: &Change) -> Result<Patch, BackupError> {
        if !change.is_made()
            || matches!(
                change.operation,
                OperationKind::Mkdir | OperationKind::Rename | OperationKind::SetAttributes
            )
        {
            return Ok(Patch::None);
        }
        let before = match change.before {
            None => Content::Nothing,
            Some(hash) => self.find(&change.path, hash)?,
        };
        let after = match change.after {
            None => Content::Nothing,
            Some(hash) => self.find(&change.path, hash)?,
        };
        Ok(match (before, after) {
            (Content::Nothing, Content::Nothing) | (Content::Tree, _) | (_, Content::Tree) => {
                Patch::None
            }
            (Content::Lost, _) => self.lost("before"),
            (_, Content::Lost) => self.lost("after"),
            (Content::Large, _) | (_, Content::Large) => Patch::Large,
            (before, after) => diff(&change.path, before, after),
        })
    }

    fn lost(&self, side: &'static str) -> Patch {
        if self.workspace.is_some() { Patch::Lost(side) } else { Patch::NotLookedAt(side) }
    }

    fn find(&mut self, path: &WorkspacePath, hash: Hash) -> Result<Content, BackupError> {
        let Some(backup_store) = self.backup_store else {
            return Ok(self.on_disk(path, hash).unwrap_or(Content::Lost));
        };
        if !self.entries.contains_key(path) {
            let entries = backup_store.entries_of(path)?.entries;
            self.entries.insert(path.clone(), entries);
        }
        let entries = self.entries.get(path).map(Vec::as_slice).unwrap_or_default();
        if let Some(entry) = entries.iter().find(|entry| entry.sha256 == hash) {
            return match entry.kind {
                BackupKind::Tree => Ok(Content::Tree),
                _ if entry.bytes > MAX_BYTES => Ok(Content::Large),
                _ => {
                    let mut bytes = Vec::new();
                    let mut content = backup_store.content(entry)?;
                    match content.read_to_end(&mut bytes) {
                        Ok(_) => Ok(Content::Bytes(bytes)),
                        Err(error) => Err(content.failed(error)),
                    }
                }
            };
        }
        Ok(self.on_disk(path, hash).unwrap_or(Content::Lost))
    }

    /// Returns the content on disk, if it has this hash.
    fn on_disk(&self, path: &WorkspacePath, hash: Hash) -> Option<Content> {
        let workspace = self.workspace?.view();
        match workspace.read(path, MAX_BYTES).ok()? {
            Some(bytes) => (Hash::of(&bytes) == hash).then_some(Content::Bytes(bytes)),
            None => match workspace.fingerprint(path, MAX_READ).ok()? {
                Fingerprint::File(found, _) if found == hash => Some(Content::Large),
                _ => None,
            },
        }
    }
}

enum Content {
    Nothing,
    Bytes(Vec<u8>),
    Large,
    Tree,
    Lost,
}

fn diff(path: &WorkspacePath, before: Content, after: Content) -> Patch {
    let text = |content| match content {
        Content::Bytes(bytes) if is_text(&bytes) => String::from_utf8(bytes).ok(),
        Content::Bytes(_) => None,
        _ => Some(String::new()),
    };
    let side = |name: &str, content: &Content| match content {
        Content::Nothing => "/dev/null".to_owned(),
        _ => format!("{name}/{path}"),
    };
    let (old, new) = (side("a", &before), side("b", &after));
    match (text(before), text(after)) {
        (Some(before), Some(after)) => {
            Patch::Text(unified_diff(&before, &after, (&old, &new), CONTEXT))
        }
        _ => Patch::Binary,
    }
}
