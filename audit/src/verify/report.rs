//! The report of a verification.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{Damage, Hash, Receipt, Warning};

/// How far a verification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that the log has.
    pub total: u64,
}

/// A place in the log: what is before it is intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Records before it.
    pub records: u64,
    /// Number of the segment that it is in.
    pub segment: u64,
    /// Offset in the segment.
    pub offset: u64,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Report {
    /// Lines read that are records.
    pub records: u64,
    /// Segment files read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// The last record of the log, when the log is intact.
    pub head: Option<Receipt>,
    /// Time of the first record.
    pub first: Option<String>,
    /// Time of the last record.
    pub last: Option<String>,
    /// Records of each kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Everything wrong, in the order of the log; at most
    /// [`Report::MOST_DAMAGES`].
    pub damages: Vec<Damage>,
    /// True if the verification stopped because there were so many.
    pub stopped: bool,
    /// Findings that are no damage, for a person to look at.
    pub warnings: Vec<Warning>,
    /// Intents without outcome, the first hundred.
    pub unanswered: Vec<u64>,
    /// How far the chain is intact.
    pub intact: Position,
    /// How far it is known to be: a link that is broken may be so because the
    /// record before it was changed. That one is not counted here, unless a
    /// checkpoint of all records up to it is right.
    #[serde(skip)]
    pub sure: Position,
    /// True if it is intact to the end.
    pub complete: bool,
    /// Records of segments that were pruned: only their roots are there.
    pub pruned: u64,
    /// The first record that accounts for those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned_by: Option<u64>,
    /// True if no checkpoint is right, though a gate that signs stopped in order.
    #[serde(skip)]
    pub unsigned: bool,
    /// The roots of segments of which another one is kept, by their number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roots: BTreeMap<u64, Hash>,
    /// The result of checking signatures.
    pub signed: SignedPart,
    /// Policies that records name, each with the first record that does; at
    /// most [`Report::MOST_POLICIES`]. Of texts that are no hash one is here,
    /// no more of it than a hash has characters.
    pub policies: BTreeMap<String, u64>,
    /// True if records name more policies than that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more_policies: bool,
    /// Records that are what the receipts from outside say.
    pub matched: BTreeSet<u64>,
}

/// The part of a log that checkpoints cover.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SignedPart {
    /// Checkpoints whose signature and root are right.
    pub checkpoints: u64,
    /// Records that the largest of them covers.
    pub records: u64,
    /// The key that signed that one.
    pub key: Option<String>,
    /// True if the key came from outside the log.
    pub given: bool,
    /// Names of the witnesses that cosigned that one, as far as their keys are
    /// known.
    pub witnesses: Vec<String>,
    /// How many records each of them cosigned at most, by the text of its key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cosigned: BTreeMap<String, u64>,
}

impl Report {
    /// After so many damages a verification stops, unless it is
    /// [thorough](super::Verifier::thorough).
    pub const MOST_DAMAGES: usize = 100;
    /// So many policies are kept: whoever wrote the log chose how many it
    /// names.
    pub const MOST_POLICIES: usize = 10_000;

    /// True if the log is valid.
    pub fn is_valid(&self) -> bool {
        self.damages.is_empty()
    }
}
