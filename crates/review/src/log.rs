//! The log as a set of segments at one moment.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use portcullis_audit::{
    Directory, FileEntry, Kind, MAX_JUNK, MAX_SEGMENT, Reader, RecordView, Removal,
    SEGMENT_RECORDS, Segment, Source as _,
};

use super::{Filter, Scanned};

/// One segment with its length at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) segment: Segment,
    pub(super) length: u64,
    /// True if nothing more will be written to it.
    pub(super) sealed: bool,
}

/// The first record of a log without its earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStart {
    /// Its index.
    pub seq: u64,
    /// Its time, if it can be read.
    pub t: Option<String>,
    /// True if a record says who had the earlier ones removed; else a recovery found them missing.
    pub is_accounted: bool,
}

impl LogStart {
    /// Returns what became of the earlier records.
    pub fn reason(&self) -> &'static str {
        match self.is_accounted {
            true => "were pruned",
            false => "are missing, and no record says who had them removed",
        }
    }

    /// True if the period from `since` on may include pruned records.
    pub fn is_after(&self, since: Option<&str>) -> bool {
        !matches!((since, &self.t), (Some(since), Some(t)) if since >= t.as_str())
    }
}

/// A log to search, as it was between two appends. Gateways may append meanwhile.
pub struct Log {
    pub(super) directory: PathBuf,
    pub(super) source: Directory,
    pub(super) parts: Vec<Part>,
    /// Damage of the files themselves.
    pub(super) damages: Vec<String>,
    pub(super) index: Option<PathBuf>,
    pub(super) progress: Option<Box<dyn Fn(u64) + Send + Sync>>,
    /// The kind of the record that explains why the first segments are gone, once that was looked
    /// for; `None` if no record does.
    removal: OnceLock<Option<Kind>>,
}

