//! Reservations of memory for messages, made before they are read.

use portcullis_rpc::{MemoryBudget, Reservation};

/// The largest message, in bytes, for which no memory is reserved.
pub(super) const MAX_UNCOUNTED: usize = 64 * 1024;
/// The maximum of copies of a message's byte in memory: in the message, in its content
/// and in the reply.
pub(super) const MAX_COPIES: usize = 3;

/// Waits for the memory of a message of `length` bytes; a small one needs none.
pub(super) async fn reserve(share: &MemoryBudget, length: usize) -> Option<Reservation> {
    if length <= MAX_UNCOUNTED {
        return None;
    }
    Some(share.reserve(length.saturating_mul(MAX_COPIES)).await)
}
