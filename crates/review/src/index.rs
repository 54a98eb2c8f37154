//! An index beside the log: for each full segment a file with the values of its lines, so that a
//! search reads only lines that may match.
//!
//! The log stays authoritative. Every line that an index finds is read from the log and checked
//! against the filter. An index that is damaged, or that does not belong to the segment's file in
//! its current state, is rebuilt. All indexes can be deleted at any time.
//!
//! An index is trusted to exclude lines. Its hashes detect damage but not forgery: a program that
//! can write it can recompute them and so hide records from a search. Hence indexes are for
//! searches of a state directory whose writers are trusted. Evidence is read from the log itself,
//! and so is a copy.
#![expect(clippy::disallowed_methods, reason = "the index is the review's own")]

mod columns;

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use portcullis_audit::{Hash, PACKED, RecordView, SEGMENT_RECORDS, Segment};
use serde::{Deserialize, Serialize};

use super::{Filter, filter::Test, open_regular};
use columns::{Column, Columns};

const MAGIC: &[u8; 16] = b"PORTCULLIS-IDX1\n";
/// Maximum size of a header in bytes.
const MAX_HEADER: u64 = 1 << 20;
/// Maximum number of bytes read of one block. A segment whose index needs more is searched without
/// it.
const MAX_BLOCK: u64 = 256 << 20;

/// The properties that distinguish a file from its earlier states (stat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    /// Returns that of the file at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(path)?;
        Ok(Self {
            device: meta.dev(),
            inode: meta.ino(),
            length: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// A byte range of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Block {
    at: u64,
    length: u64,
    sha256: Hash,
}

/// Returns the path of a segment: the plain file if it exists, else the compressed one.
pub(super) fn segment_file(directory: &Path, segment: Segment) -> PathBuf {
    let plain = directory.join(segment.to_string());
    if plain.exists() { plain } else { directory.join(format!("{segment}{PACKED}")) }
}

/// ```text
/// MAGIC, 16 bytes; length of the header, 8 bytes little-endian; SHA-256 of the
/// header, 32 bytes; the header, JSON; blocks
/// ```
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// The state of the segment that it belongs to.
    of: Identity,
    /// The earliest and the latest `t`.
    times: (String, String),
    /// The length of each line with its newline, 4 bytes little-endian.
    lines: Block,
    columns: Vec<ColumnHeader>,
}

/// The values of one field.
#[derive(Debug, Serialize, Deserialize)]
struct ColumnHeader {
    name: String,
    /// The distinct texts, each after its length (4 bytes little-endian).
    texts: Block,
    /// A number for each line: 0 for no value, else the position of the text, from 1.
    codes: Block,
    /// The width of such a number in bytes.
    width: usize,
}

/// The index of one segment.
pub(super) struct Index {
    file: File,
    header: Header,
}

/// A line that may match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// Its position in the segment, from 0.
    pub(super) number: u64,
    pub(super) offset: u64,
    /// Its length without the newline.
    pub(super) length: u64,
}

impl Index {
    /// Opens the index of a segment, if there is one that belongs to the segment in its current
    /// state.
    pub(super) fn open(directory: &Path, segment: Segment, of: Identity) -> Option<Self> {
        let file = open_regular(&name(directory, segment)).ok()?;
        let mut start = [0; 16 + 8 + 32];
        file.read_exact_at(&mut start, 0).ok()?;
        let (magic, rest) = start.split_first_chunk::<16>()?;
        let (length, hash) = rest.split_first_chunk::<8>()?;
        let length = u64::from_le_bytes(*length);
        if magic != MAGIC || length > MAX_HEADER {
            return None;
        }
        let mut header = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(&mut header, start.len() as u64).ok()?;
        if Hash::of(&header).as_bytes() != hash {
            return None;
        }
        let header: Header = serde_json::from_slice(&header).ok()?;
        (header.of == of).then_some(Self { file, header })
    }

    fn block(&self, block: Block) -> Option<Vec<u8>> {
        let length = usize::try_from(block.length).ok()?;
        // A sparse file may be large without occupying space.
        if block.length > self.file.metadata().ok()?.len().min(MAX_BLOCK) {
            return None;
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, block.at).ok()?;
        (Hash::of(&bytes) == block.sha256).then_some(bytes)
    }

