//! The verifier: reads a log once, from the first byte to the last, and reports whether it is one
//! chain.
//!
//! It trusts nothing that it reads and repairs nothing. It cannot detect that someone who has the
//! disk and the key cut the log or wrote it anew: only a head stored elsewhere shows that, see
//! [`Verifier::expect`].

mod digest;
mod expected;
mod parallel;
mod report;
mod run;

use std::{collections::BTreeMap, io, thread};

use crate::{Checkpoint, Hash, PublicKey, Source};
pub use report::{Position, Progress, Report, SignedPart};
use run::Run;

/// A verification of a log with its options, see the module.
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
    /// Makes a verifier of the log in `source`.
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

    /// Continues after any number of damages until the chain breaks. A repair needs this, to know
    /// how far the log is intact.
    #[must_use]
    pub fn thorough(mut self) -> Self {
        self.thorough = true;
        self
    }

    /// Requires that record `seq` has the leaf hash `leaf`, as in a receipt from outside the log.
    /// If two receipts differ, that is damage.
    #[must_use]
    pub fn expect(mut self, seq: u64, leaf: Hash) -> Self {
        self.heads.entry(seq).or_default().push(leaf);
        self
    }

    /// Requires that the log extends `checkpoint`, which was stored outside the log and whose
    /// signature the caller has verified.
    #[must_use]
    pub fn expect_checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.checkpoints.push(checkpoint);
        self
    }

    /// Trusts `keys` instead of those in the log's directory.
    #[must_use]
    pub fn trust(mut self, keys: Vec<PublicKey>) -> Self {
        self.keys = keys;
        self
    }

    /// Verifies the cosignatures of these witnesses.
    #[must_use]
    pub fn witnesses(mut self, keys: Vec<PublicKey>) -> Self {
        self.witnesses = keys;
        self
    }

    /// Uses this number of threads besides the caller's; the default is the number of processors,
    /// at most 64.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Calls `progress` at intervals.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Verifies the log as it is now, without records that are appended meanwhile.
    ///
    /// # Errors
    ///
    /// If the log cannot be read. Damage is not an error: it is in the report.
    pub fn run(self) -> io::Result<Report> {
        Run::run(self)
    }
}
