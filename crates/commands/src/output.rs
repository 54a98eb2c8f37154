//! The output of a command: its beginning and its end, in bounded memory.

use std::collections::VecDeque;

/// The maximum of bytes of the beginning that are stored besides the end.
const MAX_HEAD: usize = 16 * 1024;

/// The bytes that a command wrote.
#[derive(Debug)]
pub(crate) struct Output {
    /// Its first bytes.
    head: Vec<u8>,
    /// Its last bytes.
    tail: VecDeque<u8>,
    /// The number of all bytes.
    total: u64,
    /// The maximum of last bytes that are stored.
    limit: usize,
}

/// A part of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The text, with replacement characters for invalid bytes.
    pub text: String,
    /// The offset of its first byte in the complete output.
    pub from: u64,
    /// The offset after its last byte.
    pub to: u64,
}

impl Output {
    /// Returns an empty output that stores the last `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), total: 0, limit }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = MAX_HEAD.saturating_sub(self.head.len());
        self.head.extend(bytes.iter().take(room));
        self.total = self.total.saturating_add(count(bytes.len()));
        let last = bytes.get(bytes.len().saturating_sub(self.limit)..).unwrap_or_default();
        let over = (self.tail.len() + last.len()).saturating_sub(self.limit);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(last);
    }

    /// Returns the offset from which all bytes to the end are stored.
    fn begins(&self) -> u64 {
        self.total.saturating_sub(count(self.tail.len()))
    }

    /// Returns the last bytes, as a text of at most `limit` bytes that begins and ends with
    /// a complete character.
    pub(crate) fn last(&self, limit: usize) -> Part {
        let limit = limit.min(self.limit);
        let skipped = self.tail.len().saturating_sub(limit);
        let bytes: Vec<u8> = self.tail.iter().skip(skipped).copied().collect();
        let from = self.begins().saturating_add(count(skipped));
        let mut part = part(&bytes, from);
        // A replacement character may be longer than the bytes that it replaces.
        let over = part.text.len().saturating_sub(limit);
        let cut = part.text.ceil_char_boundary(over);
        part.text.drain(..cut);
        part.from = part.from.saturating_add(count(cut)).min(part.to);
        part
    }

    /// Returns at most `limit` bytes from the offset `from` on, or from the first stored
    /// byte after it.
    pub(crate) fn after(&self, from: u64, limit: usize) -> Part {
        if from < count(self.head.len()) && from < self.begins() {
            let start = usize::try_from(from).unwrap_or(usize::MAX);
            let rest = self.head.get(start..).unwrap_or_default();
            let part = part(rest.get(..limit).unwrap_or(rest), from);
            // Otherwise its last character continues in bytes that are not stored.
            if part.to > from {
                return part;
            }
        }
        let begins = self.begins();
        let from = from.clamp(begins, self.total);
        let skipped = usize::try_from(from - begins).unwrap_or(usize::MAX);
        let bytes: Vec<u8> = self.tail.iter().skip(skipped).take(limit).copied().collect();
        part(&bytes, from)
    }
}

/// Returns the complete characters of `bytes`, whose first byte has the offset `from`.
fn part(bytes: &[u8], from: u64) -> Part {
    // The rest of a character that began before is left out.
    let start = if from == 0 { 0 } else { continued(bytes) };
    let end = bytes.len() - unfinished(bytes);
    let whole = bytes.get(start..end.max(start)).unwrap_or_default();
    let text = String::from_utf8_lossy(whole).into_owned();
    let from = from.saturating_add(count(start));
    Part { text, from, to: from.saturating_add(count(whole.len())) }
}

/// Returns the number of bytes at the beginning that continue a character.
fn continued(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count()
}

/// Returns the number of bytes at the end that begin an incomplete character.
fn unfinished(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let Some(byte) = bytes.len().checked_sub(back).and_then(|at| bytes.get(at)) else { break };
        let length = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if length > back { back } else { 0 };
    }
    0
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(limit: usize, pieces: &[&str]) -> Output {
        let mut output = Output::new(limit);
        pieces.iter().for_each(|piece| output.push(piece.as_bytes()));
        output
    }

    #[test]
    fn the_last_bytes_stay_and_begin_with_a_whole_character() {
        let output = output(6, &["ab", "cżół", "ć"]);
        assert_eq!(output.total(), 11);
        let part = output.last(6);
        // The last six bytes.
        assert_eq!((part.text.as_str(), part.from, part.to), ("ółć", 5, 11));
        assert_eq!(output.last(5).text, "łć");
        assert_eq!(output.last(0).text, "");
        assert_eq!(self::output(0, &["x"]).last(0).text, "");
    }

    #[test]
    fn a_character_that_is_not_finished_waits() {
        let mut output = output(10, &["a"]);
        output.push(&[0xc5]);
        assert_eq!(output.last(10).text, "a");
        output.push(&[0xbc]);
        assert_eq!(output.last(10).text, "aż");
        output.push(&[0xff, b'b']);
        assert_eq!(output.last(10).text, "aż\u{fffd}b");
        assert!(output.last(3).text.len() <= 3);
    }

    #[test]
    fn parts_follow_each_other_without_a_gap_where_all_is_stored() {
        let output = output(100, &["one\ntwo żółć\n"]);
        let (mut from, mut text) = (0, String::new());
        while from < output.total() {
            let part = output.after(from, 4);
            assert_eq!(part.from, from);
            (from, text) = (part.to, text + &part.text);
        }
        assert_eq!(text, "one\ntwo żółć\n");
        assert_eq!(output.after(99, 4).text, "");
    }

    #[test]
    fn the_beginning_stays_where_the_middle_is_gone() {
        let long = "x".repeat(MAX_HEAD + 100);
        let output = output(10, &["begin", &long, "end"]);
        assert!(output.after(0, 7).text == "beginxx");
        let part = output.after(count(MAX_HEAD), 100);
        assert_eq!((part.to, part.text.as_str()), (output.total(), "xxxxxxxend"));
    }
}
