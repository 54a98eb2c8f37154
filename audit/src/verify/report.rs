//! The report of a verification.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{Damage, DamageKind, Hash, Receipt, Warning};

/// The progress of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of bytes of the log.
    pub total: u64,
}

/// A position in the log, before which everything is intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Number of records before it.
    pub records: u64,
    /// Number of the segment that contains it.
    pub segment: u64,
    /// Offset in the segment.
    pub offset: u64,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Report {
    /// Number of lines read that are records.
    pub records: u64,
    /// Number of segment files read.
    pub segments: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// The last record of the log, if the log is intact.
    pub head: Option<Receipt>,
    /// Time of the first record.
    pub first: Option<String>,
    /// Time of the last record.
    pub last: Option<String>,
    /// Number of records of each kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// All damages, in the order of the log; at most [`Report::MAX_DAMAGES`].
    pub damages: Vec<Damage>,
    /// True if the verification stopped because of the number of damages.
    pub stopped: bool,
    /// Findings that are not damage, for a person to examine.
    pub warnings: Vec<Warning>,
    /// Intents without an outcome, the first hundred.
    pub missing_outcomes: Vec<u64>,
    /// The end of the intact chain.
    pub intact: Position,
    /// The end of the chain that is certainly intact: a broken link may mean that the record before
    /// it was changed. That record is not counted here, unless a checkpoint of exactly the records
    /// up to it is correct.
    #[serde(skip)]
    pub sure: Position,
    /// True if the chain is intact to the end.
    pub complete: bool,
    /// Number of records in segments that were pruned, of which only the roots remain.
    pub pruned: u64,
    /// The first record that accounts for those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned_by: Option<u64>,
    /// True if no checkpoint is correct, although a gateway that signs stopped in order.
    #[serde(skip)]
    pub unsigned: bool,
    /// The correct roots of segments whose stored root is wrong, by segment number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roots: BTreeMap<u64, Hash>,
    /// The result of verifying signatures.
    pub signed: SignedPart,
    /// Policies that records name, each with its first record; at most [`Report::MAX_POLICIES`].
    /// Of texts that are not a hash one is included, cut to the length of a hash.
    pub policies: BTreeMap<String, u64>,
    /// True if records name more policies than that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more_policies: bool,
    /// Records that match the receipts from outside.
    pub matched: BTreeSet<u64>,
}

/// The part of a log that checkpoints cover.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SignedPart {
    /// Number of checkpoints with correct signature and root.
    pub checkpoints: u64,
    /// Number of records that the largest of them covers.
    pub records: u64,
    /// The key that signed that one.
    pub key: Option<String>,
    /// Every key that signed one of them, the newest last.
    pub keys: Vec<String>,
    /// True if the key came from outside the log.
    pub given: bool,
    /// Names of the known witnesses that cosigned that one.
    pub witnesses: Vec<String>,
    /// The largest number of records that each of them cosigned, by the text of its key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cosigned: BTreeMap<String, u64>,
}

impl Report {
    /// Number of damages after which a verification stops, unless it is
    /// [thorough](super::Verifier::thorough).
    pub const MAX_DAMAGES: usize = 100;
    /// Maximum number of policies that are listed: the writer of a log chooses how many it names.
    pub const MAX_POLICIES: usize = 10_000;

    /// True if the log is valid.
    pub fn is_valid(&self) -> bool {
        self.damages.is_empty()
    }

    /// Returns the first record of another version of the format if nothing else is wrong with the
    /// log: a newer program wrote it, as far as it says itself.
    pub fn newer(&self) -> Option<&Damage> {
        let is_newer = |damage: &Damage| damage.kind == DamageKind::UnsupportedVersion;
        self.damages.first().filter(|_| self.damages.iter().all(is_newer))
    }
}
