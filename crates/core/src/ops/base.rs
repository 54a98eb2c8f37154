//! What a writer began with, and so expects to replace.

use super::Error;
use crate::workspace::{Stat, Version};

/// What is expected at the place of a write: if something else is there, another program
/// was faster, and nothing is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Base {
    /// Whatever is there.
    #[default]
    Anything,
    /// Nothing: the file is created.
    Nothing,
    /// This version of a file.
    Version(Version),
}

impl Base {
    /// Compares it with what is there.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] or [`Error::Conflict`].
    pub(super) fn check(self, there: Option<&Stat>) -> Result<(), Error> {
        match (self, there) {
            (Self::Nothing, Some(_)) => Err(Error::AlreadyExists),
            (Self::Version(base), there) if there.map(Stat::version) != Some(base) => {
                Err(Error::Conflict)
            }
            _ => Ok(()),
        }
    }
}
