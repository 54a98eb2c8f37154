//! The verifier: reads a log once, from the first byte to the last, and says
//! whether it is one chain.
//!
//! It trusts nothing that it reads and repairs nothing. What it cannot see is
//! a log cut, or written anew, by someone who holds disk and key: only a head
//! kept elsewhere shows that, see [`Verifier::expect`].

mod digest;
mod flow;
mod marks;
mod report;
mod run;

use std::{collections::BTreeMap, io, thread};

use crate::{Checkpoint, Hash, PublicKey, Source};
pub use report::{Position, Progress, Report, SignedPart};
use run::Run;

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
