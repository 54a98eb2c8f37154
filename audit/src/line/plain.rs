//! A quick reading of a line that is spelled exactly as writers spell it.
//!
//! It gives what the reading of any spelling gives, or nothing: then that one
//! decides. A test holds both together.

use std::borrow::Cow;

use super::{FIELDS, Link, Shape};
use crate::{Hash, Kind, time::Time};

/// The fields that stand between `t` and `nonce`, in the order of the table.
const BETWEEN: std::ops::Range<usize> = 4..FIELDS.len() - 2;

/// Reads a line without its newline.
pub(super) fn parse(line: &[u8]) -> Option<Link<'_>> {
    // Visible ASCII without escapes: then a quote ends a text.
    if !is_plain(line) {
        return None;
    }
    let mut rest = Rest(line.strip_prefix(b"{\"v\":1,\"seq\":")?);
    let seq = rest.number()?;
    rest.skip(b",\"kind\":\"")?;
    let kind = Kind::from_word(str::from_utf8(rest.text()?).ok()?);
    rest.skip(b",\"t\":\"")?;
    let t = Time::new(rest.text()?)?;
    rest.skip(b",\"")?;
    let (mut boot, mut policy, mut of) = (None, None, None);
    // Each is looked for behind the one before, so that none comes twice.
    let mut fields = FIELDS.get(BETWEEN)?.iter();
    let mut key = rest.text()?;
    while key != b"nonce" {
        let (name, shape) = fields.find(|(name, _)| name.as_bytes() == key)?;
        rest.skip(b":")?;
        match shape {
            Shape::Text => {
                rest.skip(b"\"")?;
                let text = rest.text()?;
                match *name {
                    "boot" => boot = Some(Cow::Borrowed(str::from_utf8(text).ok()?)),
                    "policySha256" => policy = Some(Cow::Borrowed(str::from_utf8(text).ok()?)),
                    _ => {}
                }
            }
            Shape::Number => {
                let number = rest.number()?;
                if *name == "of" {
                    of = Some(number);
                }
            }
            Shape::Hash => {
                rest.skip(b"\"")?;
                rest.hex::<64>()?;
            }
            Shape::Numbers => rest.members(false)?,
            Shape::Object => rest.members(true)?,
            Shape::Truth | Shape::Array => return None,
        }
        rest.skip(b",\"")?;
        key = rest.text()?;
    }
    rest.skip(b":\"")?;
    rest.hex::<32>()?;
    rest.skip(b",\"prev\":\"")?;
    let prev = Hash::from_digits(rest.digits()?)?;
    let ends = rest.0 == b"}" && (kind != Kind::Outcome || of.is_some());
    ends.then_some(Link { seq, kind, t, boot, policy, of, prev })
}

/// Whether every byte is visible ASCII and no backslash. Many at once, without
/// a branch for each.
fn is_plain(line: &[u8]) -> bool {
    let wrong =
        |byte: &u8| u8::from(byte.wrapping_sub(b' ') > b'~' - b' ') | u8::from(*byte == b'\\');
    let (chunks, rest) = line.as_chunks::<64>();
    let of = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | wrong(byte));
    chunks.iter().fold(0, |any, chunk| any | of(chunk)) | of(rest) == 0
}

/// Where the first quote is, eight bytes at a time.
fn quote(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (number, chunk) in chunks.iter().enumerate() {
        let zero = u64::from_le_bytes(*chunk) ^ (ONES * b'"' as u64);
        // The lowest set bit is that of the first byte that is zero.
        let found = zero.wrapping_sub(ONES) & !zero & (ONES << 7);
        if found != 0 {
            return Some(number * 8 + (found.trailing_zeros() / 8) as usize);
        }
    }
    let at = rest.iter().position(|byte| *byte == b'"')?;
    Some(chunks.len() * 8 + at)
}

