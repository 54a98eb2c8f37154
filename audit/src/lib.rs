//! The Portcullis audit log: record format, hash chain and offline verifier.
//!
//! A reviewer can build and read this crate alone. FORMAT.md specifies what
//! it implements. It decides nothing and never changes a log.

mod hash;
mod record;

pub use hash::{Hash, HashError};
pub use record::{AuditRecord, Draft, Kind};

use serde::{Deserialize, Serialize};

/// Proof that a record is in the log: its place and its leaf hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The record's place in the chain.
    pub seq: u64,
    /// The record's leaf hash.
    pub leaf: Hash,
    /// Whether the record was on stable storage when the receipt was made.
    pub durable: bool,
}
