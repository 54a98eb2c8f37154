//! The framing: cuts a byte stream into lines, in bounded memory.
//!
//! It does not interpret JSON. A line over the limit is discarded while it arrives; only its first
//! bytes are stored, which may contain the ID of a request.

use std::io::{BufRead as _, Read};

use crate::buffer;

/// Maximum number of bytes that are stored of a line over the limit.
const MAX_HEAD: usize = 64 * 1024;
/// Maximum number of bytes of a line besides content.
const MAX_ENVELOPE: usize = 1024 * 1024;
/// Maximum number of bytes of one read.
pub const CHUNK: usize = 64 * 1024;

/// The input between two line ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// A line without its `\n`.
    Line(Vec<u8>),
    /// A line over the limit.
    TooLong {
        /// Its first bytes.
        head: Vec<u8>,
    },
    /// A line that was given up before its end.
    GivenUp {
        /// Its first bytes.
        head: Vec<u8>,
    },
    /// The stream ended in the middle of a line.
    Incomplete {
        /// The first bytes of the line.
        head: Vec<u8>,
        /// The number of bytes that arrived.
        length: usize,
    },
}

impl Frame {
    /// Makes the frame of a line that is given up, with its first bytes.
    pub fn given_up(mut line: Vec<u8>) -> Self {
        line.truncate(MAX_HEAD);
        line.shrink_to_fit();
        Self::GivenUp { head: line }
    }
}

/// Discards bytes up to the end of a line; true if that arrived.
fn skip(piece: &mut &[u8]) -> bool {
    let rest = *piece;
    let skipped = piece.skip_until(b'\n').unwrap_or_default();
    skipped.checked_sub(1).and_then(|last| rest.get(last)) == Some(&b'\n')
}

/// Returns the maximum length in bytes of a line with `content` bytes of file content: JSON escapes
/// multiply the length of a text by at most six.
pub fn line_for(content: u64) -> usize {
    let content = usize::try_from(content).unwrap_or(usize::MAX);
    content.saturating_mul(6).saturating_add(MAX_ENVELOPE)
}

/// Reads frames from `input` until it ends or fails. No line longer than `limit` bytes is ever in
/// memory.
pub fn read(mut input: impl Read, limit: usize, mut deliver: impl FnMut(Frame)) {
    let mut framer = Framer::new(limit);
    let mut chunk = vec![0; CHUNK];
    loop {
        let mut piece = match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => chunk.get(..count).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // A failed read ends the stream without an incomplete line.
            Err(_) => return,
        };
        while let Some(frame) = framer.next_frame(&mut piece) {
            deliver(frame);
        }
    }
    framer.end().map(deliver);
}

/// A framer of the chunks of a stream.
#[derive(Debug)]
pub struct Framer {
    line: Vec<u8>,
    limit: usize,
    /// True if the line is over the limit: only its first bytes are stored.
    is_long: bool,
    /// True if the line was given up: its end makes no frame.
    is_given_up: bool,
}

impl Framer {
    /// Makes a framer for lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), limit, is_long: false, is_given_up: false }
    }

    /// Consumes bytes of `piece` up to the end of a line; `None` if all are consumed and no line
    /// ended.
    pub fn next_frame(&mut self, piece: &mut &[u8]) -> Option<Frame> {
        if self.is_given_up {
            self.is_given_up = !skip(piece);
        }
        if self.is_given_up {
            return None;
        }
        if !self.is_long {
            let room = self.limit.saturating_add(1).saturating_sub(self.line.len());
            if !buffer::grow(&mut self.line, room.min(piece.len()), self.limit.saturating_add(1)) {
                return Some(self.give_up());
            }
            // Reading a slice cannot fail.
            let _ = piece.by_ref().take(room as u64).read_until(b'\n', &mut self.line);
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
                return Some(Frame::Line(std::mem::take(&mut self.line)));
            }
            if self.line.len() <= self.limit {
                return None;
            }
            self.is_long = true;
            self.line.truncate(MAX_HEAD);
            self.line.shrink_to_fit();
        }
        if skip(piece) { Some(self.too_long()) } else { None }
    }

    /// Returns the length of the incomplete line.
    pub fn length(&self) -> usize {
        self.line.len()
    }

    /// True while input is discarded.
    pub fn is_skipping(&self) -> bool {
        self.is_long || self.is_given_up
    }

    /// Gives up the incomplete line.
    pub fn give_up(&mut self) -> Frame {
        self.is_given_up = true;
        self.is_long = false;
        Frame::given_up(std::mem::take(&mut self.line))
    }

    /// Returns the incomplete line at the end of the stream.
    pub fn end(mut self) -> Option<Frame> {
        match self.line.len() {
            _ if self.is_given_up => None,
            _ if self.is_long => Some(self.too_long()),
            0 => None,
            length => {
                self.line.truncate(MAX_HEAD);
                Some(Frame::Incomplete { head: self.line, length })
            }
        }
    }

    fn too_long(&mut self) -> Frame {
        self.is_long = false;
        Frame::TooLong { head: std::mem::take(&mut self.line) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(input: impl Read, limit: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        read(input, limit, |frame| frames.push(frame));
        frames
    }

    /// Returns its bytes in pieces of one size.
    struct ChunkedReader<'a>(&'a [u8], usize);

    impl Read for ChunkedReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let (piece, rest) = self.0.split_at(self.1.min(self.0.len()).min(buffer.len()));
            buffer[..piece.len()].copy_from_slice(piece);
            self.0 = rest;
            Ok(piece.len())
        }
    }

    #[test]
    fn lines_over_the_limit_keep_their_head_only() {
        assert_eq!(
            frames(&b"abc\nabcde\nab"[..], 3),
            [
                Frame::Line(b"abc".to_vec()),
                Frame::TooLong { head: b"abcd".to_vec() },
                Frame::Incomplete { head: b"ab".to_vec(), length: 2 }
            ]
        );
    }

    #[test]
    fn the_rest_of_a_line_that_was_given_up_is_discarded() {
        let mut framer = Framer::new(100);
        assert_eq!(framer.next_frame(&mut &b"abc"[..]), None);
        assert_eq!(framer.give_up(), Frame::GivenUp { head: b"abc".to_vec() });
        assert_eq!(framer.next_frame(&mut &b"def"[..]), None);
        let mut piece = &b"g\nnext\n"[..];
        assert_eq!(framer.next_frame(&mut piece), Some(Frame::Line(b"next".to_vec())));
        framer.give_up();
        assert_eq!(framer.end(), None);
    }

    #[test]
    fn a_gigabyte_without_a_newline_is_not_kept() {
        let endless = std::io::repeat(b'x').take(1 << 30).chain(&b"\nnext\n"[..]);
        let frames = frames(endless, 1 << 20);
        assert_eq!(frames.len(), 2);
        assert!(matches!(&frames[0], Frame::TooLong { head } if head.capacity() <= MAX_HEAD));
        assert_eq!(frames[1], Frame::Line(b"next".to_vec()));
    }

    proptest! {
        #[test]
        fn lines_come_out_as_they_went_in(
            lines in prop::collection::vec("[^\n]{0,40}", 0..8), piece in 1usize..30
        ) {
            let bytes: Vec<u8> = lines.iter().flat_map(|l| format!("{l}\n").into_bytes()).collect();
            let expected: Vec<_> =
                lines.iter().map(|l| Frame::Line(l.clone().into_bytes())).collect();
            prop_assert_eq!(frames(ChunkedReader(&bytes, piece), 1000), expected);
        }
    }
}
