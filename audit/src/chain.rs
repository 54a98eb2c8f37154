//! The chain: it makes the next line and its receipt. Pure: time and nonces come from the caller.

use std::io::Write as _;

use crate::{Draft, Hash, Kind, MAX_LINE, Receipt, RecordView, VERSION};

/// The end of a log: the index and the `prev` of the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    next: u64,
    prev: Hash,
}

/// A record without the fields that depend on its position, already in its JSON form, so that the
/// work under the log's lock is a copy and a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    kind: Kind,
    /// The members from `boot` to `nonce`, each followed by a comma.
    body: Vec<u8>,
}

/// Reasons why a record cannot be in a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// Its line could exceed [`MAX_LINE`].
    #[error("a record of {0} bytes is too long for the audit log")]
    TooLong(usize),
    /// It has no JSON form.
    #[error("a record cannot be written as JSON")]
    Json,
    /// The kind is the placeholder for kinds that a reader does not know.
    #[error("a record of an unknown kind cannot be written")]
    UnknownKind,
    /// An outcome names no intent.
    #[error("an outcome without `of` cannot be written")]
    NoIntent,
}

/// Upper bound of the bytes of the members `v`, `seq`, `kind`, `t` and `prev`.
const MAX_FRAME: usize = 256;

impl Prepared {
    /// Prepares a record of `kind`, `draft` and 128 random bits.
    ///
    /// # Errors
    ///
    /// If the record cannot be in a log, see [`ChainError`].
    pub fn new(kind: Kind, draft: &Draft, nonce: [u8; 16]) -> Result<Self, ChainError> {
        if kind == Kind::Unknown {
            return Err(ChainError::UnknownKind);
        }
        if kind == Kind::Outcome && draft.of.is_none() {
            return Err(ChainError::NoIntent);
        }
        let mut body = Vec::with_capacity(1024);
        serde_json::to_writer(&mut body, draft).map_err(|_json| ChainError::Json)?;
        // The object `{…}` becomes `…,`, and `{}` becomes empty.
        if body.pop() != Some(b'}') || body.is_empty() {
            return Err(ChainError::Json);
        }
        body.remove(0);
        if !body.is_empty() {
            body.push(b',');
        }
        let nonce = u128::from_be_bytes(nonce);
        write!(body, "\"nonce\":\"{nonce:032x}\",").map_err(|_io| ChainError::Json)?;
        if body.len() + MAX_FRAME > MAX_LINE {
            return Err(ChainError::TooLong(body.len() + MAX_FRAME));
        }
        Ok(Self { kind, body })
    }

    /// Returns the maximum length of the record's line in bytes.
    pub fn max_len(&self) -> usize {
        self.body.len() + MAX_FRAME
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::new()
    }
}

impl Chain {
    /// Returns the end of an empty log.
    pub fn new() -> Self {
        Self { next: 0, prev: Hash::ZERO }
    }

    /// Returns the end of a log whose last line, without its newline, is `line`.
    ///
    /// # Errors
    ///
    /// If `line` is not a record.
    pub fn after(line: &[u8]) -> Result<Self, crate::LineError> {
        let record = RecordView::parse(line)?;
        let next = record.seq.checked_add(1).ok_or(crate::LineError::Type { field: "seq" })?;
        Ok(Self { next, prev: Hash::leaf(line) })
    }

    /// Returns the sequence number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the leaf hash of the last record; [`Hash::ZERO`] if there is none.
    pub fn prev(&self) -> Hash {
        self.prev
    }

    /// Appends the next line, with its newline, to `out` and advances the chain. `time` is RFC 3339
    /// in UTC with microseconds.
    pub fn append(&mut self, record: &Prepared, time: &str, out: &mut Vec<u8>) -> Receipt {
        let start = out.len();
        let (seq, kind, prev) = (self.next, record.kind.as_str(), self.prev);
        let first = format!("{{\"v\":{VERSION},\"seq\":{seq}");
        let place = [
            first.as_bytes(),
            b",\"kind\":\"",
            kind.as_bytes(),
            b"\",\"t\":\"",
            time.as_bytes(),
            b"\",",
        ];
        place.iter().for_each(|piece| out.extend_from_slice(piece));
        out.extend_from_slice(&record.body);
        out.extend_from_slice(b"\"prev\":\"");
        out.extend_from_slice(&prev.digits());
        out.extend_from_slice(b"\"}");
        let leaf = Hash::leaf(out.get(start..).unwrap_or_default());
        out.push(b'\n');
        *self = Self { next: seq.saturating_add(1), prev: leaf };
        Receipt { seq, leaf, durable: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuditRecord;

    const TIME: &str = "2026-11-21T08:00:00.000000Z";

    fn draft() -> Draft {
        Draft {
            session: Some("s\"1\n".to_owned()),
            path: Some("a/żółć\u{1b}".to_owned()),
            would_deny: Some(true),
            bytes: Some(7),
            before: Some(Hash::of(b"x")),
            counts: Some([("entries".to_owned(), 3)].into()),
            of: Some(0),
            ..Draft::default()
        }
    }

    #[test]
    fn a_line_is_the_record_in_the_order_of_the_fields() {
        let mut chain = Chain::new();
        let mut out = Vec::new();
        let first = Prepared::new(Kind::Intent, &Draft::default(), [1; 16]).unwrap();
        let second = Prepared::new(Kind::Outcome, &draft(), [2; 16]).unwrap();
        let first = chain.append(&first, TIME, &mut out);
        let second = chain.append(&second, TIME, &mut out);
        let lines: Vec<&[u8]> = out.strip_suffix(b"\n").unwrap().split(|b| *b == b'\n').collect();
        assert_eq!(lines.len(), 2);
        for (line, receipt) in lines.iter().zip([&first, &second]) {
            let record = AuditRecord::parse(line).unwrap();
            assert_eq!(serde_json::to_vec(&record).unwrap(), *line);
            assert_eq!(Hash::leaf(line), receipt.leaf);
            assert_eq!(record.seq, receipt.seq);
        }
        let record = AuditRecord::parse(lines[1]).unwrap();
        assert_eq!((record.prev, record.draft), (first.leaf, draft()));
        assert_eq!(Chain::after(lines[1]).unwrap(), chain);
    }

    #[test]
    fn what_cannot_be_read_back_is_not_written() {
        let long = Draft { reason: Some("x".repeat(MAX_LINE)), ..Draft::default() };
        assert!(matches!(
            Prepared::new(Kind::Decision, &long, [0; 16]),
            Err(ChainError::TooLong(_))
        ));
        assert_eq!(
            Prepared::new(Kind::Unknown, &Draft::default(), [0; 16]),
            Err(ChainError::UnknownKind)
        );
    }
}
