//! The limits of the sockets, and the memory that all of them share.

use std::time::Duration;

use portcullis_rpc::{MemoryBudget, MemoryShares, Reservation};

use super::{MAX_UNRESERVED_BYTES, RESERVATION_STEP};
use crate::TokenHash;

/// The number of shares of the memory. The messages from and to one token have one
/// share, which fits the largest message in any case.
const MEMORY_SHARES: usize = 2;

/// The limits of the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Largest message from a client, in bytes.
    pub message: usize,
    /// Memory for messages from and to all clients in flight, in bytes.
    pub memory: usize,
    /// Interval of pings to a client.
    pub ping: Duration,
    /// Maximum time without a pong or a complete message.
    pub silence: Duration,
    /// Timeout for a client to take a piece of a message; for a whole message a second
    /// more for each 256 KiB.
    pub write: Duration,
    /// Timeout for a message for which memory is reserved to arrive, besides a second
    /// for each 256 KiB.
    pub arrive: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // 100 MB in base64, with the JSON around it.
            message: 144 << 20,
            memory: 512 << 20,
            ping: Duration::from_secs(45),
            silence: Duration::from_secs(120),
            write: Duration::from_secs(30),
            arrive: Duration::from_secs(30),
        }
    }
}

/// The limits and the memory of all sockets of one front.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(super) bounds: Bounds,
    memory: MemoryShares<TokenHash>,
}

impl Sockets {
    pub(crate) fn new(bounds: Bounds) -> Self {
        debug_assert!(bounds.memory >= bounds.message, "room for one message");
        let each = (bounds.memory / MEMORY_SHARES).max(bounds.message);
        let memory = MemoryShares::new(MemoryBudget::new(bounds.memory), each);
        Self { bounds, memory }
    }

    /// Returns the memory for large messages.
    #[cfg(test)]
    pub(super) fn memory(&self) -> &MemoryBudget {
        self.memory.all()
    }

    /// Returns the size of the largest message, in bytes.
    pub(crate) fn most(&self) -> usize {
        self.bounds.message
    }

    /// Returns the share of one token, for all its connections.
    pub(crate) fn share(&self, token: TokenHash) -> MemoryBudget {
        self.memory.share(token)
    }
}

/// Reserves memory for a message of which `length` bytes have arrived. Returns false
/// where there is none: waiting for it could deadlock messages that wait for each
/// other.
pub(crate) fn cover(reservation: &mut Reservation, length: usize) -> bool {
    reservation
        .try_grow(length.saturating_sub(MAX_UNRESERVED_BYTES).next_multiple_of(RESERVATION_STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_leaves_memory_to_others_on_however_many_connections() {
        let bounds = Bounds { message: 1 << 20, memory: 8 << 20, ..Bounds::default() };
        let sockets = Sockets::new(bounds);
        let (one, other) = (TokenHash::of("one"), TokenHash::of("other"));
        let message = |token: TokenHash| {
            let mut reservation = sockets.share(token).empty();
            cover(&mut reservation, 1 << 20).then_some(reservation)
        };
        let held: Vec<_> = std::iter::from_fn(|| message(one)).collect();
        assert_eq!(held.len(), 4);
        let others: Vec<_> = (0..3).filter_map(|_| message(other)).collect();
        assert_eq!(others.len(), 3);
        drop((held, others));
        assert!(message(one).is_some());
        assert_eq!(sockets.memory().free(), 8 << 20);
    }

    #[test]
    fn the_largest_message_has_room_where_there_is_no_more_memory() {
        let bounds = Bounds { message: 1 << 20, memory: 1 << 20, ..Bounds::default() };
        let share = Sockets::new(bounds).share(TokenHash::of("one"));
        assert!(cover(&mut share.empty(), 1 << 20));
    }
}
