//! The files of a log: their names, their numbers of records, and the end of the last one.

use std::{
    fmt,
    io::{self, Read, Seek, SeekFrom},
};

/// Number of records in every segment but the last: 2^16, so that the Merkle root of a segment is a
/// subtree of the root of the log (RFC 6962).
pub const SEGMENT_RECORDS: u64 = 65_536;

/// Maximum length of a line without its newline, in bytes: 1 MiB.
pub const MAX_LINE: usize = 1 << 20;

/// Maximum length of a segment in bytes: the maximum number of longest lines, each with its
/// newline. A sparse file can be longer; none is read.
pub const MAX_SEGMENT: u64 = SEGMENT_RECORDS * (MAX_LINE as u64 + 1);

/// Maximum number of bytes in a segment that are not records, after which the rest of it is not
/// read: a file can have more of them than anyone could read.
pub const MAX_JUNK: u64 = 64 << 20;

/// The number of a segment, which determines its file name: `seg-000000.jsonl`, at least six
/// digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment(pub u64);

impl Segment {
    /// Returns the segment that contains record `seq`.
    pub fn of(seq: u64) -> Self {
        Self(seq / SEGMENT_RECORDS)
    }

    /// Returns the segment with this file name. `None` for any other name, including another form
    /// of the same number and a number past the last possible record.
    pub fn from_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("seg-")?.strip_suffix(".jsonl")?;
        let segment = Self(digits.parse().ok()?);
        let possible = segment.0.checked_mul(SEGMENT_RECORDS).is_some();
        (possible && segment.to_string() == name).then_some(segment)
    }

    /// Returns the first record's sequence number.
    pub fn first(self) -> u64 {
        self.0.saturating_mul(SEGMENT_RECORDS)
    }

    /// Returns the next segment.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seg-{:06}.jsonl", self.0)
    }
}

/// The end of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tail {
    /// The last complete lines, as many as fit the window, each with its newline; empty only if the
    /// segment contains no complete line.
    pub lines: Vec<u8>,
    /// Offset of the byte after the last newline.
    pub end: u64,
    /// Bytes after the last newline: not empty if a write was cut short.
    pub torn: Vec<u8>,
}

impl Tail {
    /// Reads the end of the first `length` bytes of `file`: the complete lines in the last `window`
    /// bytes, or in more of them if these have none. Reads nothing before offset `from`, where a
    /// line begins.
    ///
    /// # Errors
    ///
    /// If reading fails, or if more bytes than two lines of maximum length contain no complete line
    /// ([`io::ErrorKind::InvalidData`]).
    pub fn read<F: Read + Seek>(
        file: &mut F,
        from: u64,
        length: u64,
        window: u64,
    ) -> io::Result<Self> {
        let most = 2 * (MAX_LINE as u64 + 1);
        let mut window = window.clamp(1, most);
        loop {
            let start = length.saturating_sub(window).max(from);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.take(length.saturating_sub(start)).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != length.saturating_sub(start) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Lines begin at the start of the file and after newlines.
            let whole = if start == from {
                Some(0)
            } else {
                bytes.iter().position(|byte| *byte == b'\n').map(|newline| newline + 1)
            };
            let end =
                bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
            if let Some(whole) = whole
                && (start == from || whole < end)
            {
                let torn = bytes.split_off(end);
                let lines = bytes.split_off(whole.min(end));
                return Ok(Self { lines, end: start + end as u64, torn });
            }
            if window == most {
                return Err(io::ErrorKind::InvalidData.into());
            }
            window = (window * 16).min(most);
        }
    }

    /// Returns the last complete line, without its newline.
    pub fn last(&self) -> Option<&[u8]> {
        let lines = self.lines.strip_suffix(b"\n")?;
        lines.rsplit(|byte| *byte == b'\n').next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        assert_eq!(Segment(7).to_string(), "seg-000007.jsonl");
        assert_eq!(Segment::from_name("seg-000007.jsonl"), Some(Segment(7)));
        assert_eq!(Segment::from_name("seg-1234567.jsonl"), Some(Segment(1_234_567)));
        for other in ["seg-7.jsonl", "seg-0000007.jsonl", "seg-+00007.jsonl", "seg-00000a.jsonl"] {
            assert_eq!(Segment::from_name(other), None, "{other}");
        }
        assert_eq!(Segment::of(65_536), Segment(1));
        // This segment contains the last possible record.
        assert_eq!(Segment::from_name("seg-281474976710655.jsonl"), Some(Segment::of(u64::MAX)));
        assert_eq!(Segment::from_name("seg-281474976710656.jsonl"), None);
    }

    #[test]
    fn finds_the_last_line_whatever_the_window() {
        let text = b"first\nsecond\n\nlast one\ntorn";
        for length in 0..=text.len() {
            let bytes = &text[..length];
            let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
            let last =
                bytes[..end].strip_suffix(b"\n").map(|b| b.rsplit(|b| *b == b'\n').next().unwrap());
            for window in 1..40 {
                let tail =
                    Tail::read(&mut io::Cursor::new(text), 0, length as u64, window).unwrap();
                assert_eq!(tail.end, end as u64);
                assert_eq!(tail.torn, &bytes[end..]);
                assert_eq!(tail.last(), last, "length {length} window {window}");
            }
        }
    }

    #[test]
    fn gives_up_where_no_line_can_end() {
        let zeros = vec![0; 3 * MAX_LINE];
        let length = zeros.len() as u64;
        let error = Tail::read(&mut io::Cursor::new(zeros), 0, length, 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
