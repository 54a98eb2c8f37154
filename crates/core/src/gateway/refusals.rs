//! Rate limit for refusals that no limit of the policy bounds: malformed messages, messages that
//! never became an operation, and denials of limits. They are cheap to send, and each costs a
//! record.
//!
//! A leaky bucket in time for each agent, over all of its connections. It never refuses; it returns
//! the time for which transports must take no message of the agent.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Cost of one refusal: 200 a second.
const REFUSAL_COST: Duration = Duration::from_millis(5);
/// Bytes of a path that cost as much as a refusal.
const BYTES_PER_COST: usize = 512;
/// Refusals up to this cost need no pause.
const MAX_BURST: Duration = Duration::from_secs(10);

/// The time until which the refusals so far take, by agent. Agents are the operator's, so there are
/// not many of them.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<String, Instant>>);

impl Refusals {
    /// Counts one refusal, whose record has `path`.
    pub(super) fn charge(&self, agent: &str, path: Option<&str>) {
        // A record escapes each control character.
        let bytes = path.map_or(0, |path| Value::from(path).to_string().len());
        let cost = u32::try_from(1 + bytes / BYTES_PER_COST).unwrap_or(u32::MAX);
        let now = Instant::now();
        let mut all = self.lock();
        let begin = all.get(agent).map_or(now, |busy| now.max(*busy));
        let end = begin.checked_add(REFUSAL_COST.saturating_mul(cost)).unwrap_or(begin);
        all.insert(agent.to_owned(), end);
    }

    /// Returns the time for which no message of the agent must be taken.
    pub(super) fn pause(&self, agent: &str) -> Duration {
        let busy = self.lock().get(agent).copied();
        let left = busy.map(|busy| busy.saturating_duration_since(Instant::now()));
        left.unwrap_or_default().saturating_sub(MAX_BURST)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        // A map has no state between two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_later_refusals_pause_their_agent_alone() {
        let refusals = Refusals::default();
        for _ in 0..10 * 200 - 1 {
            refusals.charge("a", None);
        }
        assert_eq!(refusals.pause("a"), Duration::ZERO);
        (0..200).for_each(|_| refusals.charge("a", None));
        let pause = refusals.pause("a");
        // The test itself takes time.
        assert!(pause > Duration::from_millis(100) && pause <= Duration::from_secs(1), "{pause:?}");
        assert_eq!(refusals.pause("b"), Duration::ZERO);
    }

    /// The log grew ten times as fast by long paths as was said.
    #[test]
    fn a_long_path_costs_as_much_as_many_refusals() {
        let refusals = Refusals::default();
        let path = "\u{1}".repeat(4096);
        (0..100).for_each(|_| refusals.charge("a", Some(&path)));
        assert!(refusals.pause("a") > Duration::from_secs(10));
    }
}
