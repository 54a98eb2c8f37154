//! Cutting a byte stream into lines, in bounded memory.
//!
//! Knows nothing of JSON. A line over the limit is thrown away while it
//! streams by; only its head is kept, in which the request's id may be found.

use std::io::{self, BufRead, BufReader, Read};

/// How much of an over-long line is kept.
const HEAD: usize = 64 * 1024;
/// Room in a line for everything but content, in bytes.
const ENVELOPE: usize = 1024 * 1024;
/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// What came between two line ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A line without its `\n`.
    Line(Vec<u8>),
    /// A line that was longer than the limit: its first bytes.
    TooLong { head: Vec<u8> },
    /// The stream ended in the middle of a line.
    Torn { length: usize },
}

impl Frame {
    /// The memory that the frame holds, in bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Line(bytes) | Self::TooLong { head: bytes } => bytes.len(),
            Self::Torn { .. } => 0,
        }
    }
}

/// The longest line, in bytes, that `content` bytes of file content can take:
/// JSON escapes make a text six times longer at most.
pub fn line_for(content: u64) -> usize {
    let content = usize::try_from(content).unwrap_or(usize::MAX);
    content.saturating_mul(6).saturating_add(ENVELOPE)
}

/// Reads frames from `input` until it ends or fails, or until `deliver` gives
/// false. No line longer than `limit` bytes is ever held.
pub(super) fn read(input: impl Read, limit: usize, mut deliver: impl FnMut(Frame) -> bool) {
    let mut input = BufReader::with_capacity(CHUNK, input);
    // A reset pipe is an end like any other, so an error ends the loop too.
    while let Ok(Some(frame)) = next(&mut input, limit) {
        let torn = matches!(frame, Frame::Torn { .. });
        if !deliver(frame) || torn {
            return;
        }
    }
}

fn next(input: &mut impl BufRead, limit: usize) -> io::Result<Option<Frame>> {
    let mut line = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    input.by_ref().take(most).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(Frame::Line(line)));
    }
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() <= limit {
        return Ok(Some(Frame::Torn { length: line.len() }));
    }
    line.truncate(HEAD);
    line.shrink_to_fit();
    input.skip_until(b'\n')?;
    Ok(Some(Frame::TooLong { head: line }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(input: impl Read, limit: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        read(input, limit, |frame| {
            frames.push(frame);
            true
        });
        frames
    }

    /// Gives its bytes in pieces of one size.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
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
                Frame::Torn { length: 2 }
            ]
        );
    }

    #[test]
    fn a_gigabyte_without_a_newline_is_not_kept() {
        let endless = std::io::repeat(b'x').take(1 << 30).chain(&b"\nnext\n"[..]);
        let frames = frames(endless, 1 << 20);
        assert_eq!(frames.len(), 2);
        assert!(matches!(&frames[0], Frame::TooLong { head } if head.capacity() <= HEAD));
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
            prop_assert_eq!(frames(Dribble(&bytes, piece), 1000), expected);
        }
    }
}
