//! Changes of the workspace as the log tells them: an intent with what became
//! of it.

use std::{collections::HashMap, ops::ControlFlow};

use portcullis_audit::{Hash, RecordView};

use super::{
    BlameError, Filter, Log, Order, Scanned,
    scan::{MAX_KEPT, OVERHEAD},
};
use crate::model::WorkspacePath;

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
    /// The system's user for whom the gate ran.
    pub user: Option<String>,
    /// How the request came.
    pub door: Option<String>,
    /// The operation.
    pub op: String,
    /// The object: the canonical path.
    pub path: WorkspacePath,
    /// The new path of a rename.
    pub to: Option<WorkspacePath>,
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
    /// Content before.
    pub before: Option<Hash>,
    /// Content after; of a tree its fingerprint.
    pub after: Option<Hash>,
    /// The backup of what was replaced.
    pub backup: Option<String>,
    /// The backup that a restore put back.
    pub restored: Option<String>,
    /// Whether content went to an editor's buffer.
    pub editor: bool,
    /// The record that says what became of it.
    pub answer: Option<u64>,
    /// What became of it: `ok`, or another word.
    pub result: Option<String>,
}

impl Change {
    /// Whether it is known to have been made.
    pub fn is_made(&self) -> bool {
        matches!(self.result.as_deref(), Some("ok" | "buffered" | "committed"))
            && !self.is_nothing()
    }

    /// Whether it left all as it was: a rename onto itself, or a directory that was
    /// there. Taken for a change it would hide what the last one left.
    pub fn is_nothing(&self) -> bool {
        self.result.as_deref() == Some("unchanged") || self.to.as_ref() == Some(&self.path)
    }

    /// Whether nobody knows: it is under way, its gate died, or something else
    /// was found in its place.
    pub fn is_open(&self) -> bool {
        matches!(self.result.as_deref(), None | Some("superseded"))
    }

    /// The change that an intent tells of; `None` when it is none that could be
    /// understood.
    pub(super) fn of(record: &RecordView<'_>) -> Option<Self> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some(Self {
            seq: record.seq,
            t: record.t.as_str().to_owned(),
            session: record.session().unwrap_or_default().to_owned(),
            agent: record.agent().unwrap_or_default().to_owned(),
            user: owned(record.user()),
            door: owned(record.door()),
            op: record.op()?.to_owned(),
            path: path(record.canonical_path()?)?,
            to: match record.to() {
                Some(to) => Some(path(to)?),
                None => None,
            },
            rule: owned(record.rule()),
            policy: owned(record.policy()),
            line: record.line,
            policy_sha256: owned(record.policy_sha256()),
            bytes: record.bytes,
            before: record.before,
            after: record.after,
            backup: owned(record.backup()),
            restored: owned(record.fact("fromBackup")),
            editor: record.source() == Some("editor"),
            answer: None,
            result: None,
        })
    }
}

/// A path as records write it: `.` is the root.
pub(super) fn path(text: &str) -> Option<WorkspacePath> {
    WorkspacePath::parse(text).ok()
}

/// What a record says of changes.
enum Piece {
    Intent(Box<Change>),
    Answer { of: u64, seq: u64, result: String },
}

impl Log {
    /// The changes whose intents `filter` wants, oldest first.
    ///
    /// # Errors
    /// When the log cannot be read, or has more of them than are kept at once: without the
    /// newest ones the others would tell of a file that is not there any more.
    pub(super) fn changes(&self, filter: &Filter) -> Result<(Vec<Change>, Scanned), BlameError> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (mut changes, mut answers) = (Vec::new(), HashMap::new());
        let wanted = Filter { kinds: words(&["intent", "outcome", "recovered"]), ..filter.clone() };
        let (mut kept, mut cut) = (0, None);
        let pick = |record: &RecordView<'_>, line: &[u8]| {
            Some((piece(record)?, record.seq, line.len() + OVERHEAD))
        };
        let scanned = self.scan(&wanted, Order::Oldest, pick, |(piece, seq, bytes)| {
            kept += bytes;
            if kept > MAX_KEPT {
                cut = Some(seq);
                return ControlFlow::Break(());
            }
            match piece {
                Piece::Intent(change) => changes.push(*change),
                Piece::Answer { of, seq, result } => {
                    answers.insert(of, (seq, result));
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(seq) = cut {
            return Err(BlameError::TooMany(seq));
        }
        answer(&mut changes, &mut answers);
        // An answer repeats little of its intent, so that the filter may have
        // left it out.
        if let Some(first) = changes.iter().find(|change| change.answer.is_none()) {
            let from = first.seq;
            let missing: std::collections::HashSet<u64> =
                changes.iter().filter(|c| c.answer.is_none()).map(|c| c.seq).collect();
            let rest = Filter {
                kinds: words(&["outcome", "recovered"]),
                records: Some(from..=u64::MAX),
                ..Filter::default()
            };
            let mut left = missing.len();
            let pick = |record: &RecordView<'_>, _line: &[u8]| {
                record.of.filter(|of| missing.contains(of)).and_then(|_| piece(record))
            };
            self.scan(&rest, Order::Oldest, pick, |piece| {
                if let Piece::Answer { of, seq, result } = piece {
                    answers.insert(of, (seq, result));
                    left -= 1;
                }
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            answer(&mut changes, &mut answers);
        }
        Ok((changes, scanned))
    }
}

fn piece(record: &RecordView<'_>) -> Option<Piece> {
    match (record.kind_name(), record.of) {
        ("intent", _) => Change::of(record).map(Box::new).map(Piece::Intent),
        (_, Some(of)) => {
            let result = record.result().unwrap_or_default().to_owned();
            Some(Piece::Answer { of, seq: record.seq, result })
        }
        _ => None,
    }
}

fn answer(changes: &mut [Change], answers: &mut HashMap<u64, (u64, String)>) {
    for change in changes {
        if let Some((seq, result)) = answers.remove(&change.seq) {
            change.answer = Some(seq);
            change.result = Some(result);
        }
    }
}
