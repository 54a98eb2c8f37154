//! A rate limiter: a leaky bucket in time.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::lock;

/// The rate of one sender.
#[derive(Debug)]
pub struct RateLimiter {
    cost: Duration,
    burst: Duration,
    /// The events so far take the time until then.
    busy_until: Mutex<Instant>,
}

impl RateLimiter {
    /// Lets `per_second` events pass every second, and at once as many as pass in
    /// `burst`.
    pub fn new(per_second: u32, burst: Duration) -> Self {
        let cost = Duration::from_secs(1).checked_div(per_second).unwrap_or(Duration::MAX);
        Self { cost, burst, busy_until: Mutex::new(Instant::now()) }
    }

    /// Counts an event, and returns how long its sender must pause.
    pub fn charge(&self) -> Duration {
        let now = Instant::now();
        let mut busy_until = lock(&self.busy_until);
        let begin = (*busy_until).max(now);
        *busy_until = begin.checked_add(self.cost).unwrap_or(begin);
        busy_until.saturating_duration_since(now).saturating_sub(self.burst)
    }

    /// How long the sender of the events so far must pause.
    pub fn pause(&self) -> Duration {
        lock(&self.busy_until).saturating_duration_since(Instant::now()).saturating_sub(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_later_events_pause_their_sender() {
        let limiter = RateLimiter::new(200, Duration::from_secs(10));
        for _ in 0..10 * 200 - 1 {
            assert_eq!(limiter.charge(), Duration::ZERO);
        }
        let pauses: Vec<_> = (0..200).map(|_| limiter.charge()).collect();
        let last = pauses.last().unwrap();
        let pause = limiter.pause();
        assert!(pause <= *last && pause > *last / 2, "{pause:?}");
        // The test takes its time as well.
        assert!(*last > Duration::from_millis(100) && *last <= Duration::from_secs(1), "{last:?}");
    }
}
