//! Bundles of evidence: their members and their verification.
//!
//! The records of a bundle are contiguous in the log. The newest checkpoint proves the last of
//! them, and each record holds the leaf hash of the one before. So one proof and one signature
//! prove all of them.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read},
};

use portcullis_audit::{
    Checkpoint, Claim, Hash, MAX_LINE, Note, NoteError, Proof, PublicKey, RecordView, Signed,
    parse_keys,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};

/// The list of a bundle's members.
pub const MANIFEST: &str = "manifest.json";
/// The records, one per line, as in the log.
pub const RECORDS: &str = "records.jsonl";
/// The inclusion proof of the last record, with the checkpoint.
pub const PROOF: &str = "last.tlog-proof";
/// The keys that the log was signed with.
pub const BUNDLED_KEYS: &str = "key.vkey";
/// The checkpoint of the proof, by itself.
pub const BUNDLED_CHECKPOINT: &str = "checkpoint";
/// Explanation and verifiers, from the version that made the bundle.
pub const COMPANIONS: [&str; 4] = ["README.txt", "check.py", "verify.py", "FORMAT.md"];
/// The members that a proof requires.
pub const NEEDED: [&str; 4] = [RECORDS, PROOF, BUNDLED_KEYS, BUNDLED_CHECKPOINT];

/// True if a bundle may have a member of this name. Other names could point outside of the
/// directory into which the bundle is unpacked.
pub fn is_member(name: &str) -> bool {
    let policy = name.strip_prefix("policies/").and_then(|rest| rest.strip_suffix(".toml"));
    policy.is_some_and(|policy| policy.parse::<Hash>().is_ok())
        || NEEDED.contains(&name)
        || COMPANIONS.contains(&name)
}

/// The list of a bundle's members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format: 1.
    pub version: u32,
    /// The time at which it was made, RFC 3339 in UTC.
    pub created: String,
    /// The index of the first record.
    pub first: u64,
    /// The index of the last record.
    pub last: u64,
    /// The other members, each with its SHA-256.
    #[serde(deserialize_with = "each_once")]
    pub files: BTreeMap<String, Hash>,
}

impl Manifest {
    /// Parses the member.
    ///
    /// # Errors
    /// If it is not a manifest of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, BundleError> {
        let none = || BundleError::member(MANIFEST, "is no manifest");
        // Serde would read an array as the fields in their order.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err(none());
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|_json| none())?;
        if manifest.version == 1 {
            Ok(manifest)
        } else {
            Err(BundleError::member(MANIFEST, "is of a later version"))
        }
    }
}

/// Reads a map and refuses duplicate keys, of which other readers may use another one.
fn each_once<'de, D: Deserializer<'de>>(json: D) -> Result<BTreeMap<String, Hash>, D::Error> {
    struct Files;
    impl<'de> Visitor<'de> for Files {
        type Value = BTreeMap<String, Hash>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the members")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut files = BTreeMap::new();
            while let Some((name, hash)) = from.next_entry()? {
                if files.insert(name, hash).is_some() {
                    return Err(A::Error::custom("a member stands twice"));
                }
            }
            Ok(files)
        }
    }
    json.deserialize_map(Files)
}

/// Reasons why a bundle is not valid.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It cannot be read.
    #[error("cannot read the bundle: {0}")]
    Io(#[from] io::Error),
    /// A member is not valid.
    #[error("`{name}` {wrong}")]
    Member {
        /// The member; untrusted text.
        name: String,
        /// The problem.
        wrong: String,
    },
}

impl BundleError {
    /// Makes an error about a member.
    pub fn member(name: &str, wrong: impl Into<String>) -> Self {
        Self::Member { name: name.to_owned(), wrong: wrong.into() }
    }
}

/// A check that the records of a bundle form a chain, from the first on.
#[derive(Debug, Default)]
pub struct Links {
    /// The index and leaf hash of the last record.
    pub last: Option<(u64, Hash)>,
}

impl Links {
    /// Checks the next line, without its newline.
    ///
    /// # Errors
    /// If it does not follow the record before.
    pub fn follow<'a>(&mut self, line: &'a [u8]) -> Result<RecordView<'a>, String> {
        let record = RecordView::parse(line).map_err(|error| error.to_string())?;
        if let Some((seq, leaf)) = self.last {
            if seq.checked_add(1) != Some(record.seq) {
                return Err(format!("has record {} after record {seq}", record.seq));
            }
            if record.prev != leaf {
                return Err(format!("is broken between records {seq} and {}", record.seq));
            }
        }
        self.last = Some((record.seq, Hash::leaf(line)));
        Ok(record)
    }
}

