//! The end of the chain: found when the log is opened or another gateway appended, and repaired if
//! a line is torn.

use std::{fs::File, io::Cursor, sync::Arc};

use portcullis_audit::{Chain, Hash, MAX_SEGMENT, PACKED, RecordView, Segment, Tail};
use rustix::{fs::OFlags, io::Errno};

use super::{ChainEnd, Log, MAX_CATCH_UP_BYTES, MAX_OPENING_BYTES, RecentLeaves, SEGMENT, linked};
use crate::audit_log::{
    Error, checkpoints, disk::Id, inspection::LogInspection, last_signed::LastSigned, quarantine,
    unpack::unpack,
};

impl Log {
    /// Finds the end of the chain, repairs a torn one and writes the records that an earlier repair
    /// could not. Requires the lock.
    pub(in crate::audit_log) fn load(&mut self) -> Result<(), Error> {
        let noted = LastSigned::read(&self.keys()?)?;
        if let Some(segment) = self.last(&noted)? {
            // After a repair, the last segment may be an old compressed one.
            unpack(&self.audit, segment)?;
            self.enter(segment, None)?;
            self.read_tail(MAX_OPENING_BYTES)?;
            if self.end.length == 0 {
                // Its maker may have died before the name was synced.
                self.audit.sync().map_err(Error::io("sync the audit log"))?;
                if segment.0 > 0 {
                    self.end.chain = self.chain_before(segment)?;
                }
            }
        }
        self.recent = RecentLeaves { first: self.next(), leaves: Vec::new() };
        self.reaches()?;
        for pending in quarantine::pending(&self.audit)? {
            self.record_quarantined(&pending)?;
        }
        Ok(())
    }

    /// Finds the end of the chain as [`Log::load`] does, without repairing or unpacking.
    pub(in crate::audit_log) fn look(
        &mut self,
        noted: &LastSigned,
    ) -> Result<LogInspection, Error> {
        let Some(segment) = self.last(noted)? else {
            return self.reaches().map(|()| LogInspection { records: Some(self.next()), torn: 0 });
        };
        let is_plain = |segment: Segment| {
            let stat = self.audit.stat(segment.to_string());
            stat.map(|stat| stat.is_some()).map_err(Error::io("look at the audit log"))
        };
        let before = Segment(segment.0.saturating_sub(1));
        let (plain, before_is_plain) = (is_plain(segment)?, is_plain(before)?);
        if !plain {
            return Ok(LogInspection { records: None, torn: 0 });
        }
        self.enter(segment, None)?;
        let torn = self.read_new(MAX_OPENING_BYTES)?.map_or(0, |(_, tail)| tail.torn.len());
        if self.end.length == 0 && segment.0 > 0 {
            if !before_is_plain {
                let packed = self.audit.stat(format!("{before}{PACKED}"));
                return match packed.map_err(Error::io("look at the audit log"))? {
                    Some(_) => Ok(LogInspection { records: None, torn }),
                    None => Err(follows_nothing(segment)),
                };
            }
            self.end.chain = self.chain_before(segment)?;
        }
        self.recent = RecentLeaves { first: self.next(), leaves: Vec::new() };
        self.reaches().map(|()| LogInspection { records: Some(self.next()), torn })
    }

    /// Returns the last segment, if there is one; fails if one before it is missing.
    fn last(&mut self, noted: &LastSigned) -> Result<Option<Segment>, Error> {
        if let Some(newest) = checkpoints::last_signed(&self.audit, noted)? {
            (self.signed, self.checked) = (newest.size, newest.size);
        }
        let names = self.audit.names().map_err(Error::io("read the audit log"))?;
        let segments = names
            .iter()
            .filter_map(|name| Segment::from_name(name.strip_suffix(PACKED).unwrap_or(name)))
            .collect::<std::collections::BTreeSet<_>>();
        let last = segments.iter().max().copied();
        let first = segments.iter().min().copied().unwrap_or(Segment(0));
        let count = segments.len() as u64;
        if let Some(segment) = last {
            // The oldest segments may have been pruned; their roots are stored then.
            let pruned = if first.0 == 0 || checkpoints::roots_reach(&self.audit, first)? {
                first.0
            } else {
                0
            };
            if segment.next().0 != count + pruned {
                let missing = (pruned..).map(Segment).find(|segment| !segments.contains(segment));
                return Err(Error::Damaged {
                    segment: missing.unwrap_or(segment),
                    reason: "the segment is missing".to_owned(),
                });
            }
        }
        Ok(last)
    }

    /// Opens `segment`, of which only the end of the chain before it is known.
    pub(super) fn enter(&mut self, segment: Segment, chain: Option<Chain>) -> Result<(), Error> {
        let name = segment.to_string();
        let open = self.audit.opening("open the last segment of the audit log", &name);
        let file = self.audit.file(&name, SEGMENT).map_err(open)?;
        let stat = rustix::fs::fstat(&file).map_err(Error::io("look at the audit log"))?;
        let chain = chain.unwrap_or_default();
        self.end =
            ChainEnd { chain, segment, file: Some((Arc::new(file), Id::of(&stat))), length: 0 };
        Ok(())
    }

    /// Reads the open segment from the known length on, and repairs its end.
    pub(super) fn read_tail(&mut self, window: u64) -> Result<(), Error> {
        let Some((file, tail)) = self.read_new(window)? else { return Ok(()) };
        if !tail.torn.is_empty() {
            let segment = self.end.segment;
            // An empty segment does not show the end of the chain.
            if tail.end == 0 && segment.0 > 0 && self.end.chain.next() != segment.first() {
                self.end.chain = self.chain_before(segment)?;
            }
            self.repair(&file, &tail)?;
        }
        Ok(())
    }

