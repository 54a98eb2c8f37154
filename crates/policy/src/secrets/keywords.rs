//! A search for keywords in a content, in any ASCII case, including overlapping ones.
//!
//! Nearly all content contains almost no keyword, so the time to exclude them dominates. For each
//! keyword the search uses its three bytes that are rarest in source code. Two of them are adjacent
//! at every second offset, so every second pair of bytes is looked up, without a branch for each.
//! Where a pair is one of theirs, all three bytes are looked up, and only where those match,
//! keywords are compared. Sets that are too large or too similar for that are searched with an
//! automaton.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Bits of the hash of three bytes.
const BITS: u32 = 16;
/// Words of the bit map.
const WORDS: usize = 1 << (BITS - 6);
/// Number of pairs of bytes.
const PAIRS: usize = 1 << 16;
/// Number of bytes that are examined together.
const BLOCK: usize = 64;
/// Maximum number of keywords that are compared for the same three bytes.
const MAX_ALIKE: usize = 16;
/// Maximum number of keywords for the bit map.
const MAX_KEYWORDS: usize = 2048;

/// The keywords of all rules.
#[derive(Debug)]
pub(super) enum Keywords {
    Bitmap(Box<Bitmap>),
    Automaton(AhoCorasick),
}

/// Three bytes of each keyword.
#[derive(Debug)]
pub(super) struct Bitmap {
    /// A flag for each pair of bytes, in any case, that is part of such three.
    pairs: Box<[u8; PAIRS]>,
    /// A bit for each hash of three bytes.
    bits: Box<[u64; WORDS]>,
    /// The keywords by hash, and the offset of the three bytes in each.
    buckets: HashMap<u32, Vec<(usize, usize)>>,
    words: Vec<Box<[u8]>>,
}

impl Keywords {
    /// Prepares a search for `words`, which are in lower case and not empty.
    ///
    /// # Errors
    /// If there are too many for any automaton.
    pub(super) fn new(words: &[&str]) -> Result<Self, String> {
        if let Some(bitmap) = Bitmap::new(words) {
            return Ok(Self::Bitmap(Box::new(bitmap)));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(words)
            .map_err(|error| error.to_string())?;
        Ok(Self::Automaton(automaton))
    }

    /// Calls `found` for each occurrence of a keyword, nearly in order.
    pub(super) fn find(&self, text: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        match self {
            Self::Bitmap(bitmap) => bitmap.find(text, found),
            Self::Automaton(automaton) => automaton
                .find_overlapping_iter(text)
                .for_each(|hit| found(hit.pattern().as_usize(), hit.range())),
        }
    }
}

impl Bitmap {
    /// Makes a bit map; `None` if the keywords are not suitable.
    fn new(words: &[&str]) -> Option<Self> {
        if words.len() > MAX_KEYWORDS || words.iter().any(|word| word.len() < 2) {
            return None;
        }
        let mut bitmap = Self {
            pairs: Box::new([0; PAIRS]),
            bits: Box::new([0; WORDS]),
            buckets: HashMap::new(),
            words: words.iter().map(|word| word.as_bytes().into()).collect(),
        };
        for (number, word) in words.iter().enumerate() {
            let word = word.as_bytes();
            let locations = word.windows(3).enumerate();
            match locations
                .min_by_key(|(_, three)| three.iter().map(|b| commonness(*b)).sum::<u32>())
            {
                Some((offset, three)) => bitmap.add(three, number, offset)?,
                // The keyword has two bytes, so the third may be any.
                None => {
                    for next in (0..=u8::MAX).filter(|byte| !byte.is_ascii_uppercase()) {
                        bitmap.add(&[word, &[next]].concat(), number, 0)?;
                    }
                }
            }
        }
        Some(bitmap)
    }

    fn add(&mut self, three: &[u8], word: usize, offset: usize) -> Option<()> {
        let [a, b, c] = *three else { return None };
        for (first, second) in [(a, b), (b, c)] {
            for first in [first, first.to_ascii_uppercase()] {
                for second in [second, second.to_ascii_uppercase()] {
                    let pair = u16::from_le_bytes([first, second]);
                    *self.pairs.get_mut(usize::from(pair))? = 1;
                }
            }
        }
        let hash = hash([a, b, c]);
        *self.bits.get_mut(usize::try_from(hash >> 6).ok()?)? |= 1 << (hash & 63);
        let bucket = self.buckets.entry(hash).or_default();
        bucket.push((word, offset));
        (bucket.len() <= MAX_ALIKE).then_some(())
    }

