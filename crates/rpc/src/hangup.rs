//! Peers that hang up, and peers that send no messages.

use std::{os::fd::BorrowedFd, time::Duration};

use crate::RateLimiter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Malformed messages that a peer may send every second.
const MALFORMED_PER_SECOND: u32 = 200;
/// The time in which a peer may send as many malformed messages as it likes, if it
/// sent none before.
const MALFORMED_BURST: Duration = Duration::from_secs(10);

/// The rate limit for malformed messages of one peer. They are cheap to send, but
/// each costs an audit record.
pub fn malformed_limiter() -> RateLimiter {
    RateLimiter::new(MALFORMED_PER_SECOND, MALFORMED_BURST)
}

/// True if nothing more arrives from a `stream` than what has arrived, or if `stop`
/// can be read from.
pub fn is_over(stream: BorrowedFd<'_>, stop: Option<BorrowedFd<'_>>) -> bool {
    // `poll` reports a hang-up without being asked.
    let stream = PollFd::from_borrowed_fd(stream, PollFlags::RDHUP);
    let stop = stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN));
    let mut polled: Vec<_> = [Some(stream), stop].into_iter().flatten().collect();
    // A stream that cannot be polled is not over.
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|changed| changed > 0)
}
