//! The part of a verification that is independent for each line: hashing and parsing, on several
//! threads.

use std::collections::BTreeMap;

use crate::{Hash, KEY_FACT, Kind, LineError, MAX_LINE, RecordView, Removal, UNSIGNED, time::Time};

/// Complete lines in order. One byte without meaning precedes them.
pub(super) struct Lines(pub(super) Vec<u8>);

/// The digest of one line.
pub(super) struct Digest {
    pub(super) seq: u64,
    pub(super) kind: Kind,
    /// The time; `None` if the line is not a record.
    pub(super) t: Option<Time>,
    pub(super) of: Option<u64>,
    pub(super) leaf: Hash,
    /// True if `prev` is the leaf hash of the line before, within these lines.
    pub(super) linked: bool,
    pub(super) state: State,
    /// Length in bytes, with the newline.
    pub(super) length: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Record,
    /// A line that is not a record; the errors contain the reason.
    Bad,
    Long,
}

/// The digests of lines.
#[derive(Default)]
pub(super) struct Digests {
    pub(super) lines: Vec<Digest>,
    /// The errors, by the position of the line among these.
    pub(super) errors: BTreeMap<usize, LineError>,
    pub(super) notices: BTreeMap<usize, Vec<Notice>>,
    /// The `prev` of the first line.
    pub(super) first_prev: Option<Hash>,
    /// The policies that were in force, each with its first record in these lines.
    pub(super) policies: BTreeMap<Hash, u64>,
    /// The first policy that is not a hash: its beginning, and the record.
    pub(super) odd_policy: Option<(String, u64)>,
    /// The memory of the lines.
    pub(super) buffer: Vec<u8>,
}

impl Digests {
    /// Adds the policy that a record names. Texts that are not a hash can be as long and as many as
    /// lines: of these, the beginning of one is enough.
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

/// A statement of a record about the log itself.
pub(super) enum Notice {
    /// A gateway, by the hash of its `boot`, signs checkpoints with this key.
    Key(String, Option<Hash>),
    /// A gateway stopped in order.
    Stop(Option<Hash>),
    /// Segments were removed or, in a `recovered` record, are missing.
    Removal(Removal),
    /// An operator continued the log without any checkpoint.
    Unsigned,
}

/// Hashes and parses every line.
pub(super) fn digest(Lines(mut bytes): Lines) -> Digests {
    let mut digests =
        Digests { lines: Vec::with_capacity(bytes.len() / 400), ..Digests::default() };
    let (mut policy, mut before) = (String::new(), Hash::ZERO);
    let mut start = 1;
    while let Some(rest) = bytes.get(start..)
        && let Some(length) = memchr::memchr(b'\n', rest)
    {
        let number = digests.lines.len();
        // The byte in front, a newline that is no longer needed, becomes the zero byte of the leaf
        // hash.
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

/// Returns the statements of a record about the log itself.
fn notices(record: &RecordView<'_>) -> Vec<Notice> {
    let gateway = || record.boot().map(|boot| Hash::of(boot.as_bytes()));
    let mut notices = Vec::new();
    match record.kind {
        Kind::Stop => notices.push(Notice::Stop(gateway())),
        Kind::Start => {
            notices.extend(record.fact(KEY_FACT).map(|key| Notice::Key(key.to_owned(), gateway())));
        }
        Kind::Pruned | Kind::Recovered => {
            notices.extend(Removal::of(record).map(Notice::Removal));
            if record.kind == Kind::Recovered && record.fact("what") == Some(UNSIGNED) {
                notices.push(Notice::Unsigned);
            }
        }
        _ => {}
    }
    notices
}
