//! The part of a verification that needs no other lines: hashing and parsing,
//! many lines at once, by as many threads as there are.

use std::collections::BTreeMap;

use serde_json::Value;

use super::scan::scan;
use crate::{AuditRecord, Hash, KEY_FACT, Kind, LineError, Link, MAX_LINE, sha};

/// Whole lines, one after another. One byte of no meaning is in front of them.
pub(super) struct Lines(pub(super) Vec<u8>);

/// One line.
pub(super) struct Digest {
    pub(super) seq: u64,
    pub(super) kind: Kind,
    pub(super) t: [u8; 27],
    pub(super) of: Option<u64>,
    pub(super) leaf: Hash,
    /// Whether `prev` is the leaf of the line before, in the same lines.
    pub(super) linked: bool,
    pub(super) state: State,
    /// Bytes with the newline.
    pub(super) length: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Record,
    /// No record; why is among the errors.
    Bad,
    Long,
}

/// What lines turned out to be.
#[derive(Default)]
pub(super) struct Digests {
    pub(super) lines: Vec<Digest>,
    /// By the number of the line in these.
    pub(super) errors: BTreeMap<usize, LineError>,
    pub(super) notices: BTreeMap<usize, Notice>,
    /// `prev` of the first line.
    pub(super) first_prev: Option<Hash>,
    /// Policies that were in force, with the first record of each in these
    /// lines.
    pub(super) policies: BTreeMap<Hash, u64>,
    /// The first that is no hash: its beginning and the record.
    pub(super) odd_policy: Option<(String, u64)>,
    /// The lines' memory.
    pub(super) buffer: Vec<u8>,
}

impl Digests {
    /// Takes the policy that a record names. Texts that are no hash can be as
    /// long and as many as lines: one is enough to know, and its beginning.
    fn policy(&mut self, text: &str, seq: u64) {
        match text.parse() {
            Ok(hash) => {
                self.policies.entry(hash).or_insert(seq);
            }
            Err(_no_hash) if self.odd_policy.is_none() => {
                self.odd_policy = Some((text.chars().take(64).collect(), seq));
            }
            Err(_no_hash) => {}
        }
    }
}

/// A record that says something of the log itself.
pub(super) enum Notice {
    /// Checkpoints are signed with this key.
    Key(String),
    /// Segments before number `segments` were removed, or, in a `recovered`
    /// record, are missing; the last record of them had the leaf hash `head`.
    Pruned { segments: u64, head: Option<Hash> },
}

/// Looks at every line.
pub(super) fn digest(Lines(mut bytes): Lines) -> Digests {
    let mut digests =
        Digests { lines: Vec::with_capacity(bytes.len() / 400), ..Digests::default() };
    let mut policy: Vec<u8> = Vec::new();
    let mut before = [0; 64];
    let mut start = 1;
    while let Some(rest) = bytes.get(start..)
        && let Some(length) = memchr::memchr(b'\n', rest)
    {
        let number = digests.lines.len();
        // The byte in front, a newline that is done with, becomes the zero of
        // the leaf hash.
        if let Some(front) = bytes.get_mut(start - 1) {
            *front = 0;
        }
        let leaf = sha::digest(bytes.get(start - 1..start + length).unwrap_or_default());
        let line = bytes.get(start..start + length).unwrap_or_default();
        let mut digest = Digest {
            seq: 0,
            kind: Kind::Unknown,
            t: [b'0'; 27],
            of: None,
            leaf,
            linked: false,
            state: State::Record,
            length: length as u64 + 1,
        };
        if length > MAX_LINE {
            digest.state = State::Long;
        } else if let Some(scanned) = scan(line).filter(|scanned| !notable(scanned.kind)) {
            (digest.seq, digest.kind) = (scanned.seq, scanned.kind);
            (digest.t, digest.of) = (scanned.t, scanned.of);
            digest.linked = number > 0 && scanned.prev == before;
            if number == 0 {
                digests.first_prev = str::from_utf8(scanned.prev).ok().and_then(|p| p.parse().ok());
            }
            if let Some(found) = scanned.policy
                && found != policy
            {
                policy = found.to_vec();
                digests.policy(&String::from_utf8_lossy(found), digest.seq);
            }
        } else {
            slow(line, number, &mut digest, &mut digests, &before);
        }
        before = leaf.digits();
        digests.lines.push(digest);
        start += length + 1;
    }
    digests.buffer = bytes;
    digests
}

/// Whether all of the record is wanted.
fn notable(kind: Kind) -> bool {
    matches!(kind, Kind::Start | Kind::Pruned | Kind::Recovered)
}

fn slow(line: &[u8], number: usize, digest: &mut Digest, digests: &mut Digests, before: &[u8; 64]) {
    // A line of which only a part can be read is none: what it says of the log
    // itself would be passed over.
    let read = Link::parse(line).and_then(|link| Ok((link, AuditRecord::parse(line)?)));
    let (link, record) = match read {
        Ok(read) => read,
        Err(error) => {
            digest.state = State::Bad;
            digests.errors.insert(number, error);
            return;
        }
    };
    (digest.seq, digest.kind, digest.of) = (link.seq, link.kind, link.of);
    digest.t = link.t.as_bytes().first_chunk().copied().unwrap_or(digest.t);
    digest.linked = number > 0 && link.prev.digits() == *before;
    if number == 0 {
        digests.first_prev = Some(link.prev);
    }
    if let Some(policy) = record.draft.policy_sha256 {
        digests.policy(&policy, link.seq);
    }
    let Some(facts) = record.draft.facts.filter(|_| notable(link.kind)) else { return };
    let notice = match link.kind {
        Kind::Start => {
            facts.get(KEY_FACT).and_then(Value::as_str).map(|key| Notice::Key(key.into()))
        }
        _ => facts.get("segments").and_then(Value::as_u64).map(|segments| {
            let head = facts.get("head").and_then(Value::as_str).and_then(|h| h.parse().ok());
            Notice::Pruned { segments, head }
        }),
    };
    if let Some(notice) = notice {
        digests.notices.insert(number, notice);
    }
}
