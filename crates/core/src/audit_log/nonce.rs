//! Nonces of records, drawn from the kernel many at a time: a call for each would be a considerable
//! part of a record's cost. They are published with their records, so that unused ones in this
//! process's memory disclose nothing that matters.

use std::sync::{Mutex, PoisonError};

use super::{Error, disk};

/// Number that is drawn at once.
const BATCH_SIZE: usize = 64;

/// Nonces that are not used yet.
#[derive(Default)]
pub(super) struct Nonces(Mutex<Vec<[u8; 16]>>);

impl Nonces {
    /// Returns 128 random bits that were never returned before.
    pub(super) fn next(&self) -> Result<[u8; 16], Error> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nonce) = left.pop() {
            return Ok(nonce);
        }
        let bytes = disk::random::<{ 16 * BATCH_SIZE }>()?;
        left.extend_from_slice(bytes.as_chunks::<16>().0);
        left.pop().ok_or(Error::io("get random bits")(rustix::io::Errno::IO))
    }
}
