//! Segments that were compressed with Zstandard (RFC 8878): the same lines in a
//! file `seg-NNNNNN.jsonl.zst`, which readers see under the segment's own name.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

use ruzstd::decoding::StreamingDecoder;

use crate::{FileEntry, SEGMENT_RECORDS, Segment};

/// How the name of a compressed segment goes on.
pub const PACKED: &str = ".zst";

/// A file of a log, opened to read.
pub struct LogFile(Kind);

enum Kind {
    Plain(File),
    Packed {
        // Large, and seldom there.
        lines: Box<StreamingDecoder<File, ruzstd::decoding::FrameDecoder>>,
        at: u64,
    },
}

impl LogFile {
    /// Opens the file `name` by `open`, or, where a segment is not there, its
    /// compressed form.
    ///
    /// # Errors
    ///
    /// When neither can be opened.
    pub fn open(name: &str, open: impl Fn(&str) -> io::Result<File>) -> io::Result<Self> {
        match open(name) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && Segment::from_name(name).is_some() =>
            {
                let Ok(file) = open(&format!("{name}{PACKED}")) else { return Err(error) };
                Self::unpack(file).map(Self)
            }
            file => Ok(Self(Kind::Plain(file?))),
        }
    }

    fn unpack(file: File) -> io::Result<Kind> {
        let lines = StreamingDecoder::new(file).map_err(io::Error::other)?;
        Ok(Kind::Packed { lines: Box::new(lines), at: 0 })
    }
}

impl Read for LogFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Plain(file) => file.read(buffer),
            Kind::Packed { lines, at } => {
                let read = lines.read(buffer)?;
                *at += read as u64;
                Ok(read)
            }
        }
    }
}

/// A compressed file goes forward only, which is all that a full segment needs.
impl Seek for LogFile {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        let at = match &mut self.0 {
            Kind::Plain(file) => return file.seek(place),
            Kind::Packed { at, .. } => *at,
        };
        let more = match place {
            SeekFrom::Start(to) => to.checked_sub(at),
            SeekFrom::Current(by) => u64::try_from(by).ok(),
            SeekFrom::End(_) => None,
        };
        let more = more.ok_or(io::ErrorKind::Unsupported)?;
        let skipped = io::copy(&mut self.by_ref().take(more), &mut io::sink())?;
        if skipped == more { Ok(at + more) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Bytes of the content of a compressed file, which its header must say.
fn content_size(mut file: impl Read) -> io::Result<u64> {
    let mut header = [0; 18];
    let mut read = 0;
    while let Some(rest) = header.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            more => read += more,
        }
    }
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "no compressed segment");
    // RFC 8878, section 3.1.1.1: magic number, descriptor, window, dictionary,
    // size.
    let rest = header.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd]).ok_or_else(damaged)?;
    let (descriptor, rest) = rest.split_first().ok_or_else(damaged)?;
    let single = descriptor >> 5 & 1;
    let skip = usize::from(1 - single)
        + [0, 1, 2, 4].get(usize::from(descriptor & 3)).copied().unwrap_or(0);
    let length = match descriptor >> 6 {
        0 => usize::from(single),
        flag => 1 << flag,
    };
    let bytes = rest.get(skip..skip + length).filter(|size| !size.is_empty());
    let bytes = bytes.ok_or_else(damaged)?;
    let size = bytes.iter().rev().fold(0_u64, |size, byte| size << 8 | u64::from(*byte));
    Ok(if length == 2 { size + 256 } else { size })
}

/// The entries with compressed segments under their own names. A file that is
/// no compressed segment stays what it is; where both forms are there, a gate
/// died between two steps, and the plain one counts.
///
/// # Errors
///
/// When a file cannot be opened.
pub fn unpacked(
    entries: Vec<FileEntry>,
    open: impl Fn(&str) -> io::Result<File>,
) -> io::Result<Vec<FileEntry>> {
    let plain: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let mut listed = Vec::with_capacity(entries.len());
    for entry in entries {
        let name = entry.name.strip_suffix(PACKED).filter(|n| Segment::from_name(n).is_some());
        match name {
            Some(name) if entry.regular => {
                if plain.iter().any(|plain| plain == name) {
                    continue;
                }
                match content_size(open(&entry.name)?) {
                    Ok(length) if length <= SEGMENT_RECORDS << 20 => {
                        listed.push(FileEntry { name: name.to_owned(), length, ..entry });
                    }
                    _ => listed.push(entry),
                }
            }
            _ => listed.push(entry),
        }
    }
    Ok(listed)
}