    /// Returns the lines that may match `filter`: all that do, and perhaps others. `None` if the
    /// index is damaged.
    pub(super) fn candidates(&self, filter: &Filter) -> Option<Vec<Line>> {
        let (earliest, latest) = &self.header.times;
        if filter.since.as_ref().is_some_and(|since| latest < since)
            || filter.until.as_ref().is_some_and(|until| earliest >= until)
        {
            return Some(Vec::new());
        }
        let count = usize::try_from(SEGMENT_RECORDS).ok()?;
        let mut wanted = vec![true; count];
        for test in Test::ALL {
            if !test.is_asked(filter) {
                continue;
            }
            let mut any = vec![false; count];
            for column in self.header.columns.iter().filter(|column| test.is_of(&column.name)) {
                let texts = self.block(column.texts)?;
                let accepted = columns::accepted(&texts, |text| test.may_hold(filter, text))?;
                if !accepted.contains(&true) {
                    continue;
                }
                let codes = self.block(column.codes)?;
                columns::mark(&codes, column.width, &accepted, &mut any)?;
            }
            wanted.iter_mut().zip(any).for_each(|(wanted, any)| *wanted &= any);
            if !wanted.contains(&true) {
                return Some(Vec::new());
            }
        }
        let lengths = self.block(self.header.lines)?;
        let (lengths, rest) = lengths.as_chunks::<4>();
        if lengths.len() != count || !rest.is_empty() {
            return None;
        }
        let (mut lines, mut offset) = (Vec::new(), 0_u64);
        for ((number, length), wanted) in (0_u64..).zip(lengths).zip(wanted) {
            let length = u64::from(u32::from_le_bytes(*length));
            if wanted {
                lines.push(Line { number, offset, length: length.saturating_sub(1) });
            }
            offset += length;
        }
        Some(lines)
    }
}

/// A builder of the index of a segment, which is read from its first line to its last.
pub(super) struct Builder {
    of: Identity,
    path: PathBuf,
    times: Option<(String, String)>,
    lengths: Vec<u8>,
    columns: Columns,
}

impl Builder {
    /// Starts an index of the segment whose file is at `path`.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let of = Identity::of(&path)?;
        Ok(Self { of, path, times: None, lengths: Vec::new(), columns: Columns::new() })
    }

    /// Adds the next line.
    pub(super) fn add(&mut self, record: &RecordView<'_>, line: &[u8]) {
        let t = record.t.as_str();
        match &mut self.times {
            None => self.times = Some((t.to_owned(), t.to_owned())),
            Some((earliest, _)) if t < earliest.as_str() => t.clone_into(earliest),
            Some((_, latest)) if t > latest.as_str() => t.clone_into(latest),
            Some(_) => {}
        }
        // A line is at most 1 MiB.
        let length = u32::try_from(line.len() + 1).unwrap_or(u32::MAX);
        self.lengths.extend_from_slice(&length.to_le_bytes());
        self.columns.add(record);
    }

    /// Writes the index atomically, if the segment's file is unchanged since the start.
    ///
    /// # Errors
    /// The error of the system; no index exists then.
    pub(super) fn save(self, directory: &Path, segment: Segment) -> io::Result<()> {
        let whole = self.lengths.len() as u64 == SEGMENT_RECORDS * 4;
        let Some(times) = self.times.filter(|_| whole) else { return Ok(()) };
        if Identity::of(&self.path)? != self.of {
            return Ok(());
        }
        let mut blocks = Vec::new();
        let mut block = |bytes: &[u8]| {
            let block = Block {
                at: blocks.len() as u64,
                length: bytes.len() as u64,
                sha256: Hash::of(bytes),
            };
            blocks.extend_from_slice(bytes);
            block
        };
        let lines = block(&self.lengths);
        let columns: Vec<_> = (self.columns.finish().into_iter())
            .map(|Column { name, texts, codes, width }| ColumnHeader {
                name: name.to_owned(),
                texts: block(&texts),
                codes: block(&codes),
                width,
            })
            .collect();
        let mut header = Header { of: self.of, times, lines, columns };
        // Offsets count from the start of the file, so they depend on the length of the header that
        // contains them.
        let mut text = serde_json::to_vec(&header)?;
        let room = (text.len() + 1024).next_multiple_of(4096);
        let start = (16 + 8 + 32 + room) as u64;
        header.lines.at += start;
        for column in &mut header.columns {
            column.texts.at += start;
            column.codes.at += start;
        }
        text = serde_json::to_vec(&header)?;
        if text.len() > room {
            return Err(io::Error::other("the header of an index is longer than expected"));
        }
        // JSON may end with white space.
        text.resize(room, b' ');
        let mut file = Vec::with_capacity(text.len() + blocks.len() + 64);
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&(text.len() as u64).to_le_bytes());
        file.extend_from_slice(Hash::of(&text).as_bytes());
        file.extend_from_slice(&text);
        file.extend_from_slice(&blocks);
        write(directory, segment, &file)
    }
}

