//! The workspace of a log.

use std::{io, path::PathBuf};

use super::{Filter, Log};

/// Returns the workspace that the newest `start` record names; untrusted text. `None` if no record
/// names one.
///
/// # Errors
/// If the log cannot be read.
pub fn recorded_workspace(log: &Log) -> io::Result<Option<PathBuf>> {
    let starts = Filter { kinds: vec!["start".to_owned()], ..Filter::default() };
    // Commands that show records report damage.
    log.newest(&starts, |record| {
        let path = PathBuf::from(record.fact("workspace")?);
        path.is_absolute().then_some(path)
    })
}
