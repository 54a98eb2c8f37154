//! The operation `stat`: disclosure of type, size and time of one entry.

use super::{Entry, Error, Facts, Sealed};
use crate::workspace::{self, Permit};

/// Returns the attributes that were decided on.
///
/// # Errors
/// When the object is missing.
pub(crate) fn prepare(permit: &Permit) -> Result<Sealed<Entry>, Error> {
    let stat = permit.stat().ok_or(Error::Workspace(workspace::Error::NotFound))?;
    Ok(Sealed::names(Entry::new(permit.path().clone(), Some(stat)), Facts::default()))
}
