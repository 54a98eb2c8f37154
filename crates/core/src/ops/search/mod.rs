//! Searching beneath a directory, by name or in content.
//!
//! The policy filters while the tree is walked: what may not be listed is not
//! seen, what may not be read is not searched, what a rule denies is not
//! entered. A directory that merely nothing allows is entered where something
//! beneath it could be allowed, and leaves no trace in the answer. Links are
//! never followed; files are read from the disk, not from an editor.

mod dialect;
mod glob;
mod grep;
mod ignore;
mod lines;
mod names;
mod page;
mod tally;
mod walk;

pub use glob::Found;
pub(crate) use glob::prepare as prepare_glob;
pub(crate) use grep::{Disclosure, prepare as prepare_grep};
pub use grep::{FileMatches, Matches};
pub use lines::Line;
pub use tally::{Skipped, Stopped, Summary};

use std::time::Duration;

use super::Error;
use crate::{model::WorkspacePath, policy::Glob, workspace::Permit};

/// Where a search begins, as the gateway has decided.
#[derive(Debug)]
pub(crate) enum Start {
    /// At what was resolved and decided on.
    At(Permit),
    /// At a directory that nothing allows and beneath which something could be
    /// allowed: nothing is told of itself, not even whether it is there.
    Beneath(WorkspacePath),
    /// Nowhere: a person would have to be asked first.
    Asked,
}

/// What bounds a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long it may take.
    pub(super) time: Duration,
    /// How many directories deep beneath its start it looks.
    pub(super) depth: usize,
    /// Most results.
    pub(super) results: u64,
    /// Most bytes of lines in the answer.
    pub(super) bytes: u64,
}

impl Limits {
    const TIME: Duration = Duration::from_secs(30);
    const DEPTH: usize = 512;
    const BYTES: u64 = 8 << 20;

    fn new(asked: Option<u64>, default: u64, most: u64) -> Self {
        let results = asked.unwrap_or(default).min(most);
        Self { time: Self::TIME, depth: Self::DEPTH, results, bytes: Self::BYTES }
    }
}

/// The pattern that `text` spells.
fn pattern(text: &str) -> Result<Glob, Error> {
    Glob::parse(text).map_err(|error| Error::Pattern(error.to_string()))
}