    /// Reads the open segment from the known length on, without repairing it.
    fn read_new(&mut self, window: u64) -> Result<Option<(Arc<File>, Tail)>, Error> {
        let Some((file, id)) = self.end.file.clone() else { return Ok(None) };
        let segment = self.end.segment;
        let damaged = |reason: &str| Error::Damaged { segment, reason: reason.to_owned() };
        let length = linked(&self.audit, segment, id)?;
        if length > MAX_SEGMENT {
            return Err(damaged("it is longer than a segment can be"));
        }
        let from = self.end.length;
        let tail =
            Tail::read(&mut &*file, from, length, window).map_err(|error| match error.kind() {
                std::io::ErrorKind::InvalidData => damaged("it does not end with a record"),
                _ => Error::std("read the audit log")(error),
            })?;
        // Read from the known end on, the lines must continue the known chain.
        let known = tail.end - tail.lines.len() as u64 == from
            && (from > 0 || self.end.chain.next() == segment.first());
        if let Some(lines) = tail.lines.strip_suffix(b"\n") {
            let (chain, leaves) = follow(segment, known.then_some(self.end.chain), lines)?;
            if chain.next() <= segment.first() || chain.next() > segment.next().first() {
                return Err(damaged("its last record belongs to another segment"));
            }
            if chain.next() < self.end.chain.next() {
                return Err(damaged("its records are out of order"));
            }
            self.end.chain = chain;
            if known {
                leaves.into_iter().for_each(|leaf| self.recent.push(leaf));
            } else {
                self.recent = RecentLeaves { first: chain.next(), leaves: Vec::new() };
            }
        }
        self.end.length = tail.end;
        Ok(Some((file, tail)))
    }

    /// Returns the end of the chain before the first record of `segment`.
    fn chain_before(&self, segment: Segment) -> Result<Chain, Error> {
        let before = Segment(segment.0.saturating_sub(1));
        let damaged = |reason: String| Error::Damaged { segment: before, reason };
        let name = before.to_string();
        // It may be compressed, after a loss of the log's end or a restore.
        unpack(&self.audit, before)?;
        let open = self.audit.opening("open a segment of the audit log", &name);
        let mut file = self.audit.file(&name, OFlags::RDONLY).map_err(|errno| match errno {
            // All before `segment` was pruned, so it was not empty then.
            Errno::NOENT => follows_nothing(segment),
            errno => open(errno),
        })?;
        let length = file.metadata().map_err(Error::std("read the audit log"))?.len();
        let tail = Tail::read(&mut file, 0, length, MAX_CATCH_UP_BYTES)
            .map_err(|_read| damaged("it does not end with a record".to_owned()))?;
        let chain = match tail.last() {
            Some(line) if tail.torn.is_empty() => {
                Chain::after(line).map_err(|error| Error::line(before, &error))?
            }
            _ => return Err(damaged("it does not end with a record".to_owned())),
        };
        if chain.next() != segment.first() {
            return Err(damaged("the segment is not full, but a later one is there".to_owned()));
        }
        Ok(chain)
    }

    /// Checks that the log is not shorter than its checkpoint.
    fn reaches(&self) -> Result<(), Error> {
        let next = self.next();
        if next < self.signed {
            return Err(checkpoints::shorter(self.end.segment, next, self.signed));
        }
        Ok(())
    }

    /// Sets the bytes after the last newline aside, and nothing before it.
    fn repair(&mut self, file: &File, tail: &Tail) -> Result<(), Error> {
        self.reaches()?;
        let pending = quarantine::keep(&self.audit, "torn", Cursor::new(&tail.torn))?;
        rustix::fs::ftruncate(file, tail.end)
            .and_then(|()| rustix::fs::fsync(file))
            .map_err(Error::io("cut a torn line off the audit log"))?;
        self.record_quarantined(&pending)
    }

    /// Writes the record of a file in quarantine.
    fn record_quarantined(&mut self, pending: &quarantine::Pending) -> Result<(), Error> {
        self.recovered(&pending.draft())?;
        pending.settle(&self.audit)
    }
}

/// Returns the error of an empty segment whose predecessor is gone.
fn follows_nothing(segment: Segment) -> Error {
    let reason =
        "it is empty, and the segment before it is gone, so no record is left to go on from";
    Error::Damaged { segment, reason: reason.to_owned() }
}

/// Returns the end of the chain after `lines`, which must link, and continue `known` if that is
/// given; and their leaf hashes.
fn follow(
    segment: Segment,
    known: Option<Chain>,
    lines: &[u8],
) -> Result<(Chain, Vec<Hash>), Error> {
    let damaged = |reason: String| Error::Damaged { segment, reason };
    let mut leaves = Vec::new();
    let mut end = known.map(|chain| (chain.next(), chain.prev()));
    for line in lines.split(|byte| *byte == b'\n') {
        let record = RecordView::parse(line).map_err(|error| Error::line(segment, &error))?;
        if let Some((seq, prev)) = end
            && (record.seq, record.prev) != (seq, prev)
        {
            return Err(damaged(format!("record {seq} does not follow on the one before")));
        }
        let next = record.seq.checked_add(1);
        let next = next.ok_or_else(|| damaged("a sequence number is too large".to_owned()))?;
        let leaf = Hash::leaf(line);
        leaves.push(leaf);
        end = Some((next, leaf));
    }
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let chain = Chain::after(last).map_err(|error| Error::line(segment, &error))?;
    Ok((chain, leaves))
}
