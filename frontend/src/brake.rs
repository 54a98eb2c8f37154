//! Slowing down who sends what is no message: that costs next to nothing to send,
//! and each time a record is written.

use std::{
    os::fd::BorrowedFd,
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lock;

/// What may come every second.
const PER_SECOND: u32 = 200;
/// What of it may come at once: that of so long.
const BURST: Duration = Duration::from_secs(10);

/// The brake of one peer (a leaky bucket).
#[derive(Debug)]
pub(super) struct Brake {
    /// Until when what came fills the time.
    busy_until: Mutex<Instant>,
}

impl Brake {
    pub(super) fn new() -> Self {
        Self { busy_until: Mutex::new(Instant::now()) }
    }

    /// Counts one thing more, and gives how long its sender is not to be heard.
    pub(super) fn press(&self) -> Duration {
        let now = Instant::now();
        let mut busy_until = lock(&self.busy_until);
        *busy_until = (*busy_until).max(now) + Duration::from_secs(1) / PER_SECOND;
        busy_until.saturating_duration_since(now).saturating_sub(BURST)
    }
}

/// Whether nothing more comes from a `stream` than what came, or `told` says that
/// nobody is to hear it.
pub(super) fn is_over(stream: BorrowedFd<'_>, told: Option<BorrowedFd<'_>>) -> bool {
    // That a peer hung up is told without asking.
    let stream = PollFd::from_borrowed_fd(stream, PollFlags::RDHUP);
    let told = told.map(|told| PollFd::from_borrowed_fd(told, PollFlags::IN));
    let mut looked: Vec<_> = [Some(stream), told].into_iter().flatten().collect();
    // What cannot be seen is not over.
    poll(&mut looked, Some(&Timespec::default())).is_ok_and(|changed| changed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_comes_after_it_waits() {
        let brake = Brake::new();
        let free = 10 * PER_SECOND;
        for _ in 0..free - 1 {
            assert_eq!(brake.press(), Duration::ZERO);
        }
        let owed: Vec<_> = (0..PER_SECOND).map(|_| brake.press()).collect();
        let last = owed.last().unwrap();
        // The test takes its time as well.
        assert!(*last > Duration::from_millis(100) && *last <= Duration::from_secs(1), "{last:?}");
    }
}
