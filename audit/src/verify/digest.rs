//! The part of a verification that needs no other lines: hashing and parsing,
//! many lines at once, by as many threads as there are.

use std::collections::BTreeMap;

use crate::{Hash, KEY_FACT, Kind, LineError, MAX_LINE, RecordView, UNSIGNED, time::Time};

/// Whole lines, one after another. One byte of no meaning is in front of them.
pub(super) struct Lines(pub(super) Vec<u8>);

/// One line.
pub(super) struct Digest {
    pub(super) seq: u64,
    pub(super) kind: Kind,
    /// When; nothing where the line is no record.
    pub(super) t: Option<Time>,
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
    pub(super) notices: BTreeMap<usize, Vec<Notice>>,
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
    /// A gate, with the hash of its `boot`, signs checkpoints with this key.
    Key(String, Option<Hash>),
    /// A gate stopped in order.
    Stop(Option<Hash>),
    /// Segments before number `segments` were removed, or, in a `recovered`
    /// record, are missing; the last record of them had the leaf hash `head`.
    Pruned { segments: u64, head: Option<Hash> },
    /// An operator had the log go on though no checkpoint of it is left.
    Unsigned,
}

/// Looks at every line.
pub(super) fn digest(Lines(mut bytes): Lines) -> Digests {
    let mut digests =
        Digests { lines: Vec::with_capacity(bytes.len() / 400), ..Digests::default() };
    let (mut policy, mut before) = (String::new(), Hash::ZERO);
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
        let leaf = Hash::of(bytes.get(start - 1..start + length).unwrap_or_default());
        let line = bytes.get(start..start + length).unwrap_or_default();
        let mut digest = Digest {
            seq: 0,
            kind: Kind::Unknown,
            t: None,
            of: None,
            leaf,
            linked: false,
            state: State::Record,
            length: length as u64 + 1,
        };
        if length > MAX_LINE {
            digest.state = State::Long;
        } else {
            match RecordView::parse(line) {
                Err(error) => {
                    digest.state = State::Bad;
                    digests.errors.insert(number, error);
                }
                Ok(record) => {
                    (digest.seq, digest.kind) = (record.seq, record.kind);
                    (digest.t, digest.of) = (Some(record.t), record.of);
                    digest.linked = number > 0 && record.prev == before;
                    if number == 0 {
                        digests.first_prev = Some(record.prev);
                    }
                    if let Some(found) = record.policy_sha256()
                        && found != policy
                    {
                        found.clone_into(&mut policy);
                        digests.policy(&policy, record.seq);
                    }
                    let notices = notices(&record);
                    if !notices.is_empty() {
                        digests.notices.insert(number, notices);
                    }
                }
            }
        }
        before = leaf;
        digests.lines.push(digest);
        start += length + 1;
    }
    digests.buffer = bytes;
    digests
}

/// What a record says of the log itself.
fn notices(record: &RecordView<'_>) -> Vec<Notice> {
    let gate = || record.boot().map(|boot| Hash::of(boot.as_bytes()));
    let mut notices = Vec::new();
    match record.kind {
        Kind::Stop => notices.push(Notice::Stop(gate())),
        Kind::Start => {
            notices.extend(record.fact(KEY_FACT).map(|key| Notice::Key(key.to_owned(), gate())));
        }
        Kind::Pruned | Kind::Recovered => {
            let segments = record.facts.as_ref().and_then(|facts| facts.get("segments")?.as_u64());
            let head = || record.fact("head").and_then(|head| head.parse().ok());
            notices.extend(segments.map(|segments| Notice::Pruned { segments, head: head() }));
            if record.kind == Kind::Recovered && record.fact("what") == Some(UNSIGNED) {
                notices.push(Notice::Unsigned);
            }
        }
        _ => {}
    }
    notices
}
