//! The memory of messages, before they are read.

use portcullis_rpc::{MemoryBudget, Reservation};

/// Messages of up to so many bytes are not counted.
pub(super) const MAX_UNCOUNTED: usize = 64 * 1024;
/// How often a byte of a message is in memory at most: in the message, in its content,
/// and in the reply.
pub(super) const COPIES: usize = 3;

/// Waits for the memory of a message of `length` bytes; a small one is not counted.
pub(super) async fn reserve(share: &MemoryBudget, length: usize) -> Option<Reservation> {
    if length <= MAX_UNCOUNTED {
        return None;
    }
    Some(share.reserve(length.saturating_mul(COPIES)).await)
}
