//! The log as a set of segments at one moment.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use portcullis_audit::{
    Directory, FileEntry, MAX_SEGMENT, Reader, RecordView, SEGMENT_RECORDS, Segment, Source as _,
};

/// One segment with its length at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) segment: Segment,
    pub(super) length: u64,
    /// True if nothing more will be written to it.
    pub(super) sealed: bool,
}

/// The first record of a pruned log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunedStart {
    /// Its index.
    pub seq: u64,
    /// Its time, if it can be read.
    pub t: Option<String>,
}

impl PrunedStart {
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
                    log.damages.push(format!("{name:?} has a name like a segment's, but is none"));
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

    /// Returns the first record if earlier ones were pruned. A scan reports damage of that record.
    pub fn begins(&self) -> Option<PrunedStart> {
        let seq = self.parts.first()?.segment.first();
        if seq == 0 {
            return None;
        }
        let entry = Reader::new(&self.source, seq).next().ok().flatten();
        let t = entry.and_then(|entry| {
            RecordView::parse(&entry.bytes).ok().map(|record| record.t.as_str().to_owned())
        });
        Some(PrunedStart { seq, t })
    }

    /// Counts the records by the names of the segments and the lines of the newest: no record is
    /// parsed, so damage is counted, too.
    ///
    /// # Errors
    /// If the newest segment cannot be read.
    pub fn records(&self) -> io::Result<u64> {
        let Some((newest, sealed)) = self.parts.split_last() else { return Ok(0) };
        let mut rest = self.source.open(&newest.segment.to_string())?.take(newest.length);
        let (mut lines, mut buffer) = (0, vec![0; 1 << 16]);
        loop {
            match rest.read(&mut buffer)? {
                0 => return Ok(sealed.len() as u64 * SEGMENT_RECORDS + lines),
                read => {
                    let ends = buffer.iter().take(read).filter(|byte| **byte == b'\n');
                    lines += ends.count() as u64;
                }
            }
        }
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
        let write = |seq: u64| {
            let line = format!(
                r#"{{"v":1,"seq":{seq},"kind":"decision","t":"2026-11-21T08:00:00.000000Z","nonce":"{:032}","prev":"{:064}"}}
"#,
                0, 0
            );
            std::fs::write(directory.path().join(Segment::of(seq).to_string()), line).unwrap();
        };
        let begins = || Log::open(directory.path()).unwrap().begins();
        assert_eq!(begins(), None);
        write(131_072);
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
        write(0);
        assert_eq!(begins(), None);
        let log = Log::open(directory.path()).unwrap();
        assert_eq!(log.records().unwrap(), SEGMENT_RECORDS + 1);
    }
}
