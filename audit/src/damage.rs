//! Findings of the verifier: damage, which makes a log invalid, and warnings, which a person should
//! examine.

use std::fmt;

use serde::Serialize;

/// Kinds of damage. The names are stable: programs may match them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DamageKind {
    /// A file has a name like a segment's that no segment has, or a segment is not a regular file.
    UnexpectedFile,
    /// A segment is missing although a later one exists.
    MissingSegment,
    /// A segment before the last has too few records.
    ShortSegment,
    /// A segment has too many records.
    LongSegment,
    /// A compressed segment is not one complete frame, or a segment is longer than the maximum;
    /// nothing of it is read.
    BadSegment,
    /// The log ends within a line.
    TornTail,
    /// A segment before the last ends within a line.
    UnterminatedLine,
    /// A line exceeds the maximum length.
    LongLine,
    /// A line is not a record.
    MalformedRecord,
    /// A record contains a key twice.
    DuplicateKey,
    /// A record of a later version of the format.
    UnsupportedVersion,
    /// A record's sequence number does not match its position: records were removed, repeated or
    /// reordered.
    WrongSequence,
    /// A record's `prev` is not the hash of the record before: one of the two was changed.
    BrokenLink,
    /// A record refers to something else than an earlier intent without an outcome.
    WrongReference,
    /// A checkpoint is malformed, or not signed by a known key.
    BadCheckpoint,
    /// A checkpoint, or a stored root hash, does not match the records in the log.
    WrongRoot,
    /// The log names a different key than the known one.
    WrongKey,
    /// Something is signed, and the log's public key is missing.
    MissingKey,
    /// No checkpoint is valid, although a key was given, or a gateway that signs stopped in order
    /// and so left one.
    MissingCheckpoint,
    /// The log ends before a record that a receipt or a checkpoint proves.
    MissingHead,
    /// The record that a receipt proves differs from the one in the log.
    WrongHead,
}

impl DamageKind {
    /// Returns the stable name.
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

/// One damage with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The kind of damage.
    pub kind: DamageKind,
    /// The file; untrusted text.
    pub segment: String,
    /// The sequence number at the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The line in the file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// A description; may contain untrusted text.
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

/// Kinds of findings that a person should examine although the chain is intact. The names are
/// stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WarningKind {
    /// A record's time is before that of the record before: the clock was set back.
    TimeWentBack,
    /// An intent has no outcome: a gateway is carrying it out, or died and none has recovered it
    /// yet.
    MissingOutcome,
    /// A record has a kind that this version does not know.
    UnknownKind,
    /// A file does not belong to the log.
    UnknownFile,
    /// No checkpoint has a valid signature, although a key was given or records name one.
    MissingCheckpoint,
    /// A receipt or a checkpoint from outside is about records that were pruned.
    PrunedHead,
    /// A required witness did not cosign the largest checkpoint, or a known witness's signature is
    /// wrong.
    MissingWitness,
    /// The record that accounts for pruned segments was lost, and a recovery recorded that they are
    /// missing.
    UnaccountedRecords,
    /// A recovery set damaged bytes aside.
    Quarantine,
    /// The note of the last checkpoint outside the log's directory cannot be read, so the log is
    /// not compared with that. The caller of a verifier adds this warning.
    UnreadableHead,
}

impl WarningKind {
    /// Returns the stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TimeWentBack => "time-went-back",
            Self::MissingOutcome => "missing-outcome",
            Self::UnknownKind => "unknown-kind",
            Self::UnknownFile => "unknown-file",
            Self::MissingCheckpoint => "missing-checkpoint",
            Self::PrunedHead => "pruned-head",
            Self::MissingWitness => "missing-witness",
            Self::UnaccountedRecords => "unaccounted-records",
            Self::Quarantine => "quarantine",
            Self::UnreadableHead => "unreadable-head",
        }
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// All warnings of one kind, with the first one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The kind of warning.
    pub kind: WarningKind,
    /// The number of occurrences.
    pub count: u64,
    /// The first record concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// A description of the first one; may contain untrusted text.
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
