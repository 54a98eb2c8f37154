//! Retention: full segments are removed from the beginning on, and their roots stay, so that later
//! records still verify.

use cap_std::fs::Dir;
use portcullis_audit::{
    Draft, HISTORY, Hash, Kind, PACKED, ROOTS, Reader, RecordView, Report, SEGMENT_RECORDS,
    Segment, Source as _, Verifier,
};
use rustix::fs::OFlags;

use super::{
    AuditLog, Error, checkpoints, disk::Folder, error::NO_ROOTS, lifetime, orphans, pack::Exclusive,
};

const NOT_OLD: &str = "no full segment is that old and has an outcome for each of its intents";

/// The effect of a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prune {
    /// Number of segments, counted from the very first, that would be removed.
    pub segments: u64,
    /// Number of records in those that still exist.
    pub records: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Leaf hash of the last record in them.
    head: Hash,
}

/// The plan of a prune, or why there is none.
#[derive(Debug)]
pub enum Pruning {
    /// Nothing can be removed, for this reason.
    Nothing(&'static str),
    /// These segments would be removed.
    Possible(Prune),
    /// The log is damaged: nothing may be removed.
    Damaged(Box<Report>),
}

impl AuditLog {
    /// Finds the full segments from the first one on of which all records are from before `before`,
    /// a time as in records. The newest full segment always stays.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn plan_prune(state: &Dir, before: &str) -> Result<Pruning, Error> {
        let audit = Folder::open(state, "audit")?;
        let read = || Error::std("read the audit log");
        let report = Verifier::new(&audit).run().map_err(read())?;
        if !report.is_valid() {
            return Ok(Pruning::Damaged(Box::new(report)));
        }
        let mut segments: Vec<_> = audit
            .list()
            .map_err(read())?
            .into_iter()
            .filter_map(|entry| Some((Segment::from_name(&entry.name)?, entry.length)))
            .collect();
        segments.sort();
        // The open segment, and the one that a writer reads when that is empty.
        segments.truncate(segments.len().saturating_sub(2));
        let needed = lifetime::first_needed(&Folder::open(state, "gateways")?)?;
        let in_use = |segment: &Segment| needed.is_some_and(|seq| seq < segment.next().first());
        segments.truncate(segments.iter().take_while(|(segment, _)| !in_use(segment)).count());
        let (Some((first, _)), Some((last, _))) = (segments.first(), segments.last()) else {
            return Ok(Pruning::Nothing(match needed {
                Some(_) => {
                    "no full segment is that old and not needed by a gateway that runs, or that ended \
                     without its last record; the next start recovers the latter"
                }
                None => NOT_OLD,
            }));
        };
        let first = *first;
        let Some((until, head)) = old(&audit, first, last.next(), before)? else {
            return Ok(Pruning::Nothing(NOT_OLD));
        };
        if !checkpoints::roots_reach(&audit, until)? {
            return Ok(Pruning::Nothing(NO_ROOTS));
        }
        let gone = segments.iter().filter(|(segment, _)| *segment < until);
        let bytes = gone.map(|(_, length)| length).sum();
        let records = (until.0 - first.0) * SEGMENT_RECORDS;
        Ok(Pruning::Possible(Prune { segments: until.0, records, bytes, head }))
    }
}

/// Returns the segment up to which, from `first` and before `end`, every record is from before
/// `before` and every intent has an outcome, and the leaf hash of the record before it. Each record
/// is read: after the clock was set back, a later one may be older.
fn old(
    audit: &Folder,
    first: Segment,
    end: Segment,
    before: &str,
) -> Result<Option<(Segment, Hash)>, Error> {
    let mut open = std::collections::BTreeMap::new();
    let mut until = None;
    let mut reader = Reader::new(audit, first.first());
    while let Some(entry) = reader.next().map_err(Error::std("read the audit log"))? {
        let record =
            RecordView::parse(&entry.bytes).map_err(|error| Error::line(entry.segment, &error))?;
        if entry.segment >= end || record.t.as_str() >= before {
            break;
        }
        orphans::update_open(&mut open, &record, || Some(()));
        let next = entry.segment.next();
        if record.seq.checked_add(1) == Some(next.first()) && open.is_empty() {
            until = Some((next, Hash::leaf(&entry.bytes)));
        }
    }
    Ok(until)
}

impl AuditLog {
    /// Removes the segments of `agreed` for the operator `user`, after a record of that is synced
    /// and a checkpoint covers it.
    ///
    /// # Errors
    ///
    /// When the log cannot be written. The next prune completes an interrupted one.
    pub fn prune(&self, agreed: &Prune, before: &str, user: &str) -> Result<(), Error> {
        let audit = std::sync::Arc::clone(&self.group.log().audit);
        let io = || Error::io("prune the audit log");
        let roots = audit.file(ROOTS, OFlags::RDWR).map_err(io())?;
        rustix::fs::fsync(&roots).map_err(io())?;
        let facts = [
            ("segments".to_owned(), agreed.segments.into()),
            ("records".to_owned(), agreed.records.into()),
            ("head".to_owned(), agreed.head.to_string().into()),
            ("before".to_owned(), before.into()),
        ];
        let draft = Draft {
            user: Some(user.to_owned()),
            reason: Some("an operator had old records removed".to_owned()),
            facts: Some(facts.into()),
            ..Draft::default()
        };
        self.note(Kind::Pruned, draft, true)?;
        self.checkpoint()?;
        // A segment that is being compressed would reappear.
        let alone = Exclusive::begin(&audit)?;
        // An incomplete file has the records too.
        alone.clear(&audit)?;
        for segment in (0..agreed.segments).map(Segment) {
            for name in [segment.to_string(), format!("{segment}{PACKED}")] {
                match audit.remove(&name) {
                    Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                    Err(errno) => return Err(io()(errno)),
                }
            }
        }
        let history = Folder::open(&*audit, HISTORY)?;
        let end = Segment(agreed.segments).first();
        for name in history.names().map_err(io())? {
            if name.parse::<u64>().is_ok_and(|size| size < end) {
                history.remove(&name).map_err(io())?;
            }
        }
        audit.sync().map_err(io())
    }
}
