//! Segments compressed with Zstandard (RFC 8878): the same lines in a file `seg-NNNNNN.jsonl.zst`,
//! which readers see under the segment's own name.

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::{FileEntry, MAX_SEGMENT, Segment};

/// The suffix of a compressed segment's name.
pub const PACKED: &str = ".zst";

/// Maximum size in bytes of a frame's window, which readers hold in memory. No level of `zstd`
/// exceeds it by default.
const MAX_WINDOW: u64 = 128 << 20;

/// A file of a log, opened to read.
pub struct LogFile(Storage);

enum Storage {
    Plain(File),
    // Large and rare.
    Packed(Box<CompressedFrame>),
}

/// A single frame. Its content must have the size in its header and the checksum at its end, if
/// there is one.
struct CompressedFrame {
    frame: StreamingDecoder<File, FrameDecoder>,
    size: u64,
    /// Number of bytes of the content that were read.
    at: u64,
}

fn damaged(what: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the compressed segment {what}"))
}

/// Translates an error of the decoder: an error of reading, or else that the frame is invalid.
fn undecodable(error: &(dyn Error + 'static)) -> io::Error {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = error.source();
    }
    damaged(format_args!("cannot be decoded: {error}"))
}

/// Refuses a segment that exceeds the maximum length, before it is read.
fn bounded(name: &str, length: u64) -> io::Result<()> {
    if length <= MAX_SEGMENT {
        return Ok(());
    }
    let words = format!("`{name}` has {length} bytes, and a segment at most {MAX_SEGMENT}");
    Err(io::Error::new(io::ErrorKind::InvalidData, words))
}

impl CompressedFrame {
    fn open(mut file: File) -> io::Result<Self> {
        let size = content_size(&mut file)?;
        file.rewind()?;
        let frame = StreamingDecoder::new(file).map_err(|error| undecodable(&error))?;
        let mut packed = Self { frame, size, at: 0 };
        if size == 0 {
            packed.end()?;
        }
        Ok(packed)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.frame.read(buffer).map_err(|error| undecodable(&error))?;
        if read == 0 {
            let ended = buffer.is_empty() || self.at == self.size;
            return if ended { Ok(0) } else { Err(damaged("ends before the size it says")) };
        }
        self.at += read as u64;
        // A reader that stops at the size would not read what follows.
        if self.at >= self.size {
            self.end()?;
        }
        Ok(read)
    }

    /// Checks the end after all of the content: nothing may follow.
    fn end(&mut self) -> io::Result<()> {
        let more = self.frame.read(&mut [0]).map_err(|error| undecodable(&error))?;
        if self.at > self.size || more > 0 {
            return Err(damaged("goes on after the size it says"));
        }
        let decoder = &self.frame.decoder;
        let checksum = decoder.get_checksum_from_data();
        if checksum.is_some() && checksum != decoder.get_calculated_checksum() {
            return Err(damaged("has another checksum than it says"));
        }
        if self.frame.get_mut().read(&mut [0])? > 0 {
            return Err(damaged("is followed by something else"));
        }
        Ok(())
    }
}

impl LogFile {
    /// Opens the file `name` by `open` or, if it is a segment that does not exist, its compressed
    /// form.
    ///
    /// # Errors
    ///
    /// If neither can be opened; [`io::ErrorKind::InvalidData`] if the compressed one is not a
    /// frame, which reading it may report, too, or if a segment is longer than [`MAX_SEGMENT`].
    pub fn open(name: &str, open: impl Fn(&str) -> io::Result<File>) -> io::Result<Self> {
        match open(name) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && Segment::from_name(name).is_some() =>
            {
                let Ok(file) = open(&format!("{name}{PACKED}")) else { return Err(error) };
                let packed = CompressedFrame::open(file)?;
                bounded(name, packed.size)?;
                Ok(Self(Storage::Packed(Box::new(packed))))
            }
            file => {
                let file = file?;
                if Segment::from_name(name).is_some() {
                    bounded(name, file.metadata()?.len())?;
                }
                Ok(Self(Storage::Plain(file)))
            }
        }
    }
}

impl Read for LogFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Storage::Plain(file) => file.read(buffer),
            Storage::Packed(packed) => packed.read(buffer),
        }
    }
}

/// A compressed file seeks forward only, which suffices for a full segment.
impl Seek for LogFile {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        let at = match &mut self.0 {
            Storage::Plain(file) => return file.seek(place),
            Storage::Packed(packed) => packed.at,
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

/// Returns the size of a compressed file's content, which its header must contain.
fn content_size(mut file: impl Read) -> io::Result<u64> {
    let mut header = [0; 18];
    let mut read = 0;
    while let Some(rest) = header.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            more => read += more,
        }
    }
    let damaged = || damaged("is no frame that says its size and has a small window");
    // RFC 8878, section 3.1.1.1: magic number, descriptor, window, dictionary, size.
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
    let size = if length == 2 { size + 256 } else { size };
    // RFC 8878, section 3.1.1.1.2.
    let window = match rest.first() {
        Some(byte) if single == 0 => {
            let base = 1 << (10 + (byte >> 3));
            base + base / 8 * u64::from(byte & 7)
        }
        _ => size,
    };
    if window > MAX_WINDOW { Err(damaged()) } else { Ok(size) }
}

/// Lists compressed segments under their own names. If both forms exist, a gateway died between two
/// steps, and the plain one counts.
///
/// # Errors
///
/// If a file cannot be opened or read.
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
                let file = match open(&entry.name) {
                    // It was pruned since the files were listed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    file => file?,
                };
                let length = match content_size(file) {
                    // It is a segment that cannot be read, which opening it reports.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => entry.length,
                    length => length?,
                };
                listed.push(FileEntry { name: name.to_owned(), length, ..entry });
            }
            _ => listed.push(entry),
        }
    }
    Ok(listed)
}
