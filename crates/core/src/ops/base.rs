//! The state of a file on which a write is based.

use super::Error;
use crate::workspace::{Stat, Version};

/// The expected state of a file before a write: in another state another program was faster, and
/// nothing is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Base {
    /// Any state.
    #[default]
    Anything,
    /// No file: it is created.
    Nothing,
    /// This version of a file.
    Version(Version),
    /// Another file, which the present one has replaced: nothing is written, and that is recorded.
    Replaced,
}

impl Base {
    /// Compares the expected state with the current one.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] or [`Error::Conflict`].
    pub(crate) fn check(self, there: Option<&Stat>) -> Result<(), Error> {
        match (self, there) {
            (Self::Nothing, Some(_)) => Err(Error::AlreadyExists),
            (Self::Replaced, _) => Err(Error::Conflict),
            (Self::Version(base), there) if there.map(Stat::version) != Some(base) => {
                Err(Error::Conflict)
            }
            _ => Ok(()),
        }
    }
}
