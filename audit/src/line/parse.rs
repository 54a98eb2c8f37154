//! The parser of a line.
//!
//! It reads the members of the record itself, so that a verifier's time is spent on hashing. Texts
//! with escapes, and values that are neither a text nor a plain number, are passed to `serde_json`.
//! Every value is fully read, even of fields that this version does not know: a line is a record to
//! all readers or to none. A line with an invalid field is read to its end, since FORMAT.md defines
//! which of several errors is reported.

use std::{borrow::Cow, collections::BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{LineError, RecordView};
use crate::{Hash, Kind, VERSION, json::Json, time::Time};

/// Maximum levels of objects and arrays within the record.
const MAX_DEPTH: usize = 126;

impl<'a> RecordView<'a> {
    /// Parses a line without its newline.
    ///
    /// # Errors
    ///
    /// If it is not a record of this format, see [`LineError`].
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        let text = str::from_utf8(line).map_err(|_utf8| LineError::NotUtf8)?;
        if !(text.starts_with('{') && text.ends_with('}')) {
            return Err(LineError::NotObject);
        }
        let mut record = empty();
        let mut seen = ParsedMembers::default();
        Cursor { text, at: 1 }.members(&mut record, &mut seen)?;
        // The order is that of FORMAT.md, section 8.
        if let Some(error) = seen.twice {
            return Err(error);
        }
        if let Some(found) = seen.version.filter(|version| *version != VERSION) {
            return Err(LineError::Version { found });
        }
        if let Some(field) = seen.wrong {
            return Err(LineError::Type { field });
        }
        seen.require(Member::V)?;
        seen.require(Member::Nonce)?;
        seen.require(Member::Kind)?;
        if record.kind == Kind::Outcome {
            seen.require(Member::Of)?;
        }
        [Member::Seq, Member::T, Member::Prev].into_iter().try_for_each(|m| seen.require(m))?;
        Ok(record)
    }
}

macro_rules! members {
    ($($member:ident $name:literal,)*) => {
        /// The fields.
        #[derive(Clone, Copy)]
        enum Member {
            $($member,)*
        }

        /// The fields in their order.
        const MEMBERS: &[(&str, Member)] = &[$(($name, Member::$member),)*];
    };
}

members! {
    V "v", Seq "seq", Kind "kind", T "t", Boot "boot", Session "session", Agent "agent",
    User "user", Transport "transport", Op "op", Path "path", Resolved "resolved", To "to", Temp "temp",
    Decision "decision", WouldDeny "wouldDeny", Rule "rule", Policy "policy",
    PolicySha256 "policySha256", Line "line", Reason "reason", Bytes "bytes", Before "before",
    After "after", Backup "backup", Source "source", Findings "findings", Counts "counts",
    Facts "facts", Of "of", Result "result", Nonce "nonce", Prev "prev",
}

/// Returns a record without members.
fn empty<'a>() -> RecordView<'a> {
    RecordView {
        seq: 0,
        kind: Kind::Unknown,
        kind_name: Cow::Borrowed(""),
        t: Time::default(),
        boot: None,
        session: None,
        agent: None,
        user: None,
        transport: None,
        op: None,
        path: None,
        resolved: None,
        to: None,
        temp: None,
        decision: None,
        would_deny: None,
        rule: None,
        policy: None,
        policy_sha256: None,
        line: None,
        reason: None,
        bytes: None,
        before: None,
        after: None,
        backup: None,
        source: None,
        findings: None,
        counts: None,
        facts: None,
        of: None,
        result: None,
        nonce: Cow::Borrowed(""),
        prev: Hash::ZERO,
    }
}

/// The members that were read.
#[derive(Default)]
struct ParsedMembers<'a> {
    version: Option<u64>,
    /// The first duplicate key.
    twice: Option<LineError>,
    /// The first field with an invalid type or form.
    wrong: Option<&'static str>,
    /// A bit for each of [`MEMBERS`].
    known: u64,
    unknown: BTreeSet<Cow<'a, str>>,
}

impl ParsedMembers<'_> {
    fn require(&self, member: Member) -> Result<(), LineError> {
        match MEMBERS.get(member as usize) {
            Some((field, _)) if self.known & 1 << member as usize == 0 => {
                Err(LineError::Missing { field })
            }
            _ => Ok(()),
        }
    }
}

