//! Segments: which exist, where each begins and ends, and their bytes that are not lines.

use std::{collections::BTreeMap, io};

use super::{Pruned, Run, VerifyPosition};
use crate::{
    DamageKind, FRONTIER, FileEntry, HISTORY, Hash, KEYS, MAX_JUNK, MAX_LINE, NEWEST, ROOTS,
    SEGMENT_RECORDS, Segment, Source, WarningKind,
};

impl<S: Source> Run<'_, S> {
    /// Sorts the entries of the directory; returns the segments.
    pub(super) fn directory(&mut self, mut entries: Vec<FileEntry>) -> BTreeMap<Segment, u64> {
        let mut segments = BTreeMap::new();
        entries.sort();
        for FileEntry { name, length, regular, directory } in entries {
            match (Segment::from_name(&name), name.as_str()) {
                (Some(segment), _) if regular => {
                    self.total = self.total.saturating_add(length);
                    segments.insert(segment, length);
                }
                (Some(_), _) => {
                    let detail = "the segment is not a regular file".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                // A gateway does not serve such a log, since it could not wait for an append,
                // continue from a checkpoint, or set bytes aside.
                (None, "lock" | FRONTIER) if !regular => {
                    let detail = "it is not a regular file".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                (None, "quarantine") if !directory => {
                    let detail = "it is not a directory".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                (None, "lock" | NEWEST | HISTORY | KEYS | ROOTS | FRONTIER) => {}
                (None, "quarantine") => self.warn(WarningKind::Quarantine, None, || {
                    "`quarantine` is where recoveries set files aside, each named by a `recovered` \
                     record; what is in it was not looked at"
                        .to_owned()
                }),
                (None, _) if name.starts_with("seg-") => {
                    let detail = "a name like a segment's that no segment has".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                (None, _) if name.starts_with('.') => {}
                (None, _) => self.warn(WarningKind::UnknownFile, None, || {
                    format!("{name:?} does not belong to the log")
                }),
            }
        }
        for name in std::mem::take(&mut self.expectations.unexpected) {
            self.warn(WarningKind::UnknownFile, None, || {
                format!("{name:?} does not belong to the log")
            });
        }
        self.take_faults();
        segments
    }

    /// Enters `segment` before its first line.
    pub(super) fn enter(&mut self, segment: Segment, last: bool) -> io::Result<()> {
        let missing = self.next;
        self.next = segment.next();
        self.report.segments += 1;
        let before = self.report.damages.len();
        let place = VerifyPosition { segment, last, line: 0, offset: 0, before, over: false };
        if missing < segment {
            if missing.0 == 0 && self.expectations.pruned(self.source, segment)? {
                self.pruned = Some(Pruned { until: segment, head: None });
                self.report.pruned = segment.first();
                self.take_faults();
            } else {
                self.expected = missing.first();
                self.at = VerifyPosition { segment: missing, ..place };
                let detail = match segment.0 - missing.0 {
                    1 => "the segment is missing, but later ones are there".to_owned(),
                    count => format!("{count} segments from this one on are missing"),
                };
                self.broken(DamageKind::MissingSegment, detail);
            }
        }
        if self.expected != segment.first() {
            self.expected = segment.first();
            self.prev = None;
        }
        self.at = VerifyPosition { before: self.report.damages.len(), ..place };
        Ok(())
    }

    /// Leaves the segment after its end.
    pub(super) fn leave(&mut self, length: u64) -> io::Result<()> {
        let VerifyPosition { segment, last, line, before, over, offset } = self.at;
        if offset != length && !over && !self.stopped() {
            return Err(io::Error::other(format!("`{segment}` became shorter while it was read")));
        }
        self.report.bytes += self.at.offset;
        self.at.offset = 0;
        self.tell();
        if !last && !over && line < SEGMENT_RECORDS && self.report.damages.len() == before {
            let detail = format!(
                "the segment ends after {line} of {SEGMENT_RECORDS} records, but is not the last"
            );
            self.broken(DamageKind::ShortSegment, detail);
        }
        Ok(())
    }

    /// Counts one more line; false if it is ignored.
    pub(super) fn line(&mut self, length: u64) -> bool {
        self.at.offset += length;
        if self.at.over || self.stopped() {
            return false;
        }
        self.at.line += 1;
        if self.at.line > SEGMENT_RECORDS {
            self.at.over = true;
            let detail = format!("the segment goes on after {SEGMENT_RECORDS} records");
            self.broken(DamageKind::LongSegment, detail);
            return false;
        }
        true
    }

    pub(super) fn long(&mut self, length: u64) {
        if self.line(length) {
            let detail = format!("the line is longer than {MAX_LINE} bytes");
            self.broken(DamageKind::LongLine, detail);
            self.skip(None);
            self.at.over = length > MAX_JUNK;
        }
    }

    pub(super) fn rest(&mut self, length: u64) {
        if self.line(length) {
            let (kind, words) = if self.at.last {
                (DamageKind::TornTail, "the log")
            } else {
                (DamageKind::UnterminatedLine, "the segment")
            };
            self.broken(kind, format!("{words} ends after {length} bytes of a line"));
            self.skip(None);
        }
    }

    /// Skips the rest of a segment.
    pub(super) fn ruin(&mut self, length: u64, detail: String) {
        self.at.offset = length;
        if self.at.over || self.stopped() {
            return;
        }
        self.at.over = true;
        let name = self.at.segment.to_string();
        let first = self.at.segment.first();
        self.damage(DamageKind::BadSegment, &name, Some((first, 0)), detail);
        self.report.complete = false;
    }

    /// Skips a line that is not a record.
    pub(super) fn skip(&mut self, prev: Option<Hash>) {
        self.expected = self.expected.saturating_add(1);
        self.prev = prev;
    }
}
