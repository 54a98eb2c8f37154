//! Detection of peers that hung up.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// True if no more input will arrive from a `stream` than has arrived, or if `stop` is readable.
pub fn is_over(stream: BorrowedFd<'_>, stop: Option<BorrowedFd<'_>>) -> bool {
    // `poll` always reports a hang-up.
    let stream = PollFd::from_borrowed_fd(stream, PollFlags::RDHUP);
    let stop = stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN));
    let mut polled: Vec<_> = [Some(stream), stop].into_iter().flatten().collect();
    // A stream that cannot be polled is not over.
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|changed| changed > 0)
}