/// What is left of a line.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn skip(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    /// Up to a quote, and past it.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = quote(self.0)?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(text)
    }

    /// So many characters, and past the quote after them.
    fn digits<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (digits, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest.strip_prefix(b"\"")?;
        Some(digits)
    }

    /// So many hexadecimal digits, and past the quote after them.
    fn hex<const N: usize>(&mut self) -> Option<()> {
        // Without a branch for each digit.
        let wrong = self.digits::<N>()?.iter().fold(false, |wrong, byte| {
            wrong | !(byte.is_ascii_digit() | matches!(byte, b'a'..=b'f'))
        });
        (!wrong).then_some(())
    }

    /// An object of numbers and, with `texts`, of texts.
    fn members(&mut self, texts: bool) -> Option<()> {
        self.skip(b"{\"")?;
        loop {
            self.text()?;
            self.skip(b":")?;
            match self.skip(b"\"") {
                Some(()) if !texts => return None,
                Some(()) => drop(self.text()?),
                None => drop(self.number()?),
            }
            if self.skip(b"}").is_some() {
                return Some(());
            }
            self.skip(b",\"")?;
        }
    }

    /// A number without zeros in front, short enough not to overflow.
    fn number(&mut self) -> Option<u64> {
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        let plain = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && digits.len() < 19;
        plain.then(|| digits.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chain, Draft, Prepared};

    #[test]
    fn finds_what_a_loop_finds() {
        for byte in 0..=255_u8 {
            for length in 0..150 {
                let mut line = vec![b'a'; length];
                assert!(is_plain(&line) && quote(&line).is_none());
                for at in [0, length / 2, length.saturating_sub(1)] {
                    let Some(place) = line.get_mut(at) else { continue };
                    *place = byte;
                    let plain = (b' '..=b'~').contains(&byte) && byte != b'\\';
                    assert_eq!(is_plain(&line), plain, "{byte} at {at} of {length}");
                    let first = line.iter().position(|byte| *byte == b'"');
                    assert_eq!(quote(&line), first, "{byte} at {at} of {length}");
                    line[at] = b'a';
                }
            }
        }
    }

    fn written() -> Vec<u8> {
        let draft = Draft {
            boot: Some("b".to_owned()),
            path: Some("src/main.rs".to_owned()),
            policy_sha256: Some("x".to_owned()),
            line: Some(12),
            before: Some(Hash::of(b"x")),
            counts: Some([("lines".to_owned(), 1), ("matches".to_owned(), 20)].into()),
            facts: Some([("search".to_owned(), 3.into()), ("t".to_owned(), "u".into())].into()),
            of: Some(3),
            result: Some("ok".to_owned()),
            ..Draft::default()
        };
        let mut line = Vec::new();
        let record = Prepared::new(Kind::Outcome, &draft, [7; 16]).unwrap();
        Chain::new().append(&record, "2026-11-21T08:00:00.000000Z", &mut line);
        line.pop();
        line
    }

    /// Both readings of a line; says whether the quick one and whether any took it.
    fn compare(line: &[u8]) -> (bool, bool) {
        let (quick, any) = (parse(line), Link::parse_any(line).ok());
        if quick.is_some() {
            assert_eq!(quick, any, "{}", String::from_utf8_lossy(line));
        }
        (quick.is_some(), any.is_some())
    }

    /// What is read quickly is what is read, and most of what writers write is.
    #[test]
    fn agrees_with_the_parser_whatever_is_changed() {
        let line = written();
        assert_eq!(compare(&line), (true, true));
        let (mut quick, mut any) = (0, 0);
        let mut count = |line: &[u8]| {
            let (is_quick, is_any) = compare(line);
            (quick, any) = (quick + u32::from(is_quick), any + u32::from(is_any));
        };
        for at in 0..line.len() {
            let mut cut = line.clone();
            cut.remove(at);
            count(&cut);
            let mut twice = line.clone();
            twice.insert(at, line[at]);
            count(&twice);
            for byte in (0..=255_u8).step_by(3).chain(*b"\"\\{}[]:,0-.eE \nf") {
                let mut other = line.clone();
                other[at] = byte;
                count(&other);
            }
        }
        for at in 0..line.len() {
            for length in 1..60.min(line.len() - at) {
                let mut other = line.clone();
                other.drain(at..at + length);
                count(&other);
            }
        }
        assert!(quick > 1000 && any > quick / 2, "{quick} {any}");
    }

    /// `prev` before `nonce` and again behind it was taken for a field like others.
    #[test]
    fn agrees_with_the_parser_whatever_member_is_put_anywhere() {
        let line = String::from_utf8(written()).unwrap();
        let twice = line.replace(",\"nonce\"", &format!(",\"prev\":\"{}\",\"nonce\"", Hash::ZERO));
        assert_eq!(compare(twice.as_bytes()), (false, false));
        let starts: Vec<_> = line.match_indices(",\"").map(|(at, _)| at).collect();
        let values = ["7", "\"x\"", "{\"a\":1}", "true", "[]"];
        let (nonce, hash) = (format!("\"{}\"", "0".repeat(32)), format!("\"{}\"", Hash::ZERO));
        for (name, _) in FIELDS.iter().copied().chain([("new", Shape::Text)]) {
            for value in values.into_iter().chain([nonce.as_str(), hash.as_str()]) {
                let member = format!(",\"{name}\":{value}");
                for at in &starts {
                    let mut other = line.clone();
                    other.insert_str(*at, &member);
                    compare(other.as_bytes());
                }
            }
        }
    }
}
