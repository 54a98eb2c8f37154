//! The log as a source of copies.

use std::{
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portcullis_audit::{
    Checkpoint, Directory, FRONTIER, HISTORY, Hash, KEYS, LogFile, MAX_LINE, MAX_NOTE, NEWEST,
    Note, ROOTS, RecordView, Segment, Source as _,
};
use serde::{Deserialize, Serialize};

use crate::{gateway::AuditLog, operator_files, review::read_regular};

/// Maximum of bytes of a file that is no segment: the roots of a million segments.
const MAX_SMALL_FILE: u64 = 64 << 20;

/// The end of a sequence of records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogEnd {
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// The leaf hash of the last record.
    leaf: Hash,
}

/// The extent of the newest checkpoint.
pub(super) struct CheckpointExtent {
    pub(super) note: Vec<u8>,
    /// Number of records.
    pub(super) size: u64,
    pub(super) end: LogEnd,
}

/// The parsed fields of a line of `frontier`.
#[derive(Deserialize)]
struct FrontierFields {
    size: u64,
    segment: u64,
    offset: u64,
}

/// The log in a directory.
pub(super) struct SegmentReader {
    state: PathBuf,
    path: PathBuf,
    files: Directory,
}

impl SegmentReader {
    pub(super) fn new(state: &Path) -> Self {
        let path = state.join("audit");
        Self { state: state.to_owned(), files: Directory::new(&path), path }
    }

