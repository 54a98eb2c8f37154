//! The Portcullis audit log: record format, hash chain and offline verifier.
//!
//! A reviewer can build and read this crate alone; it implements FORMAT.md. It decides nothing,
//! reads no clock and never changes a log. [`Chain`] makes the next line. [`Verifier`] and
//! [`Reader`] read logs of any origin.

mod base64;
mod chain;
mod checkpoint;
mod compressed;
mod damage;
mod hash;
mod json;
mod line;
mod note;
mod proof;
mod reader;
mod record;
mod removal;
mod segment;
mod source;
mod time;
pub mod tree;
mod verify;

pub use chain::{Chain, ChainError, Prepared};
pub use checkpoint::{
    Checkpoint, FRONTIER, HISTORY, KEYS, NEWEST, ROOT_LINE, ROOTS, read_root_line,
};
pub use compressed::{LogFile, PACKED, unpacked};
pub use damage::{Damage, DamageKind, Warning, WarningKind};
pub use hash::{Hash, HashError};
pub use line::{LineError, RecordView};
pub use note::{MAX_NOTE, Note, NoteError, PrivateKey, PublicKey, Signed, distinct, parse_keys};
pub use proof::{Claim, MAX_PROOF, Proof, ProofError};
pub use reader::{Entry, Reader};
pub use record::{AuditRecord, Draft, Kind};
pub use removal::Removal;
pub use segment::{MAX_JUNK, MAX_LINE, MAX_SEGMENT, SEGMENT_RECORDS, Segment, Tail};
pub use source::{Directory, FileEntry, Source, no_history};
pub use time::Time;
pub use verify::{Position, Progress, Report, SignedPart, Verifier};

use serde::{Deserialize, Serialize};

/// Version of the format that this crate writes and reads, in the field `v`.
pub const VERSION: u64 = 1;

/// The fact of a `start` record that names the key which signs checkpoints.
pub const KEY_FACT: &str = "checkpointKey";

/// The value of `what` in the facts of a `recovered` record by which an operator continued a log
/// without any checkpoint.
pub const UNSIGNED: &str = "unsigned";

/// A receipt: the index and the leaf hash of a record in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The record's index in the chain.
    pub seq: u64,
    /// The record's leaf hash.
    pub leaf: Hash,
    /// True if the record was durable when the receipt was made.
    pub durable: bool,
}
