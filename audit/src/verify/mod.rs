//! The verifier: reads a log once, from the first byte to the last, and says
//! whether it is one chain.
//!
//! It trusts nothing that it reads and repairs nothing. What it cannot see is
//! a log cut, or written anew, by someone who holds disk and key: only a head
//! kept elsewhere shows that, see [`Verifier::expect`].

mod digest;
mod flow;
mod marks;
mod run;

use std::{
    collections::{BTreeMap, BTreeSet},
    io, thread,
};

use serde::Serialize;

use crate::{Checkpoint, Damage, Hash, PublicKey, Receipt, Source, Warning};
use run::Run;

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

/// What a verification found.
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
    /// Whether the verification stopped because there were so many.
    pub stopped: bool,
    /// What a person should look at.
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
    /// Whether it is intact to the end.
    pub complete: bool,
    /// Records of segments that were pruned: only their roots are there.
    pub pruned: u64,
    /// The first record that accounts for those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned_by: Option<u64>,
    /// Whether no checkpoint is right, though a gate that signs stopped in order.
    #[serde(skip)]
    pub unsigned: bool,
    /// The roots of segments of which another one is kept, by their number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roots: BTreeMap<u64, Hash>,
    /// What signatures say.
    pub signed: SignedPart,
    /// Policies that records name, each with the first record that does; at
    /// most [`Report::MOST_POLICIES`]. Of texts that are no hash one is here,
    /// no more of it than a hash has characters.
    pub policies: BTreeMap<String, u64>,
    /// Whether records name more policies than that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more_policies: bool,
    /// Records that are what the receipts from outside say.
    pub matched: BTreeSet<u64>,
}

/// What checkpoints say of a log.
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
    /// Whether the key came from outside the log.
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
    /// [thorough](Verifier::thorough).
    pub const MOST_DAMAGES: usize = 100;
    /// So many policies are kept: whoever wrote the log chose how many it
    /// names.
    pub const MOST_POLICIES: usize = 10_000;

    /// Whether the log is valid.
    pub fn is_valid(&self) -> bool {
        self.damages.is_empty()
    }
}

/// Verifies a log, see the module.
pub struct Verifier<'a, S> {
    source: &'a S,
    heads: BTreeMap<u64, Vec<Hash>>,
    checkpoints: Vec<Checkpoint>,
    keys: Vec<PublicKey>,
    witnesses: Vec<PublicKey>,
    threads: usize,
    thorough: bool,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
}

impl<'a, S: Source> Verifier<'a, S> {
    /// A verifier of the log in `source`.
    pub fn new(source: &'a S) -> Self {
        Self {
            source,
            heads: BTreeMap::new(),
            checkpoints: Vec::new(),
            keys: Vec::new(),
            witnesses: Vec::new(),
            threads: thread::available_parallelism().map_or(1, Into::into).min(64),
            thorough: false,
            progress: None,
        }
    }

    /// Goes on after however many damages until the chain breaks: for a repair,
    /// which must know how far it is intact.
    #[must_use]
    pub fn thorough(mut self) -> Self {
        self.thorough = true;
        self
    }

    /// Also demands that record `seq` has the leaf hash `leaf`, as a receipt
    /// kept outside the log says. Of two that differ one is damage.
    #[must_use]
    pub fn expect(mut self, seq: u64, leaf: Hash) -> Self {
        self.heads.entry(seq).or_default().push(leaf);
        self
    }

    /// Also demands that the log goes on from `checkpoint`, which was kept
    /// outside the log, and whose signature the caller has checked.
    #[must_use]
    pub fn expect_checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.checkpoints.push(checkpoint);
        self
    }

    /// Trusts `keys` instead of those that the log's directory names.
    #[must_use]
    pub fn trust(mut self, keys: Vec<PublicKey>) -> Self {
        self.keys = keys;
        self
    }

    /// Checks the cosignatures of these witnesses.
    #[must_use]
    pub fn witnesses(mut self, keys: Vec<PublicKey>) -> Self {
        self.witnesses = keys;
        self
    }

    /// Works with so many threads besides the caller's, instead of as many as
    /// the machine has processors.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Calls `progress` now and then.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Reads the log as it is at this moment, whatever is appended meanwhile.
    ///
    /// # Errors
    ///
    /// When the log cannot be read. Damage is no error but in the report.
    pub fn run(self) -> io::Result<Report> {
        Run::run(self)
    }
}
