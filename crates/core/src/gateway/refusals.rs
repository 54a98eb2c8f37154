//! Rate limit for refusals that no limit of the policy bounds: malformed messages, messages that
//! never became an operation, denials of limits, and connections that are denied or cut off. They
//! are cheap to send, and each costs a record.
//!
//! A leaky bucket for each agent, over all of its connections. It never refuses; it returns
//! the time for which transports must take no message of the agent.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use portcullis_audit::Draft;

use super::{leaky_bucket::LeakyBucket, lock::lock};

/// Refusals in a second.
const RATE: u64 = 200;
/// Bytes of a record that cost as much as a refusal.
const BYTES_PER_COST: usize = 512;
/// Refusals that take no longer than this need no pause.
const MAX_BURST: Duration = Duration::from_secs(10);

/// The refusals of each agent. Agents are the operator's, so there are not many of them.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<String, LeakyBucket>>);

impl Refusals {
    /// Counts one refusal with this record.
    pub(super) fn charge(&self, agent: &str, record: &Draft) {
        // A record escapes each control character.
        let bytes = serde_json::to_vec(record).map_or(usize::MAX, |record| record.len());
        let cost = u64::try_from((bytes / BYTES_PER_COST).max(1)).unwrap_or(u64::MAX);
        let now = Instant::now();
        let mut all = lock(&self.0);
        let bucket = all.entry(agent.to_owned()).or_insert_with(|| LeakyBucket::new(RATE, now));
        bucket.add(cost, now);
    }

    /// Returns the time for which no message of the agent must be taken.
    pub(super) fn pause(&self, agent: &str) -> Duration {
        let mut all = lock(&self.0);
        let left = all.get_mut(agent).map(|bucket| bucket.time_to_empty(Instant::now()));
        left.unwrap_or_default().saturating_sub(MAX_BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_later_refusals_pause_their_agent_alone() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        for _ in 0..10 * 200 - 1 {
            refusals.charge("a", &Draft::default());
        }
        assert_eq!(refusals.pause("a"), Duration::ZERO);
        (0..200).for_each(|_| refusals.charge("a", &Draft::default()));
        let pause = refusals.pause("a");
        // The test itself takes time.
        assert!(pause + begun.elapsed() > Duration::from_millis(100), "{pause:?}");
        assert!(pause <= Duration::from_secs(1), "{pause:?}");
        assert_eq!(refusals.pause("b"), Duration::ZERO);
    }

    /// Long paths made the log grow ten times as fast as documented.
    #[test]
    fn a_long_path_costs_as_much_as_many_refusals() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        let record = Draft { path: Some("\u{1}".repeat(4096)), ..Draft::default() };
        (0..100).for_each(|_| refusals.charge("a", &record));
        assert!(refusals.pause("a") + begun.elapsed() > Duration::from_secs(10));
    }
}