/// Deletes the indexes of segments before `first`, which were pruned: they contain paths, agents
/// and sessions of records that are gone.
///
/// # Errors
/// The error of the system.
pub fn forget_index(directory: &Path, first: Segment) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        // A file in the place of the directory is not an index.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let of = name.to_str().and_then(segment_of);
        if of.is_none_or(|segment| segment >= first) {
            continue;
        }
        match fs::remove_file(directory.join(name)) {
            // Another process may have deleted it.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the segment of an index or of its temporary file, by the file's name.
fn segment_of(name: &str) -> Option<Segment> {
    let stem = name.strip_suffix(".idx").or_else(|| {
        let (stem, process) = name.strip_suffix(".tmp")?.rsplit_once('.')?;
        process.bytes().all(|byte| byte.is_ascii_digit()).then_some(stem)
    })?;
    Segment::from_name(stem)
}

fn name(directory: &Path, segment: Segment) -> PathBuf {
    directory.join(format!("{segment}.idx"))
}

/// Two searches may write at once: each uses a file of its own, and the last one remains.
fn write(directory: &Path, segment: Segment, bytes: &[u8]) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let target = name(directory, segment);
    let temp = directory.join(format!("{segment}.{}.tmp", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temp)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temp, &target));
    if written.is_err() {
        let _ = fs::remove_file(&temp);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_lines_that_are_wanted_and_only_those() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment");
        let line = |seq: u64| {
            let (path, agent) = (seq % 300, seq % 2);
            format!(
                r#"{{"v":1,"seq":{seq},"kind":"decision","t":"2026-11-21T08:00:{:02}.000000Z","agent":"{agent}","path":"p{path}","nonce":"{:032}","prev":"{:064}"}}"#,
                seq % 60,
                0,
                0
            )
        };
        let text: String = (0..SEGMENT_RECORDS).map(|seq| line(seq) + "\n").collect();
        fs::write(&path, &text).unwrap();
        let mut builder = Builder::new(path.clone()).unwrap();
        for seq in 0..SEGMENT_RECORDS {
            let line = line(seq);
            builder.add(&RecordView::parse(line.as_bytes()).unwrap(), line.as_bytes());
        }
        let index = directory.path().join("index");
        builder.save(&index, Segment(0)).unwrap();
        let index = Index::open(&index, Segment(0), Identity::of(&path).unwrap()).unwrap();
        let candidates = |change: &dyn Fn(&mut Filter)| {
            let mut filter = Filter::default();
            change(&mut filter);
            index.candidates(&filter).unwrap()
        };
        let wanted = candidates(&|filter| {
            filter.paths = vec!["p7".parse().unwrap()];
            filter.agents = vec!["1".to_owned()];
        });
        let numbers: Vec<u64> = wanted.iter().map(|line| line.number).collect();
        let expected = (0..SEGMENT_RECORDS).filter(|seq| seq % 300 == 7 && seq % 2 == 1);
        assert_eq!(numbers, expected.collect::<Vec<_>>());
        for Line { number, offset, length } in wanted {
            let (from, to) =
                (usize::try_from(offset).unwrap(), usize::try_from(offset + length).unwrap());
            assert_eq!(text.get(from..to), Some(line(number).as_str()));
        }
        assert!(candidates(&|filter| filter.agents = vec!["2".to_owned()]).is_empty());
        assert!(candidates(&|filter| filter.rules = vec!["r".to_owned()]).is_empty());
        assert!(candidates(&|filter| filter.since = Some("2026-11-22".to_owned())).is_empty());
        assert!(candidates(&|filter| filter.until = Some("2026-11-21".to_owned())).is_empty());
        let all = candidates(&|filter| filter.since = Some("2026-11-21".to_owned()));
        assert_eq!(all.len() as u64, SEGMENT_RECORDS);
    }
}
