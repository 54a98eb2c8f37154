//! Leaky buckets: counts of what happens, bounded by a rate.

use std::time::{Duration, Instant};

/// A bucket whose level falls by its rate in each second.
#[derive(Debug)]
pub(super) struct LeakyBucket {
    rate: f64,
    level: f64,
    at: Instant,
}

impl LeakyBucket {
    /// Makes an empty bucket.
    pub(super) fn new(rate: u64, now: Instant) -> Self {
        Self { rate: as_float(rate), level: 0.0, at: now }
    }

    /// Changes the rate. The time until the bucket is empty stays the same.
    pub(super) fn set_rate(&mut self, rate: u64) {
        let before = std::mem::replace(&mut self.rate, as_float(rate));
        self.level *= self.rate / before;
    }

    /// Adds `units`.
    pub(super) fn add(&mut self, units: u64, now: Instant) {
        self.level = self.level(now) + as_float(units);
    }

    /// Adds `units` if the bucket then has at most a second's worth; more than that only if it is
    /// empty. Returns false if nothing was added.
    pub(super) fn try_add(&mut self, units: u64, now: Instant) -> bool {
        let fits = self.level(now) + as_float(units).min(self.rate) <= self.rate;
        if fits {
            self.add(units, now);
        }
        fits
    }

    /// True if the bucket has a second's worth.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.level(now) >= self.rate
    }

    /// Returns the time until the bucket is empty.
    pub(super) fn time_to_empty(&mut self, now: Instant) -> Duration {
        Duration::try_from_secs_f64(self.level(now) / self.rate).unwrap_or(Duration::MAX)
    }

    fn level(&mut self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level - passed * self.rate).max(0.0);
        self.at = self.at.max(now);
        self.level
    }
}

/// Converts a rate or a size; far beyond 2^52 single units do not matter.
#[expect(clippy::cast_precision_loss, reason = "a bound, not a count")]
fn as_float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under a lower limit a session does not wait for all that it did under a higher one.
    #[test]
    fn a_bucket_that_was_full_is_full_at_another_rate() {
        let now = Instant::now();
        let mut bucket = LeakyBucket::new(1000, now);
        assert!(bucket.try_add(1000, now) && bucket.is_full(now));
        bucket.set_rate(10);
        assert!(bucket.is_full(now) && !bucket.try_add(1, now));
        assert_eq!(bucket.time_to_empty(now), Duration::from_secs(1));
        assert!(bucket.try_add(5, now + Duration::from_millis(500)));
    }
}
