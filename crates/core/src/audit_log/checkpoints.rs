//! Stored checkpoints, and other files of the tree.

use std::{collections::BTreeSet, fs::File, io, os::fd::AsFd as _};

use portcullis_audit::{
    Checkpoint, Draft, HISTORY, KEY_FACT, Kind, NEWEST, Note, NoteError, PublicKey, Reader,
    RecordView, Segment, Source as _, UNSIGNED,
};

use super::{Error, disk::Folder, last_signed::LastSigned, roots, signing, small_file};

/// The lock of writers of checkpoints, for messages.
pub(super) const LOCK: &str = "audit/checkpoints";

/// Returns the newest checkpoint that was signed, from the log's directory or `noted` beside the
/// key, where an older one was put in its place.
pub(super) fn last_signed(audit: &Folder, noted: &LastSigned) -> Result<Option<Checkpoint>, Error> {
    let known = newest(audit)?.into_iter().chain(noted.head().cloned());
    Ok(known.max_by_key(|checkpoint| checkpoint.size))
}

/// Returns the same; fails if nothing of a checkpoint is left but an unreadable note. `segment` is the
/// newest one.
pub(super) fn newest_known(
    audit: &Folder,
    noted: &LastSigned,
    segment: Segment,
) -> Result<Option<Checkpoint>, Error> {
    match last_signed(audit, noted)? {
        None if *noted == LastSigned::Unclear => {
            let reason = "it was signed before, but no checkpoint of it is left".to_owned();
            Err(Error::Damaged { segment, reason })
        }
        newest => Ok(newest),
    }
}

/// Returns the newest checkpoint in the log's directory, if there is one: if its file is missing,
/// the largest stored one that is signed.
pub(super) fn newest(audit: &Folder) -> Result<Option<Checkpoint>, Error> {
    if let Some(text) = small_file::read(audit, NEWEST)? {
        return opened(&text, &signing::keys_of(audit)?).map(Some);
    }
    let mut bad = None;
    for size in kept(audit)?.into_iter().rev() {
        let Some(text) = small_file::read(audit, &format!("{HISTORY}/{size}"))? else { continue };
        match opened(&text, &signing::keys_of(audit)?) {
            Ok(checkpoint) if checkpoint.size == size => return Ok(Some(checkpoint)),
            Ok(_another) => {
                bad.get_or_insert(Error::Note(NoteError::Checkpoint));
            }
            Err(error) => {
                bad.get_or_insert(error);
            }
        }
    }
    // A checkpoint was signed, even if no valid one is left.
    bad.map_or(Ok(None), Err)
}

/// Returns the text of the largest stored checkpoint that is signed.
pub(super) fn largest_kept(audit: &Folder) -> Result<Option<String>, Error> {
    let keys = signing::keys_of(audit)?;
    for size in kept(audit)?.into_iter().rev() {
        let text = small_file::read(audit, &format!("{HISTORY}/{size}"))?;
        let is_signed =
            |text: &String| opened(text, &keys).is_ok_and(|checkpoint| checkpoint.size == size);
        if let Some(text) = text.filter(is_signed) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// Returns the checkpoint in `text` if one of `keys`, those of the log, signed it.
pub(super) fn opened(text: &str, keys: &[PublicKey]) -> Result<Checkpoint, Error> {
    let note = Note::parse(text.as_bytes())?;
    let signed = note.verify(keys).map_err(|error| match error {
        NoteError::Unsigned => Error::Unsigned,
        error => Error::Note(error),
    })?;
    let checkpoint = Checkpoint::of(&note)?;
    if checkpoint.origin != signed.by.name() {
        return Err(Error::Note(NoteError::Checkpoint));
    }
    Ok(checkpoint)
}

/// Returns the names in the directory of checkpoints; none if another kind of file has its name,
/// which a repair sets aside.
pub(super) fn names(audit: &Folder) -> Result<Vec<String>, Error> {
    match audit.history() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Vec::new()),
        names => names.map_err(Error::std("read the log's checkpoints")),
    }
}

/// Returns the stored checkpoints by their names in the log.
pub(super) fn files(audit: &Folder) -> Result<impl Iterator<Item = String>, Error> {
    let kept = names(audit)?.into_iter().filter(|name| name.parse::<u64>().is_ok());
    Ok(kept.map(|name| format!("{HISTORY}/{name}")))
}

/// Returns the sizes of stored checkpoints, smallest first.
pub(super) fn kept(audit: &Folder) -> Result<Vec<u64>, Error> {
    let names = audit.history().map_err(Error::std("read the log's checkpoints"))?;
    let mut sizes: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
    sizes.sort_unstable();
    Ok(sizes)
}

/// True if the roots of all segments before `first` are stored, so that the segments may be
/// missing.
pub(super) fn roots_reach(audit: &Folder, first: Segment) -> Result<bool, Error> {
    Ok(roots::read(audit, first.0)?.len() as u64 >= first.0)
}

/// True if a gateway that signs stopped in order, since a record said that no checkpoint is left. The
/// log is read from its end on, as far as that takes.
pub(super) fn are_expected(audit: &Folder) -> io::Result<bool> {
    let mut segments: Vec<_> =
        audit.list()?.iter().filter_map(|file| Segment::from_name(&file.name)).collect();
    segments.sort_unstable();
    let mut stopped = BTreeSet::new();
    for segment in segments.into_iter().rev() {
        let (mut signing, mut is_recorded) = (BTreeSet::new(), false);
        let mut stopped_here = BTreeSet::new();
        let mut reader = Reader::new(audit, segment.first());
        while let Some(entry) = reader.next()? {
            if entry.segment != segment {
                break;
            }
            let Ok(record) = RecordView::parse(&entry.bytes) else { continue };
            let gateway = record.boot().map(str::to_owned);
            match record.kind {
                Kind::Start if record.fact(KEY_FACT).is_some() => drop(signing.insert(gateway)),
                Kind::Stop => drop(stopped_here.insert(gateway)),
                Kind::Recovered if record.fact("what") == Some(UNSIGNED) => {
                    is_recorded = true;
                    signing.clear();
                    stopped_here.clear();
                }
                _ => {}
            }
        }
        // A gateway starts in the segment in which it stops, or in an older one.
        stopped.append(&mut stopped_here);
        if !signing.is_disjoint(&stopped) || is_recorded {
            return Ok(!signing.is_disjoint(&stopped));
        }
    }
    Ok(false)
}

/// Returns the record of a log that was signed, and of which no checkpoint is left.
pub(super) fn lack(what_happened: &str) -> Draft {
    let facts = [("what".to_owned(), UNSIGNED.into())];
    let reason = format!(
        "{what_happened} though gateways that sign stopped in order and no checkpoint of it is \
         left: nothing shows what was signed"
    );
    Draft { reason: Some(reason), facts: Some(facts.into()), ..Draft::default() }
}

/// Returns the error of a log that is shorter than a checkpoint of it.
pub(super) fn shorter(segment: Segment, records: u64, size: u64) -> Error {
    let reason = format!(
        "the log ends after {records} records, but a checkpoint of {size} was signed: its end was \
         cut off"
    );
    Error::Damaged { segment, reason }
}

/// Opens the directory of checkpoints for a lock. The descriptor is new, so that closing it
/// releases the lock.
pub(super) fn lock(history: &Folder) -> Result<File, Error> {
    let own = history.as_fd().try_clone_to_owned();
    own.map(File::from).map_err(Error::std("lock the log's checkpoints"))
}
