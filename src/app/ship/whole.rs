//! Whether a copy has what was sent to it, and what a prune may rely on.

use std::{
    io::{self, Read},
    ops::Range,
    path::Path,
};

use portcullis_audit::{LogFile, PACKED, Segment};

use super::{
    log::SegmentReader,
    place::{GONE, existing, within},
    progress::{ShipProgress, known, records_of},
    target::Store,
};
use crate::config::audit::Target;

/// What a copy has of what was sent to it.
pub(super) struct CopyState {
    /// Records from its beginning on, up to the first gap.
    pub(super) records: u64,
    /// Whether nothing is missing.
    pub(super) is_whole: bool,
}

/// Looks for the newest checkpoint of a copy, its sealed `segments` and the open one. The
/// checkpoint alone says nothing of segments. `None` where the place gives nothing out.
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
        // Of one that a former release sent, the length is not known.
        if !length.is_some_and(|length| length > 0 && sent.is_none_or(|sent| *sent == length)) {
            gap = Some(segment);
            break;
        }
    }
    // Before the first segment there is nothing that a copy must have.
    let begin = progress.sealed.first_key_value().map_or(progress.segment, |(first, _)| *first);
    let until = gap.map(|gap| if gap <= begin { 0 } else { Segment(gap).first() });
    let records = until.map_or(arrived, |until| until.min(arrived));
    let is_whole = gap.is_none() && arrived >= progress.records;
    Ok(Some(CopyState { records, is_whole }))
}

/// A target that does not have what is to be removed.
pub(crate) struct Lacking {
    /// The place of the copy, or of the target where none was begun.
    pub(crate) place: String,
    pub(crate) why: String,
}

/// A target whose copy does not have the segments of the log before `end`: it is read where
/// it is a directory, and asked for the length of each segment elsewhere. Only a place behind HTTP
/// that gives nothing out is believed what it answered.
pub(crate) fn lacking(state: &Path, targets: &[Target], end: Segment) -> Option<Lacking> {
    targets.iter().find_map(|target| {
        let (place, why) =
            lacks(state, target, end).unwrap_or_else(|why| (target.clone(), Some(why)));
        Some(Lacking { place: place.shown(), why: why? })
    })
}

/// The place of a copy, and why it does not have the segments before `end`.
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
    let why = log.first_segment().and_then(|first| hold(&log, &place, &progress, first..end.0));
    let why = why.unwrap_or_else(Some);
    Ok((place, why))
}

/// Why the copy at a place does not have segments of the log.
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
        _ => {}
    }
    for segment in segments.map(Segment) {
        let name = segment.to_string();
        if let Some(copy) = store.read(&name)
            && !copy.and_then(|copy| is_same(log.open(&name)?, copy)).unwrap_or(false)
        {
            return Ok(Some(format!("its `{name}` is not that of the log")));
        }
    }
    Ok(None)
}

/// Whether two files have the same content.
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
