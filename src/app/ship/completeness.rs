//! The completeness of a copy, and what a prune may rely on.

use std::{
    io::{self, Read},
    ops::Range,
    path::Path,
};

use portcullis_audit::{LogFile, PACKED, Segment};

use super::{
    destinations::{GONE, existing, within},
    log::SegmentReader,
    progress::{ShipProgress, known, records_of},
    target::Store,
};
use crate::config::audit::Target;

/// The state of a copy.
pub(super) struct CopyState {
    /// Number of records from its beginning up to the first gap.
    pub(super) records: u64,
    /// True if nothing is missing.
    pub(super) is_whole: bool,
}

/// Checks the newest checkpoint of a copy, its sealed `segments` and the open one, since the
/// checkpoint alone does not prove that the segments exist. `None` where the store refuses reads.
pub(super) fn look(
    store: &mut dyn Store,
    progress: &ShipProgress,
    segments: impl Iterator<Item = u64>,
) -> Result<Option<CopyState>, String> {
    let Some(checkpoint) = store.checkpoint()? else { return Ok(None) };
    let arrived = checkpoint.as_deref().and_then(records_of).unwrap_or(0);
    let open = Segment(progress.segment);
    let has_open = store.has_open(&open.to_string(), progress.offset)?;
    let mut gap = (!has_open).then_some(progress.segment);
    for segment in segments {
        let length = store.length(&format!("{}{PACKED}", Segment(segment)))?;
        let sent = progress.sealed.get(&segment);
        // The length of a segment sent by an earlier release is unknown.
        if !length.is_some_and(|length| length > 0 && sent.is_none_or(|sent| *sent == length)) {
            gap = Some(segment);
            break;
        }
    }
    // Nothing before the first segment is required of a copy.
    let begin = progress.sealed.first_key_value().map_or(progress.segment, |(first, _)| *first);
    let until = gap.map(|gap| if gap <= begin { 0 } else { Segment(gap).first() });
    let records = until.map_or(arrived, |until| until.min(arrived));
    let is_whole = gap.is_none() && arrived >= progress.records;
    Ok(Some(CopyState { records, is_whole }))
}

/// A target that lacks records to be removed.
pub(crate) struct IncompleteTarget {
    /// The location of the copy, or the target if none was begun.
    pub(crate) place: String,
    pub(crate) reason: String,
}

/// Returns a target whose copy lacks segments of the log before `end`. A directory is read;
/// elsewhere the length of each segment is compared. Only an HTTP server that refuses reads is
/// trusted for its replies.
pub(crate) fn lacking(state: &Path, targets: &[Target], end: Segment) -> Option<IncompleteTarget> {
    targets.iter().find_map(|target| {
        let (place, reason) =
            lacks(state, target, end).unwrap_or_else(|reason| (target.clone(), Some(reason)));
        Some(IncompleteTarget { place: place.shown(), reason: reason? })
    })
}

/// Returns the location of a copy, and the reason why it lacks segments before `end`, if it does.
fn lacks(state: &Path, target: &Target, end: Segment) -> Result<(Target, Option<String>), String> {
    let has = |records: u64| Some(format!("it has {records} of these records"));
    let progress = known(state, target)?.unwrap_or_default();
    if progress.copy.is_empty() {
        return Ok((target.clone(), has(0)));
    }
    let place = within(target, &progress.copy);
    if progress.records < end.first() {
        return Ok((place, has(progress.records)));
    }
    let log = SegmentReader::new(state);
    let reason = log.first_segment().and_then(|first| hold(&log, &place, &progress, first..end.0));
    let reason = reason.unwrap_or_else(Some);
    Ok((place, reason))
}

/// Returns the reason why the copy at a location lacks segments of the log, if it does.
fn hold(
    log: &SegmentReader,
    place: &Target,
    progress: &ShipProgress,
    segments: Range<u64>,
) -> Result<Option<String>, String> {
    let end = Segment(segments.end).first();
    let Some(mut store) = existing(place)? else { return Ok(Some(GONE.to_owned())) };
    match look(store.as_mut(), progress, segments.clone())? {
        Some(found) if found.records < end => {
            return Ok(Some(format!("it has {} of these records", found.records)));
        }
        // A writer to an HTTP server may lack the right to read.
        None if !place.to.starts_with("http") => {
            return Ok(Some("it refuses reads, without which nothing can be checked".to_owned()));
        }
        _ => {}
    }
    for segment in segments.map(Segment) {
        let name = segment.to_string();
        if let Some(copy) = store.read(&name)
            && !copy.and_then(|copy| is_same(log.open(&name)?, copy)).unwrap_or(false)
        {
            return Ok(Some(format!(
                "its `{name}` is not that of the log: remove that file from it, and a new copy is \
                 begun"
            )));
        }
    }
    Ok(None)
}

/// Returns true if two files have the same content.
fn is_same(mut one: LogFile, mut other: LogFile) -> io::Result<bool> {
    let (mut bytes, mut others) = (Vec::new(), Vec::new());
    loop {
        for (file, bytes) in [(&mut one, &mut bytes), (&mut other, &mut others)] {
            bytes.clear();
            file.take(1 << 16).read_to_end(bytes)?;
        }
        if bytes != others {
            return Ok(false);
        }
        if bytes.is_empty() {
            return Ok(true);
        }
    }
}