/// A position in a line.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Reads everything after the first brace.
    fn members(
        &mut self,
        record: &mut RecordView<'a>,
        seen: &mut ParsedMembers<'a>,
    ) -> Result<(), LineError> {
        // Writers keep the order of the fields, so the next key is nearly always a little further
        // in the table.
        let mut from = 0;
        if !self.skip(b'}') {
            loop {
                self.expect(b'"')?;
                let key = self.text()?;
                self.expect(b':')?;
                let find = |(name, _): &(&str, Member)| *name == key;
                let index = (MEMBERS.iter().skip(from).position(find).map(|index| index + from))
                    .or_else(|| MEMBERS.iter().position(find));
                if let Some(index) = index
                    && let Some((field, member)) = MEMBERS.get(index)
                    && seen.known & 1 << index == 0
                {
                    seen.known |= 1 << index;
                    from = index + 1;
                    let at = self.at;
                    if self.value(*member, record, seen)?.is_none() {
                        seen.wrong.get_or_insert(field);
                        self.at = at;
                        self.json()?;
                    }
                } else {
                    if index.is_some() || seen.unknown.contains(&key) {
                        let key = key.into_owned();
                        seen.twice.get_or_insert(LineError::DuplicateKey { key });
                    } else {
                        seen.unknown.insert(key);
                    }
                    self.json()?;
                }
                if !self.skip(b',') {
                    break;
                }
            }
            self.expect(b'}')?;
        }
        self.whitespace();
        if self.at == self.text.len() { Ok(()) } else { Err(self.wrong()) }
    }

    /// Reads the value of a field; `None` if its type or form is invalid.
    fn value(
        &mut self,
        member: Member,
        record: &mut RecordView<'a>,
        seen: &mut ParsedMembers<'a>,
    ) -> Result<Option<()>, LineError> {
        macro_rules! take {
            ($value:expr) => {
                match $value {
                    Some(value) => value,
                    None => return Ok(None),
                }
            };
        }
        match member {
            Member::V => seen.version = Some(take!(self.number()?)),
            Member::Seq => record.seq = take!(self.number()?),
            Member::Kind => {
                record.kind_name = take!(self.optional_text()?);
                record.kind = Kind::from_word(&record.kind_name);
            }
            Member::T => {
                let text = take!(self.optional_text()?);
                record.t = take!(Time::new(text.as_bytes()));
            }
            Member::Boot => record.boot = Some(take!(self.optional_text()?)),
            Member::Session => record.session = Some(take!(self.optional_text()?)),
            Member::Agent => record.agent = Some(take!(self.optional_text()?)),
            Member::User => record.user = Some(take!(self.optional_text()?)),
            Member::Transport => record.transport = Some(take!(self.optional_text()?)),
            Member::Op => record.op = Some(take!(self.optional_text()?)),
            Member::Path => record.path = Some(take!(self.optional_text()?)),
            Member::Resolved => record.resolved = Some(take!(self.optional_text()?)),
            Member::To => record.to = Some(take!(self.optional_text()?)),
            Member::Temp => record.temp = Some(take!(self.optional_text()?)),
            Member::Decision => record.decision = Some(take!(self.optional_text()?)),
            Member::WouldDeny => record.would_deny = Some(take!(self.read()?)),
            Member::Rule => record.rule = Some(take!(self.optional_text()?)),
            Member::Policy => record.policy = Some(take!(self.optional_text()?)),
            Member::PolicySha256 => record.policy_sha256 = Some(take!(self.optional_text()?)),
            Member::Line => record.line = Some(take!(self.number()?)),
            Member::Reason => record.reason = Some(take!(self.optional_text()?)),
            Member::Bytes => record.bytes = Some(take!(self.number()?)),
            Member::Before => record.before = Some(take!(self.hash()?)),
            Member::After => record.after = Some(take!(self.hash()?)),
            Member::Backup => record.backup = Some(take!(self.optional_text()?)),
            Member::Source => record.source = Some(take!(self.optional_text()?)),
            Member::Findings => match self.json()? {
                Value::Array(list) => record.findings = Some(list),
                _ => return Ok(None),
            },
            Member::Counts => record.counts = Some(take!(self.read()?)),
            Member::Facts => match self.json()? {
                Value::Object(facts) => record.facts = Some(facts.into_iter().collect()),
                _ => return Ok(None),
            },
            Member::Of => record.of = Some(take!(self.number()?)),
            Member::Result => record.result = Some(take!(self.optional_text()?)),
            Member::Nonce => {
                record.nonce = take!(self.optional_text()?);
                take!(is_nonce(&record.nonce).then_some(()));
            }
            Member::Prev => record.prev = take!(self.hash()?),
        }
        Ok(Some(()))
    }

    /// Reads a text after its opening quote mark.
    #[inline]
    fn text(&mut self) -> Result<Cow<'a, str>, LineError> {
        let (start, bytes) = (self.at, self.text.as_bytes());
        self.at += special(bytes.get(start..).unwrap_or_default());
        if bytes.get(self.at) == Some(&b'"') {
            let text = self.text.get(start..self.at).unwrap_or_default();
            self.at += 1;
            return Ok(Cow::Borrowed(text));
        }
        // The text has escapes, a character that must be escaped, or no end.
        self.at = start - 1;
        self.read()?.map(Cow::Owned).ok_or_else(|| self.wrong())
    }

    /// Reads a text; `None` for any other value.
    #[inline]
    fn optional_text(&mut self) -> Result<Option<Cow<'a, str>>, LineError> {
        if self.skip(b'"') { self.text().map(Some) } else { self.json().map(|_other| None) }
    }

    #[inline]
    fn hash(&mut self) -> Result<Option<Hash>, LineError> {
        Ok(self.optional_text()?.and_then(|text| text.parse().ok()))
    }

    #[inline]
    fn number(&mut self) -> Result<Option<u64>, LineError> {
        self.whitespace();
        let digits = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let length = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or_default();
        let number = self.text.get(self.at..self.at + length).unwrap_or_default();
        let plain = matches!(number.as_bytes(), [b'0'] | [b'1'..=b'9', ..]);
        match (number.parse(), digits.get(length)) {
            (Ok(number), Some(b',' | b'}')) if plain => {
                self.at += length;
                Ok(Some(number))
            }
            _ => self.read(),
        }
    }

    /// Reads a value of any type.
    fn json(&mut self) -> Result<Value, LineError> {
        match self.read()? {
            Some(Json { value, depth }) if depth <= MAX_DEPTH => Ok(value),
            _ => Err(self.wrong()),
        }
    }

    /// Reads a value of one type; `None` for any other.
    fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter();
        match values.next() {
            Some(Ok(value)) => {
                self.at += values.byte_offset();
                Ok(Some(value))
            }
            Some(Err(error)) if error.is_data() => Ok(None),
            Some(Err(error)) => Err(LineError::Json { column: self.at + error.column() }),
            None => Err(self.wrong()),
        }
    }

    #[inline]
    fn whitespace(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.text.as_bytes().get(self.at) {
            self.at += 1;
        }
    }

    /// Skips a byte and the white space before it, if it is there.
    #[inline]
    fn skip(&mut self, byte: u8) -> bool {
        let text = self.text;
        let is_next = |at: usize| text.as_bytes().get(at) == Some(&byte);
        if !is_next(self.at) {
            self.whitespace();
            if !is_next(self.at) {
                return false;
            }
        }
        self.at += 1;
        true
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), LineError> {
        if self.skip(byte) { Ok(()) } else { Err(self.wrong()) }
    }

    /// Returns the error that the text at this position is not JSON.
    fn wrong(&self) -> LineError {
        LineError::Json { column: self.at + 1 }
    }
}

/// True if a text is 32 lower-case hexadecimal digits.
fn is_nonce(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Finds the first quote mark, backslash or control character, eight bytes at a time.
#[inline]
fn special(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // The lowest set bit of each is that of the first such byte; higher ones may be wrong.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let is = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (number, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let found = (is(word, b'"') | is(word, b'\\') | below(word, b' ')) & ONES << 7;
        if found != 0 {
            return number * 8 + (found.trailing_zeros() / 8) as usize;
        }
    }
    let at = rest.iter().position(|b| matches!(b, b'"' | b'\\' | ..b' '));
    chunks.len() * 8 + at.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_byte_that_a_loop_finds() {
        for byte in 0..=255_u8 {
            for length in 0..40_usize {
                for at in [0, length / 2, length.saturating_sub(1)] {
                    let mut bytes = vec![b'a'; length];
                    if let Some(place) = bytes.get_mut(at) {
                        *place = byte;
                    }
                    let loops = bytes.iter().position(|b| matches!(b, b'"' | b'\\' | ..b' '));
                    assert_eq!(special(&bytes), loops.unwrap_or(length), "{byte} at {at}");
                }
            }
        }
    }
}
