//! A quick look at a line that is spelled exactly as writers spell it.
//!
//! It says only what [`Link::parse`] would say, or nothing: then that one
//! decides. So nothing is a record, or none, because of this file alone.

use crate::{Kind, line};

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
    if !line.iter().all(|byte| matches!(byte, b' '..=b'~') & (*byte != b'\\')) {
        return None;
    }
    let mut rest = Rest(line.strip_prefix(b"{\"v\":1,\"seq\":")?);
    let seq = rest.number()?;
    rest.skip(b",\"kind\":\"")?;
    let kind = Kind::from_word(str::from_utf8(rest.text()?).ok()?);
    rest.skip(b",\"t\":\"")?;
    let t: [u8; 27] = rest.text()?.try_into().ok()?;
    if !line::is_time(&t) {
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
            _ => return None,
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

/// What is left of a line.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn skip(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    /// Up to a quote, and past it.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == b'"')?;
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

    /// What is scanned is what is parsed, and most of what writers write is.
    #[test]
    fn agrees_with_the_parser_whatever_is_changed() {
        let draft = Draft {
            boot: Some("b".to_owned()),
            path: Some("src/main.rs".to_owned()),
            policy_sha256: Some("x".to_owned()),
            line: Some(12),
            before: Some(Hash::of(b"x")),
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
