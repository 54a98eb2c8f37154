//! The workspace of a log.

use std::{io, ops::ControlFlow, path::PathBuf};

use portcullis_audit::{RecordView, Segment};

use super::{Filter, Log, Order};

/// Returns the workspace that the newest `start` record names; untrusted text. `None` if no record
/// names one.
///
/// # Errors
/// If the log cannot be read.
pub fn recorded_workspace(log: &Log) -> io::Result<Option<PathBuf>> {
    let starts = Filter { kinds: vec!["start".to_owned()], ..Filter::default() };
    let mut newest = None;
    let pick = |record: &RecordView<'_>, _line: &[u8]| {
        let path = PathBuf::from(record.fact("workspace")?);
        path.is_absolute().then_some((Segment::of(record.seq), path))
    };
    // Commands that show records report damage.
    let _scanned = log.scan(&starts, Order::NewestSegment, pick, |(segment, path)| {
        // The newest one of a segment is its last.
        if newest.as_ref().is_some_and(|(newer, _)| *newer != segment) {
            return ControlFlow::Break(());
        }
        newest = Some((segment, path));
        ControlFlow::Continue(())
    })?;
    Ok(newest.map(|(_, path)| path))
}