    fn find(&self, text: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        let (blocks, rest) = text.as_chunks::<BLOCK>();
        let mut last = [0; BLOCK];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        for (number, block) in blocks.iter().chain(std::iter::once(&last)).enumerate() {
            let mut pairs = self.pairs_in(block);
            while pairs != 0 {
                let at = number * BLOCK + 2 * pairs.trailing_zeros() as usize;
                pairs &= pairs - 1;
                // The pair is the first two of three, or the last two.
                if let Some(before) = at.checked_sub(1) {
                    self.compare(text, before, &mut found);
                }
                self.compare(text, at, &mut found);
            }
        }
    }

    /// Returns a bit for each pair of a block that is two of three bytes of a keyword.
    fn pairs_in(&self, block: &[u8; BLOCK]) -> u32 {
        let (pairs, _) = block.as_chunks::<2>();
        pairs.iter().rev().fold(0, |found, pair| {
            let pair = usize::from(u16::from_le_bytes(*pair));
            // The table has an element for every pair.
            found << 1 | u32::from(self.pairs.get(pair).copied().unwrap_or(1))
        })
    }

    /// Compares the keywords whose three bytes are at `at`.
    fn compare(&self, text: &[u8], at: usize, found: &mut impl FnMut(usize, Range<usize>)) {
        // The last two bytes may be the first of three, too.
        let byte = |at| text.get(at).copied().unwrap_or_default();
        let three = match text.get(at..).and_then(<[u8]>::first_chunk::<3>) {
            Some(three) => *three,
            None => [byte(at), byte(at + 1), 0],
        };
        let hash = hash(three.map(|byte| byte.to_ascii_lowercase()));
        let bits = self.bits.get((hash >> 6) as usize).copied().unwrap_or_default();
        if bits >> (hash & 63) & 1 == 0 {
            return;
        }
        for (number, offset) in self.buckets.get(&hash).into_iter().flatten() {
            let Some(word) = self.words.get(*number) else { continue };
            let Some(start) = at.checked_sub(*offset) else { continue };
            let range = start..start + word.len();
            if text.get(range.clone()).is_some_and(|there| there.eq_ignore_ascii_case(word)) {
                found(*number, range);
            }
        }
    }
}

fn hash([a, b, c]: [u8; 3]) -> u32 {
    // The multiplier of Knuth's multiplicative hashing: 2^32 divided by the golden ratio.
    u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9e37_79b1) >> (32 - BITS)
}

/// Returns the approximate frequency of a byte in source code.
fn commonness(byte: u8) -> u32 {
    match byte {
        b' ' | b'e' | b't' | b'r' | b's' | b'n' | b'i' | b'o' | b'a' => 9,
        b'l' | b'c' | b'd' | b'u' | b'p' | b'm' => 7,
        b'f' | b'_' | b'h' | b'g' | b'.' | b':' | b'(' | b')' | b'"' | b',' | b';' | b'=' => 5,
        b'b' | b'y' | b'v' | b'w' | b'k' | b'/' | b'-' | b'0' | b'1' | b'2' => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(keywords: &Keywords, text: &[u8]) -> Vec<(usize, usize, usize)> {
        let mut all = Vec::new();
        keywords.find(text, |word, range| all.push((range.start, range.end, word)));
        all.sort_unstable();
        all
    }

    #[test]
    fn sets_that_are_too_much_alike_go_to_the_automaton() {
        let words: Vec<String> = (0..40).map(|n| format!("q{n:02}x")).collect();
        let many: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(matches!(Keywords::new(&many).unwrap(), Keywords::Bitmap(_)));
        let alike: Vec<String> = (0..40).map(|n| format!("qzx{n:02}")).collect();
        let alike: Vec<&str> = alike.iter().map(String::as_str).collect();
        assert!(matches!(Keywords::new(&alike).unwrap(), Keywords::Automaton(_)));
        assert!(matches!(Keywords::new(&["a", "abc"]).unwrap(), Keywords::Automaton(_)));
        assert_eq!(found(&Keywords::new(&alike).unwrap(), b"-QZX07-"), [(1, 6, 7)]);
    }

    proptest! {
        /// Both methods find every keyword, including at the ends, within another one, and in bytes
        /// that are not text.
        #[test]
        fn the_bit_map_finds_what_the_automaton_finds(
            text in prop::collection::vec(
                prop::sample::select(b"abABqQ~\0\xff_".to_vec()), 0..60,
            ),
        ) {
            let words = ["ab", "aba", "q~", "bab_", "a\0", "abab", "_q", "baq"];
            let bitmap = Keywords::Bitmap(Box::new(Bitmap::new(&words).unwrap()));
            let automaton = Keywords::Automaton(
                AhoCorasick::builder().ascii_case_insensitive(true).build(words).unwrap(),
            );
            prop_assert_eq!(found(&bitmap, &text), found(&automaton, &text));
        }
    }
}
