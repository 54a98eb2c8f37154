//! A quick look at a line that is spelled exactly as writers spell it.
//!
//! It says only what [`Link::parse`] would say, or nothing: then that one
//! decides. So nothing is a record, or none, because of this file alone.

use crate::{Kind, line, time};

/// What the chain needs of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scanned<'a> {
    pub(super) seq: u64,
    pub(super) kind: Kind,
    pub(super) t: [u8; 27],
    pub(super) of: Option<u64>,
    pub(super) policy: Option<&'a [u8]>,
    /// 64 lower-case hexadecimal digits.
    pub(super) prev: &'a [u8],
}

/// Looks at a line without its newline.
pub(super) fn scan(line: &[u8]) -> Option<Scanned<'_>> {
    // Visible ASCII without escapes: then a quote ends a text.
    if !is_plain(line) {
        return None;
    }
    let mut rest = Rest(line.strip_prefix(b"{\"v\":1,\"seq\":")?);
    let seq = rest.number()?;
    rest.skip(b",\"kind\":\"")?;
    let kind = Kind::from_word(str::from_utf8(rest.text()?).ok()?);
    rest.skip(b",\"t\":\"")?;
    let t: [u8; 27] = rest.text()?.try_into().ok()?;
    if !time::is_time(&t) {
        return None;
    }
    rest.skip(b",\"")?;
    let (mut of, mut policy) = (None, None);
    let mut fields = line::FIELDS.iter().skip(4);
    // The order of the table, so that none comes twice.
    let mut key = rest.text()?;
    while key != b"nonce" {
        let (name, shape) = fields.find(|(name, _)| name.as_bytes() == key)?;
        rest.skip(b":")?;
        match shape {
            line::Shape::Text => {
                rest.skip(b"\"")?;
                let text = rest.text()?;
                if *name == "policySha256" {
                    policy = Some(text);
                }
            }
            line::Shape::Number => {
                let number = rest.number()?;
                if *name == "of" {
                    of = Some(number);
                }
            }
            line::Shape::Hash => {
                rest.skip(b"\"")?;
                rest.hex::<64>()?;
            }
            line::Shape::Numbers => rest.members(false)?,
            line::Shape::Object => rest.members(true)?,
            line::Shape::Truth | line::Shape::Array => return None,
        }
        rest.skip(b",\"")?;
        key = rest.text()?;
    }
    rest.skip(b":\"")?;
    rest.hex::<32>()?;
    rest.skip(b",\"prev\":\"")?;
    let prev = rest.hex::<64>()?;
    let whole = rest.0 == b"}" && (kind != Kind::Outcome || of.is_some());
    whole.then_some(Scanned { seq, kind, t, of, policy, prev })
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

    /// So many hexadecimal digits, and past the quote after them.
    fn hex<const N: usize>(&mut self) -> Option<&'a [u8]> {
        let (digits, rest) = self.0.split_first_chunk::<N>()?;
        // Without a branch for each digit.
        let wrong = digits.iter().fold(false, |wrong, byte| {
            wrong | !(byte.is_ascii_digit() | matches!(byte, b'a'..=b'f'))
        });
        self.0 = rest.strip_prefix(b"\"")?;
        (!wrong).then_some(digits)
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
    use crate::{Chain, Draft, Hash, Link, Prepared};

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

    /// What is scanned is what is parsed, and most of what writers write is.
    #[test]
    fn agrees_with_the_parser_whatever_is_changed() {
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
        assert_eq!(scan(&line).unwrap().policy, Some(b"x".as_slice()));
        let (mut scanned, mut parsed) = (0, 0);
        let mut compare = |line: &[u8]| {
            let link = Link::parse(line).ok();
            parsed += u32::from(link.is_some());
            let Some(scan) = scan(line) else { return };
            scanned += 1;
            let link = link.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(line)));
            assert_eq!((scan.seq, scan.kind, scan.of), (link.seq, link.kind, link.of));
            assert_eq!(scan.t, link.t.as_bytes());
            assert_eq!(scan.prev, link.prev.to_string().as_bytes());
        };
        compare(&line);
        for at in 0..line.len() {
            let mut cut = line.clone();
            cut.remove(at);
            compare(&cut);
            let mut twice = line.clone();
            twice.insert(at, line[at]);
            compare(&twice);
            for byte in (0..=255_u8).step_by(3).chain(*b"\"\\{}[]:,0-.eE \nf") {
                let mut other = line.clone();
                other[at] = byte;
                compare(&other);
            }
        }
        for at in 0..line.len() {
            for length in 1..60.min(line.len() - at) {
                let mut other = line.clone();
                other.drain(at..at + length);
                compare(&other);
            }
        }
        assert!(scanned > 1000 && parsed > scanned / 2, "{scanned} {parsed}");
    }
}