    /// Returns time and inode number of the newest checkpoint.
    pub(super) fn mark(&self) -> Option<(i64, i64, u64)> {
        let stat = rustix::fs::stat(self.path.join(NEWEST)).ok()?;
        Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).ok()?, stat.st_ino))
    }

    /// Returns the newest checkpoint: where its file is missing, that beside the private key, else
    /// the largest stored one.
    pub(super) fn newest(&self) -> Result<Option<Vec<u8>>, String> {
        if let Some(note) = self.small(NEWEST)? {
            return Ok(Some(note));
        }
        match read_regular(&self.state.join(AuditLog::LAST_SIGNED), MAX_NOTE as u64) {
            Ok(note) => return Ok(Some(note)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read `{}`: {error}", AuditLog::LAST_SIGNED)),
        }
        let names = self.files.history().map_err(|error| error.to_string())?;
        let sizes = names.iter().filter_map(|name| name.parse::<u64>().ok());
        sizes.max().map_or(Ok(None), |size| self.small(&format!("{HISTORY}/{size}")))
    }

    /// Returns the extent of the newest checkpoint; `None` if the log has none.
    pub(super) fn covered(&self) -> Result<Option<CheckpointExtent>, String> {
        let mut newest = self.newest()?;
        loop {
            let Some(note) = newest else { return Ok(None) };
            let checkpoint = Note::parse(&note).and_then(|note| Checkpoint::of(&note));
            let size = checkpoint.map_err(|error| error.to_string())?.size;
            let Some(last) = size.checked_sub(1) else { return Ok(None) };
            if let Some(edge) = self.edge(size)? {
                // `frontier` is not signed, so it is checked.
                return match self.end(edge.segment, edge.offset)? {
                    Some((end, seq)) if seq == Some(last) => {
                        Ok(Some(CheckpointExtent { note, size, end }))
                    }
                    _ => Err(format!("`{FRONTIER}` does not say where record {last} ends")),
                };
            }
            newest = self.newest()?;
            // A gateway may have made others meanwhile.
            if newest.as_ref() == Some(&note) {
                return Err(format!(
                    "`{FRONTIER}` is missing or does not name the newest checkpoint: `portcullis \
                     audit checkpoint` writes it again"
                ));
            }
        }
    }

    /// Returns the line of `frontier` about a checkpoint of `size` records.
    fn edge(&self, size: u64) -> Result<Option<FrontierFields>, String> {
        let lines = self.small(FRONTIER)?.unwrap_or_default();
        let lines = String::from_utf8_lossy(&lines);
        let mut edges =
            lines.lines().filter_map(|line| serde_json::from_str::<FrontierFields>(line).ok());
        Ok(edges.find(|edge| edge.size == size))
    }

    /// Returns the end of records and the number of the last one; `None` if there is no such
    /// segment.
    pub(super) fn end(
        &self,
        segment: u64,
        offset: u64,
    ) -> Result<Option<(LogEnd, Option<u64>)>, String> {
        // In a segment without records the last one is in the segment before.
        let (of, end) = match offset {
            0 => (segment.saturating_sub(1), u64::MAX),
            offset => (segment, offset),
        };
        let name = Segment(of).to_string();
        let mut file = match self.files.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let length = match file.seek(SeekFrom::End(0)) {
            Ok(length) => length,
            // A compressed segment can only be read forward: its header has its length.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.length(&name)?.ok_or_else(|| format!("`{name}` is missing"))?
            }
            Err(error) => return Err(error.to_string()),
        };
        let mut read = || {
            let end = end.min(length);
            let begin = end.saturating_sub(MAX_LINE as u64 + 1);
            file.seek(SeekFrom::Start(begin))?;
            let mut bytes = Vec::new();
            file.by_ref().take(end - begin).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(bytes)
        };
        let bytes = read().map_err(|error| error.to_string())?;
        let whole = bytes.strip_suffix(b"\n");
        let lines = whole.unwrap_or(&bytes);
        let line = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let record = whole.and_then(|_| RecordView::parse(line).ok());
        let end = LogEnd { segment, offset, leaf: Hash::leaf(line) };
        // No record ends beyond the segment.
        let record = record.filter(|_| offset <= length);
        Ok(Some((end, record.map(|record| record.seq))))
    }

    /// Returns the first segment; earlier ones were pruned.
    pub(super) fn first_segment(&self) -> Result<u64, String> {
        let entries = self.files.list().map_err(|error| error.to_string())?;
        let segments = entries.iter().filter_map(|entry| Segment::from_name(&entry.name));
        Ok(segments.min().unwrap_or(Segment(0)).0)
    }

    /// Returns the size of a segment's content in bytes; `None` if there is no such segment.
    fn length(&self, name: &str) -> Result<Option<u64>, String> {
        let entries = self.files.list().map_err(|error| error.to_string())?;
        Ok(entries.iter().find(|entry| entry.name == name).map(|entry| entry.length))
    }

    /// Opens a segment for reading.
    pub(super) fn open(&self, name: &str) -> io::Result<LogFile> {
        self.files.open(name)
    }

    /// Returns a full segment, compressed.
    pub(super) fn compressed(&self, segment: Segment) -> Result<Vec<u8>, String> {
        let name = segment.to_string();
        let length = self.length(&name)?.ok_or_else(|| format!("`{name}` is missing"))?;
        let file = self.files.open(&name).map_err(|error| error.to_string())?;
        let mut packed = Vec::new();
        AuditLog::compress_segment(file, &mut packed, length).map_err(|error| error.to_string())?;
        Ok(packed)
    }

    /// Returns a part of a segment.
    pub(super) fn part(
        &self,
        segment: Segment,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut read = || {
            let mut file = self.files.open(&segment.to_string())?;
            file.seek(SeekFrom::Start(offset))?;
            file.take(length).read_to_end(&mut bytes)
        };
        read().map_err(|error| error.to_string())?;
        match bytes.len() as u64 == length {
            true => Ok(bytes),
            false => Err(format!("`{segment}` is shorter than its checkpoint says")),
        }
    }

    /// Reads a file that is no segment.
    pub(super) fn small(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        match self.files.open(name) {
            Ok(file) => {
                let mut bytes = Vec::new();
                let read = file.take(MAX_SMALL_FILE + 1).read_to_end(&mut bytes);
                read.map_err(|error| error.to_string())?;
                match bytes.len() as u64 {
                    0..=MAX_SMALL_FILE => Ok(Some(bytes)),
                    _ => {
                        Err(format!("`{name}` is damaged: it has more than {MAX_SMALL_FILE} bytes"))
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the names of files besides segments that a copy with `size` records needs, made
    /// after those of `sent` records or changed since `at`: cosignatures come later.
    pub(super) fn others(&self, sent: u64, size: u64, at: u64) -> Result<Vec<String>, String> {
        let names = self.files.history().map_err(|error| error.to_string())?;
        let mut kept: Vec<_> =
            names.iter().filter_map(|name| name.parse().ok()).filter(|at| *at <= size).collect();
        kept.sort_unstable();
        let kept = kept.into_iter().map(|size: u64| (size > sent, format!("{HISTORY}/{size}")));
        let fixed = [KEYS, ROOTS, NEWEST].map(|name| (false, name.to_owned()));
        let all = fixed.into_iter().chain(kept);
        let wanted = all.filter(|(is_new, name)| *is_new || self.is_changed(name, at));
        Ok(wanted.map(|(_, name)| name).collect())
    }

    /// Returns true if a file was changed in that second or later.
    fn is_changed(&self, name: &str, at: u64) -> bool {
        let changed = operator_files::metadata(self.path.join(name)).and_then(|it| it.modified());
        changed.is_ok_and(|changed| changed >= UNIX_EPOCH + Duration::from_secs(at))
    }
}

/// Returns the seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
