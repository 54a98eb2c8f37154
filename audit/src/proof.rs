//! Proof files: C2SP `tlog-proof` for a record, and for two sizes of the log the message of C2SP
//! `tlog-witness`.

use std::fmt;

use crate::{AuditRecord, Checkpoint, Hash, MAX_LINE, Note, NoteError, base64, tree};

/// The first line of the proof of a record.
const HEADER: &str = "c2sp.org/tlog-proof@v1";
/// Maximum length of a proof file, in bytes: a record, hashes and a note.
pub const MAX_PROOF: usize = 2 * MAX_LINE;

/// Reasons why a proof is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// It is not a proof file.
    #[error("the text is no proof")]
    Form,
    /// The line is not a record.
    #[error("the line is no record")]
    Line,
    /// The record has another sequence number than the index.
    #[error("the record has another sequence number")]
    Seq,
    /// The record or the hashes do not lead to the checkpoint's root.
    #[error("the proof does not lead to the checkpoint's root")]
    Root,
    /// The older checkpoint does not have the size from which the proof starts.
    #[error("the proof starts from another size than the older checkpoint")]
    Size,
    /// The checkpoint is invalid.
    #[error(transparent)]
    Note(#[from] NoteError),
}

/// A proof with its checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The claim.
    pub claim: Claim,
    /// The hashes, in the order of RFC 6962.
    pub hashes: Vec<Hash>,
    /// The signed checkpoint to which they lead.
    pub note: Note,
}

/// Claims of proofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// A record is in the log.
    Inclusion {
        /// Its index.
        index: u64,
        /// Its line without the newline.
        line: Option<Vec<u8>>,
    },
    /// The log of the old size is a prefix of the checkpoint's.
    Consistency {
        /// The old number of records.
        old: u64,
    },
}

impl Proof {
    /// Parses a proof file.
    ///
    /// # Errors
    ///
    /// If it is not a proof.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProofError> {
        let text = str::from_utf8(bytes).map_err(|_utf8| ProofError::Form)?;
        let (head, note) = text.split_once("\n\n").ok_or(ProofError::Form)?;
        if bytes.len() > MAX_PROOF {
            return Err(ProofError::Form);
        }
        let mut lines = head.split('\n').peekable();
        let claim = Self::claim(&mut lines).ok_or(ProofError::Form)?;
        let hash = |line| Some(Hash::from_bytes(base64::decode(line)?.try_into().ok()?));
        let hashes = lines.map(hash).collect::<Option<Vec<_>>>().ok_or(ProofError::Form)?;
        Ok(Self { claim, hashes, note: Note::parse(note.as_bytes())? })
    }

    fn claim<'a>(lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Option<Claim> {
        let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
        let first = lines.next()?;
        if let Some(old) = first.strip_prefix("old ") {
            // From an empty log anything grows (RFC 6962, section 2.1.2: `0 < m`).
            let old = number(old)?;
            return (old > 0).then_some(Claim::Consistency { old });
        }
        if first != HEADER {
            return None;
        }
        let extra = lines.peek().and_then(|line| line.strip_prefix("extra "));
        let line = match extra {
            Some(extra) => Some(base64::decode(extra).filter(|line| line.len() <= MAX_LINE)?),
            None => None,
        };
        if line.is_some() {
            lines.next();
        }
        let index = number(lines.next()?.strip_prefix("index ")?)?;
        Some(Claim::Inclusion { index, line })
    }

    /// Returns its checkpoint; signatures are not checked.
    ///
    /// # Errors
    ///
    /// If the note is not a checkpoint.
    pub fn checkpoint(&self) -> Result<Checkpoint, ProofError> {
        Ok(Checkpoint::of(&self.note)?)
    }

    /// Checks that a record with the leaf hash `leaf` is in the log at the claimed index. A line in
    /// the proof must be the record of that index, with that leaf hash.
    ///
    /// # Errors
    ///
    /// If the proof does not prove that.
    pub fn check_inclusion(&self, leaf: Hash) -> Result<(), ProofError> {
        let Claim::Inclusion { index, line } = &self.claim else { return Err(ProofError::Form) };
        if let Some(line) = line {
            let record = AuditRecord::parse(line).map_err(|_| ProofError::Line)?;
            if record.seq != *index {
                return Err(ProofError::Seq);
            }
            if Hash::leaf(line) != leaf {
                return Err(ProofError::Root);
            }
        }
        let checkpoint = self.checkpoint()?;
        match tree::root_from_inclusion(leaf, *index, checkpoint.size, &self.hashes) {
            Some(root) if root == checkpoint.root => Ok(()),
            _ => Err(ProofError::Root),
        }
    }

    /// Checks that the log of the checkpoint `older` is a prefix of that of the proof's. Their
    /// origins, which are the names of the log's keys, may differ, since the key may have been
    /// replaced. The caller has checked that keys of the log signed both.
    ///
    /// # Errors
    ///
    /// If the proof does not prove that.
    pub fn check_consistency(&self, older: &Checkpoint) -> Result<(), ProofError> {
        let Claim::Consistency { old } = &self.claim else { return Err(ProofError::Form) };
        let newer = self.checkpoint()?;
        if *old != older.size {
            return Err(ProofError::Size);
        }
        let whole =
            tree::is_consistent(older.size, older.root, newer.size, newer.root, &self.hashes);
        if whole { Ok(()) } else { Err(ProofError::Root) }
    }
}

/// Formats the file.
impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.claim {
            Claim::Inclusion { index, line } => {
                writeln!(f, "{HEADER}")?;
                if let Some(line) = line {
                    writeln!(f, "extra {}", base64::encode(line))?;
                }
                writeln!(f, "index {index}")?;
            }
            Claim::Consistency { old } => writeln!(f, "old {old}")?,
        }
        for hash in &self.hashes {
            writeln!(f, "{}", base64::encode(hash.as_bytes()))?;
        }
        write!(f, "\n{}", self.note)
    }
}
