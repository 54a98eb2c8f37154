//! What a verifier finds: damage, which makes a log invalid, and warnings,
//! which a person should look at.

use std::fmt;

use serde::Serialize;

/// What is wrong with a log. The names are stable: programs may match them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DamageKind {
    /// A name like a segment's that no segment has, or a segment that is no
    /// regular file.
    UnexpectedFile,
    /// A segment is not there although a later one is.
    MissingSegment,
    /// A segment before the last has fewer records than it must have.
    ShortSegment,
    /// A segment has more records than it may have.
    LongSegment,
    /// A compressed segment is not one whole frame of its content, or a segment
    /// is longer than any can be; nothing of it is read.
    BadSegment,
    /// The log ends within a line.
    TornTail,
    /// A segment before the last ends within a line.
    UnterminatedLine,
    /// A line is longer than a line may be.
    LongLine,
    /// A line is no record.
    MalformedRecord,
    /// A key stands twice in a record.
    DuplicateKey,
    /// A record of a later version of the format.
    UnsupportedVersion,
    /// A record does not have the sequence number of its place: records were
    /// removed, repeated or reordered.
    WrongSequence,
    /// A record's `prev` is not the hash of the record before: one of the two
    /// was changed.
    BrokenLink,
    /// A record answers what is no earlier, still unanswered intent.
    WrongReference,
    /// A checkpoint is none, or no known key signed it.
    BadCheckpoint,
    /// A checkpoint, or a kept root, is of other records than those in the log.
    WrongRoot,
    /// The log names another key than the one that is known.
    WrongKey,
    /// Something is signed, and the log's public key is not there.
    MissingKey,
    /// No checkpoint is right, though a key was given or a gate that signs stopped
    /// in order, which leaves one.
    MissingCheckpoint,
    /// The log ends before a record that a receipt or a checkpoint proves.
    MissingHead,
    /// The record that a receipt proves is another one in the log.
    WrongHead,
}

impl DamageKind {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnexpectedFile => "unexpected-file",
            Self::MissingSegment => "missing-segment",
            Self::ShortSegment => "short-segment",
            Self::LongSegment => "long-segment",
            Self::BadSegment => "bad-segment",
            Self::TornTail => "torn-tail",
            Self::UnterminatedLine => "unterminated-line",
            Self::LongLine => "long-line",
            Self::MalformedRecord => "malformed-record",
            Self::DuplicateKey => "duplicate-key",
            Self::UnsupportedVersion => "unsupported-version",
            Self::WrongSequence => "wrong-sequence",
            Self::BrokenLink => "broken-link",
            Self::WrongReference => "wrong-reference",
            Self::BadCheckpoint => "bad-checkpoint",
            Self::WrongRoot => "wrong-root",
            Self::WrongKey => "wrong-key",
            Self::MissingKey => "missing-key",
            Self::MissingCheckpoint => "missing-checkpoint",
            Self::MissingHead => "missing-head",
            Self::WrongHead => "wrong-head",
        }
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One damage and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// What is wrong.
    pub kind: DamageKind,
    /// The file; untrusted text.
    pub segment: String,
    /// The sequence number that belongs to the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The line in the file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// What was found, in words; may hold untrusted text.
    pub detail: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.segment)?;
        if let Some(line) = self.line {
            write!(f, " line {line}")?;
        }
        if let Some(seq) = self.seq {
            write!(f, " (record {seq})")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// What a person should look at though the chain is intact. The names are
/// stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WarningKind {
    /// A record's time is before that of the record before: the clock was set
    /// back.
    TimeWentBack,
    /// An intent without outcome: a gate is at work on it, or died and no
    /// gate has recovered it yet.
    UnansweredIntent,
    /// A record of a kind that this version does not know.
    UnknownKind,
    /// A file that does not belong to the log.
    UnknownFile,
    /// No checkpoint with a right signature, though a key was given or records
    /// name one.
    MissingCheckpoint,
    /// A receipt or a checkpoint from outside, of records that were pruned.
    PrunedHead,
    /// A witness that was asked for did not cosign the largest checkpoint, or a signature
    /// of one that is known is wrong.
    MissingWitness,
    /// The record that told of pruned segments was lost, and a recovery noted
    /// that they are missing.
    UnaccountedRecords,
    /// Something was set aside by a recovery.
    Quarantine,
}

impl WarningKind {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TimeWentBack => "time-went-back",
            Self::UnansweredIntent => "unanswered-intent",
            Self::UnknownKind => "unknown-kind",
            Self::UnknownFile => "unknown-file",
            Self::MissingCheckpoint => "missing-checkpoint",
            Self::PrunedHead => "pruned-head",
            Self::MissingWitness => "missing-witness",
            Self::UnaccountedRecords => "unaccounted-records",
            Self::Quarantine => "quarantine",
        }
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One warning: how often, and where first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What it is.
    pub kind: WarningKind,
    /// How often it was met.
    pub count: u64,
    /// The first record that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The first one in words; may hold untrusted text.
    pub detail: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.detail)?;
        if self.count > 1 {
            write!(f, " (and {} more)", self.count - 1)?;
        }
        Ok(())
    }
}