impl Log {
    /// Opens the log in `directory`.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let source = Directory::new(directory);
        let mut log = Self {
            directory: directory.to_owned(),
            source,
            parts: Vec::new(),
            damages: Vec::new(),
            index: None,
            progress: None,
            removal: OnceLock::new(),
        };
        for FileEntry { name, length, regular, .. } in log.source.list()? {
            match Segment::from_name(&name) {
                Some(_) if length > MAX_SEGMENT => log.damages.push(format!(
                    "{name} has {length} bytes, and a segment at most {MAX_SEGMENT}: it was not read"
                )),
                Some(segment) if regular => {
                    log.parts.push(Part { segment, length, sealed: true });
                }
                Some(_) => log.damages.push(format!("{name} is not a regular file")),
                None if name.starts_with("seg-") => {
                    log.damages.push(format!("{name:?} has a name like a segment's, but is not \
                        one"));
                }
                // Other files are ignored.
                None => {}
            }
        }
        log.parts.sort_by_key(|part| part.segment);
        if let Some(last) = log.parts.last_mut() {
            last.sealed = false;
        }
        for (before, after) in log.parts.iter().zip(log.parts.iter().skip(1)) {
            if before.segment.next() != after.segment {
                log.damages.push(format!("{} is missing", before.segment.next()));
            }
        }
        Ok(log)
    }

    /// Uses an index in this directory, which is beside the log, and makes it where that pays.
    #[must_use]
    pub fn with_index(mut self, directory: PathBuf) -> Self {
        self.index = Some(directory);
        self
    }

    /// Sets a callback that receives the number of bytes read since its last call.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Returns true if the log has no segment.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the first record if earlier ones are gone, and a record says so. A scan reports damage
    /// of that record, and that no record says so.
    pub fn begins(&self) -> Option<LogStart> {
        let first = self.first_after_removal()?;
        let kind = self.removal(first).ok().flatten()?;
        let t = self.first_record(first, |record| record.t.as_str().to_owned());
        Some(LogStart { seq: first.first(), t, is_accounted: kind == Kind::Pruned })
    }

    /// Returns the damage of the files: a segment that is missing without a record of that, or what
    /// is none.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn damages(&self) -> io::Result<Scanned> {
        let mut found = self.damages_between();
        if let Some(first) = self.first_after_removal()
            && self.removal(first)?.is_none()
        {
            found.damage(|| {
                let last = first.first() - 1;
                format!("records 0 to {last} are missing, and no record says that they were pruned")
            });
        }
        Ok(found)
    }

    /// Returns the same from the first segment on.
    pub(super) fn damages_between(&self) -> Scanned {
        let mut found = Scanned::default();
        for damage in &self.damages {
            found.damage(|| damage.clone());
        }
        found
    }

    /// Returns the first segment, if the log does not begin with record 0.
    fn first_after_removal(&self) -> Option<Segment> {
        self.parts.first().map(|part| part.segment).filter(|first| first.0 > 0)
    }

    fn first_record<T>(
        &self,
        first: Segment,
        take: impl FnOnce(&RecordView<'_>) -> T,
    ) -> Option<T> {
        let entry = Reader::new(&self.source, first.first()).next().ok().flatten()?;
        RecordView::parse(&entry.bytes).ok().map(|record| take(&record))
    }

    /// Returns the kind of the newest record that explains why the log begins with the segment
    /// `first`. The newest segments are read first: the last prune is in one of them.
    fn removal(&self, first: Segment) -> io::Result<Option<Kind>> {
        if let Some(known) = self.removal.get() {
            return Ok(*known);
        }
        let prev = self.first_record(first, |record| record.prev);
        let kinds = [Kind::Pruned, Kind::Recovered].map(|kind| kind.as_str().to_owned());
        let filter = Filter {
            kinds: kinds.into(),
            records: Some(first.first()..=u64::MAX),
            ..Filter::default()
        };
        let found = self.newest(&filter, |record| {
            let explains = Removal::of(record).is_some_and(|removal| removal.explains(first, prev));
            explains.then_some(record.kind)
        })?;
        Ok(*self.removal.get_or_init(|| found))
    }

    /// Counts the records by the names of the segments and the lines of the newest: no record is
    /// parsed, so damage is counted, too. A sparse file may have any length, so the count ends
    /// after the most lines that a segment has, and after too many bytes without a line.
    ///
    /// # Errors
    /// If the newest segment cannot be read.
    pub fn records(&self) -> io::Result<u64> {
        let Some((newest, sealed)) = self.parts.split_last() else { return Ok(0) };
        let mut rest = self.source.open(&newest.segment.to_string())?.take(newest.length);
        let (mut lines, mut junk, mut buffer) = (0, 0, vec![0; 1 << 16]);
        while lines < SEGMENT_RECORDS && junk <= MAX_JUNK {
            let read = rest.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            let ends = buffer.iter().take(read).filter(|byte| **byte == b'\n').count() as u64;
            lines += ends;
            junk = if ends > 0 { 0 } else { junk + read as u64 };
        }
        Ok(sealed.len() as u64 * SEGMENT_RECORDS + lines.min(SEGMENT_RECORDS))
    }

    /// Returns the segments, oldest first.
    pub fn segments(&self) -> Vec<Segment> {
        self.parts.iter().map(|part| part.segment).collect()
    }

    /// Returns the size of the log in bytes.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "writes a log of its own")]
mod tests {
    use super::*;

    #[test]
    fn a_pruned_log_says_where_it_begins() {
        let directory = tempfile::tempdir().unwrap();
        let line = |seq: u64, kind: &str| {
            format!(
                r#"{{"v":1,"seq":{seq},"kind":{kind},"t":"2026-11-21T08:00:00.000000Z","nonce":"{:032}","prev":"{:064}"}}
"#,
                0, 0
            )
        };
        let write = |seq: u64, second: &str| {
            let lines = line(seq, r#""decision""#) + &line(seq + 1, second);
            std::fs::write(directory.path().join(Segment::of(seq).to_string()), lines).unwrap();
        };
        let open = || Log::open(directory.path()).unwrap();
        let begins = || open().begins();
        let missing = || open().damages().unwrap().damages;
        assert_eq!((begins(), missing()), (None, Vec::new()));
        let says = |kind: &str, segments: u64, head: u8| {
            format!(r#""{kind}","facts":{{"segments":{segments},"head":"{head:064}"}}"#)
        };
        let damage = "records 0 to 131071 are missing, and no record says that they were pruned";
        for no_record in
            [r#""stop""#.to_owned(), says("pruned", 1, 0), says("pruned", 2, 1), says("stop", 2, 0)]
        {
            write(131_072, &no_record);
            assert_eq!((begins(), missing()), (None, vec![damage.to_owned()]), "{no_record}");
        }
        // A prune of more that was interrupted, and the record of a recovery in its place.
        for (removal, is_accounted) in [("pruned", 3, 1), ("pruned", 2, 0), ("recovered", 2, 0)]
            .map(|(kind, segments, head)| (says(kind, segments, head), kind == "pruned"))
        {
            write(131_072, &removal);
            assert_eq!(missing(), Vec::<String>::new(), "{removal}");
            assert_eq!(begins().unwrap().is_accounted, is_accounted, "{removal}");
        }
        let first = begins().unwrap();
        assert_eq!(first.seq, 131_072);
        for (since, is_after) in [
            (None, true),
            (Some("2026-11-21T07:59:59.999999Z"), true),
            (Some("2026-11-21T08:00:00.000000Z"), false),
            (Some("2026-12-01T00:00:00.000000Z"), false),
        ] {
            assert_eq!(first.is_after(since), is_after, "{since:?}");
        }
        write(0, r#""stop""#);
        assert_eq!(begins(), None);
        assert_eq!(open().records().unwrap(), SEGMENT_RECORDS + 2);
    }
}
