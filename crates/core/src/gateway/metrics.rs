//! Counts of what a gateway has done, for those who monitor a service.
//!
//! Labels are few and bounded: transports, operations, effects and the rules of the policy. No
//! path, no agent and no content is among them. Nothing is decided by these counts; they repeat
//! what the log has.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use portcullis_audit::{Draft, Kind};
use serde::{Deserialize, Serialize};

/// Upper bounds of the histogram's classes, in microseconds; the last class has none.
const BOUNDS: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000,
    10_000_000,
];
/// Maximum number of combinations that are counted apart; further rules count as `other`.
const MAX_COMBINATIONS: usize = 200;

/// The counts at one moment, since the gateway began to count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayMetrics {
    /// Decisions, by transport, effect and rule.
    pub decisions: Vec<RuleCount>,
    /// Times from a request to its reply, by operation.
    pub times: BTreeMap<String, Times>,
    /// Bytes of content that were disclosed.
    pub disclosed: u64,
    /// Bytes of content that were stored.
    pub stored: u64,
    /// Open sessions now; filled in by the code that creates them.
    pub sessions: u64,
    /// Requests that wait for a slot now.
    pub waiting: u64,
    /// Requests that are carried out now.
    pub running: u64,
    /// Records in the log that no checkpoint covers, as far as this gateway knows.
    pub uncovered: u64,
}

/// The number of decisions of a rule with one effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RuleCount {
    /// The transport.
    pub transport: String,
    /// `allow`, `deny` or `ask`.
    pub effect: String,
    /// The rule's id.
    pub rule: String,
    /// The number.
    pub count: u64,
}

/// A histogram of times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// The number of times in each class of [`Times::BOUNDS`], and beyond.
    pub classes: Vec<u64>,
    /// The sum of all times, in microseconds.
    pub sum: u64,
}

impl Times {
    /// The upper bounds of the classes, in microseconds.
    pub const BOUNDS: [u64; 14] = BOUNDS;
}

/// Counts decisions, times and bytes.
#[derive(Debug, Default)]
pub(super) struct Counter(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    decisions: BTreeMap<(String, String, String), u64>,
    times: BTreeMap<&'static str, Times>,
    disclosed: u64,
    stored: u64,
}

impl Counter {
    /// Counts a record.
    pub(super) fn record(&self, kind: Kind, draft: &Draft) {
        if !matches!(kind, Kind::Decision | Kind::Intent) {
            return;
        }
        let mut counts = self.lock();
        let bytes = draft.bytes.unwrap_or(0);
        match kind {
            Kind::Intent => counts.stored = counts.stored.saturating_add(bytes),
            _ if draft.result.as_deref() == Some("ok") => {
                counts.disclosed = counts.disclosed.saturating_add(bytes);
            }
            _ => {}
        }
        let Some(effect) = &draft.decision else { return };
        let transport = draft.transport.clone().unwrap_or_default();
        let rule = draft.rule.clone().unwrap_or_else(|| "none".to_owned());
        let key = (transport, effect.clone(), rule);
        let full = counts.decisions.len() >= MAX_COMBINATIONS;
        let key = match counts.decisions.contains_key(&key) || !full {
            true => key,
            false => (key.0, key.1, "other".to_owned()),
        };
        *counts.decisions.entry(key).or_default() += 1;
    }

    /// Counts a request that was answered after `time`.
    pub(super) fn answered(&self, operation: &'static str, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let class = BOUNDS.partition_point(|bound| *bound < micros);
        let mut counts = self.lock();
        let times = counts.times.entry(operation).or_default();
        times.classes.resize(BOUNDS.len() + 1, 0);
        if let Some(count) = times.classes.get_mut(class) {
            *count += 1;
        }
        times.sum = times.sum.saturating_add(micros);
    }

    /// Returns the current counts.
    pub(super) fn numbers(&self) -> GatewayMetrics {
        let counts = self.lock();
        let decided =
            |((transport, effect, rule), count): (&(String, String, String), &u64)| RuleCount {
                transport: transport.clone(),
                effect: effect.clone(),
                rule: rule.clone(),
                count: *count,
            };
        let times = counts.times.iter().map(|(name, times)| ((*name).to_owned(), times.clone()));
        GatewayMetrics {
            decisions: counts.decisions.iter().map(decided).collect(),
            times: times.collect(),
            disclosed: counts.disclosed,
            stored: counts.stored,
            ..GatewayMetrics::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // A panic elsewhere leaves plain counts behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_beyond_the_bound_count_together() {
        let counter = Counter::default();
        let draft = |rule: String| Draft {
            decision: Some("deny".to_owned()),
            transport: Some("mcp".to_owned()),
            rule: Some(rule),
            ..Draft::default()
        };
        for n in 0..MAX_COMBINATIONS + 50 {
            counter.record(Kind::Decision, &draft(format!("r{n}")));
        }
        counter.record(Kind::Decision, &draft("r0".to_owned()));
        let decisions = counter.numbers().decisions;
        assert_eq!(decisions.len(), MAX_COMBINATIONS + 1);
        let of = |rule: &str| decisions.iter().find(|one| one.rule == rule).unwrap().count;
        assert_eq!((of("r0"), of("other")), (2, 50));
    }

    #[test]
    fn a_time_is_in_its_class() {
        let counter = Counter::default();
        for micros in [50, 51, 99_999_999] {
            counter.answered("read", Duration::from_micros(micros));
        }
        let classes = counter.numbers().times["read"].classes.clone();
        assert_eq!((classes[0], classes[1], classes[BOUNDS.len()]), (1, 1, 1));
    }
}