/// The facts that a bundle's members prove together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// Number of records.
    pub records: u64,
    /// The signed checkpoint that covers them.
    pub checkpoint: Checkpoint,
    /// The checkpoint with its signatures.
    note: Note,
    /// The key that signed it.
    pub by: PublicKey,
    /// The hashes of the policies that the records name.
    pub policies: Vec<Hash>,
}

impl Proven {
    /// Compares the bundle's keys and its separate checkpoint with the proof. A wrong signature is
    /// an error: on the checkpoint one by any of `trusted`, on the proof one by any of the bundle's
    /// keys.
    ///
    /// # Errors
    /// The member that is wrong, with the problem.
    pub fn agrees(
        &self,
        trusted: &[PublicKey],
        keys: &[u8],
        checkpoint: &[u8],
    ) -> Result<(), BundleError> {
        let bundled = parse_keys(&String::from_utf8_lossy(keys))
            .map_err(|error| BundleError::member(BUNDLED_KEYS, error.to_string()))?;
        let signed = self.note.verify(&bundled).and_then(Signed::without_wrong);
        if !signed.is_ok_and(|signed| signed.by == self.by) {
            let words = "does not name the key that signed the proof";
            return Err(BundleError::member(BUNDLED_KEYS, words));
        }
        let wrong = |words: String| BundleError::member(BUNDLED_CHECKPOINT, words);
        let of = |error: NoteError| wrong(error.to_string());
        let note = Note::parse(checkpoint).map_err(of)?;
        let _signed = note.verify(trusted).and_then(Signed::without_wrong).map_err(of)?;
        if Checkpoint::of(&note).map_err(of)? != self.checkpoint {
            return Err(wrong("is not the one of the proof".to_owned()));
        }
        Ok(())
    }
}

/// Checks the records against the manifest and the proof against `keys`.
///
/// # Errors
/// The member that is wrong, with the problem.
pub fn prove(
    manifest: &Manifest,
    records: impl Read,
    proof: &[u8],
    keys: &[PublicKey],
) -> Result<Proven, BundleError> {
    let wrong = |words: String| BundleError::member(RECORDS, words);
    let mut links = Links::default();
    let mut policies = BTreeMap::new();
    let mut count = 0;
    let mut reader = io::BufReader::with_capacity(1 << 16, records);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = io::BufRead::read_until(
            &mut (&mut reader).take(MAX_LINE as u64 + 1),
            b'\n',
            &mut line,
        )?;
        if read == 0 {
            break;
        }
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            return Err(wrong("ends within a line, or a line is too long".to_owned()));
        }
        let record = links.follow(&line).map_err(wrong)?;
        if count == 0 && record.seq != manifest.first {
            let (found, first) = (record.seq, manifest.first);
            return Err(wrong(format!("begins with record {found}, not {first}")));
        }
        count += 1;
        if let Some(hash) = record.policy_sha256().and_then(|hash| hash.parse::<Hash>().ok()) {
            policies.insert(hash, ());
        }
    }
    let Some((last, leaf)) = links.last else { return Err(wrong("holds no record".to_owned())) };
    if last != manifest.last {
        return Err(wrong(format!("ends with record {last}, not {}", manifest.last)));
    }
    let wrong = |words: String| BundleError::member(PROOF, words);
    let invalid = |error: &dyn std::fmt::Display| wrong(format!("is not valid: {error}"));
    let proof = Proof::parse(proof).map_err(|error| invalid(&error))?;
    let signed = proof.note.verify(keys).and_then(Signed::without_wrong);
    let signed = signed.map_err(|error| invalid(&error))?;
    let checkpoint = proof.checkpoint().map_err(|error| invalid(&error))?;
    if checkpoint.origin != signed.by.name() {
        return Err(wrong("has a checkpoint of another log".to_owned()));
    }
    match &proof.claim {
        Claim::Inclusion { index, line: Some(line) }
            if *index == last && Hash::leaf(line) == leaf => {}
        Claim::Inclusion { index, .. } if *index == last => {
            return Err(wrong(format!("does not show record {last} as it is")));
        }
        _ => return Err(wrong(format!("is not one of record {last}"))),
    }
    proof.check_inclusion(leaf).map_err(|error| invalid(&error))?;
    Ok(Proven {
        records: count,
        checkpoint,
        note: proof.note,
        by: signed.by,
        policies: policies.into_keys().collect(),
    })
}
