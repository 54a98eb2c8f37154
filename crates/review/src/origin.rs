//! The workspace of a log.

use std::{io, path::PathBuf};

use portcullis_audit::{Kind, RecordView, Source as _, Tail};

use super::{Filter, Log};

/// Maximum number of bytes at the end of a log that are looked at before whole segments are.
const END: u64 = 1 << 20;

/// The workspace of a `start` record; untrusted text.
#[derive(Debug)]
pub struct RecordedWorkspace {
    /// Its path.
    pub path: PathBuf,
    /// The path of the one that had the state directory before, if it was adopted.
    pub adopted: Option<PathBuf>,
}

/// Returns the workspace that the newest `start` record names; untrusted text. `None` if no record
/// names one. Reads only what was recorded since that record and, if that is more than a little,
/// the rest of its segment.
///
/// # Errors
/// If the log cannot be read.
pub fn recorded_workspace(log: &Log) -> io::Result<Option<RecordedWorkspace>> {
    match at_end(log)? {
        Some(found) => Ok(Some(found)),
        None => {
            let starts = Filter { kinds: vec!["start".to_owned()], ..Filter::default() };
            log.newest(&starts, named)
        }
    }
}

/// Returns the workspace that a record names, if it is a `start` record.
fn named(record: &RecordView<'_>) -> Option<RecordedWorkspace> {
    let path = PathBuf::from(record.fact("workspace")?);
    let adopted = record.fact("adopted").map(PathBuf::from);
    (record.kind == Kind::Start && path.is_absolute())
        .then_some(RecordedWorkspace { path, adopted })
}

/// Returns the one that the last lines of the log name.
fn at_end(log: &Log) -> io::Result<Option<RecordedWorkspace>> {
    let Some(last) = log.parts.last() else { return Ok(None) };
    let mut file = log.source.open(&last.segment.to_string())?;
    // Commands that show records report damage.
    let Ok(tail) = Tail::read(&mut file, 0, last.length, END) else { return Ok(None) };
    let mut lines = tail.lines.rsplit(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| named(&RecordView::parse(line).ok()?)))
}
