//! Counts of failed logins by origin.
//!
//! A random token of 256 bits cannot be guessed; the limit protects the log and the
//! broker from floods. A token that was valid a moment ago passes from any origin, so
//! that failures of others at a shared address do not lock it out. The table is
//! bounded: when it is full, new origins are counted by wider networks, and all
//! together only where these are too many as well.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use super::{BrokerNotice, Caller, Peer, TokenHash};
use crate::lock;

/// Time for which failures count, and for which an address then waits.
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Time for which a token passes as valid. The broker still checks it.
const VALID_TOKEN_TTL: Duration = Duration::from_secs(60 * 60);
/// Maximum of addresses, and of valid tokens, in the tables.
const MAX_ADDRESSES: usize = 4096;

/// The counts.
#[derive(Debug)]
pub(super) struct Throttle {
    most: u32,
    state: Mutex<FailureCounts>,
}

#[derive(Debug, Default)]
struct FailureCounts {
    failures: HashMap<OriginGroup, Failures>,
    good: HashMap<TokenHash, Instant>,
}

/// Origins that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum OriginGroup {
    Network(Peer),
    WiderNetwork(Peer),
    All,
}

#[derive(Debug)]
struct Failures {
    since: Instant,
    count: u32,
    /// Requests refused without asking the broker since the last report.
    unseen: u64,
}

impl Throttle {
    pub(super) fn new(most: u32) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// Checks if a request may go to the broker.
    ///
    /// # Errors
    /// The time that the client has to wait.
    pub(super) fn admit(&self, caller: &Caller) -> Result<(), Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        let good = state.good.get(&caller.token).is_some_and(|at| now - *at < VALID_TOKEN_TTL);
        if good {
            return Ok(());
        }
        let counted_as = state.counted_as(caller, now);
        let Some(failures) = state.failures.get_mut(&counted_as) else { return Ok(()) };
        let left = FAILURE_WINDOW.saturating_sub(now - failures.since);
        if failures.count < self.most || left.is_zero() {
            return Ok(());
        }
        failures.unseen += 1;
        Err(left)
    }

    /// Notes that the token is valid.
    pub(super) fn known(&self, caller: &Caller) {
        let now = Instant::now();
        let mut state = self.lock();
        make_room(&mut state.good, MAX_ADDRESSES, |at| now - *at < VALID_TOKEN_TTL);
        if state.good.len() < MAX_ADDRESSES {
            state.good.insert(caller.token, now);
        }
    }

    /// Notes that the token is not valid.
    pub(super) fn failed(&self, caller: &Caller) {
        let now = Instant::now();
        let mut state = self.lock();
        state.good.remove(&caller.token);
        let counted_as = state.counted_as(caller, now);
        let fresh = Failures { since: now, count: 0, unseen: 0 };
        let failures = state.failures.entry(counted_as).or_insert(fresh);
        if now - failures.since >= FAILURE_WINDOW {
            (failures.since, failures.count) = (now, 0);
        }
        failures.count = failures.count.saturating_add(1);
    }

    /// Takes the counts of requests refused without asking since the last report.
    pub(super) fn report(&self) -> Vec<BrokerNotice> {
        let mut state = self.lock();
        let take = |(counted_as, failures): (&OriginGroup, &mut Failures)| {
            let attempts = std::mem::take(&mut failures.unseen);
            let peer = match counted_as {
                OriginGroup::Network(peer) | OriginGroup::WiderNetwork(peer) => peer.clone(),
                OriginGroup::All => Peer::Address([0, 0, 0, 0].into()),
            };
            (attempts > 0).then_some(BrokerNotice::Throttled { peer, attempts })
        };
        state.failures.iter_mut().filter_map(take).collect()
    }

    fn lock(&self) -> MutexGuard<'_, FailureCounts> {
        // Plain counters stay consistent after a panic elsewhere.
        lock(&self.state)
    }
}

impl FailureCounts {
    /// Returns the key under which a caller is counted.
    fn counted_as(&mut self, caller: &Caller, now: Instant) -> OriginGroup {
        let counts =
            |failures: &Failures| now - failures.since < FAILURE_WINDOW || failures.unseen > 0;
        let network = OriginGroup::Network(caller.peer.network());
        let wider = OriginGroup::WiderNetwork(caller.peer.wider_network());
        for (counted_as, most) in [(network, MAX_ADDRESSES), (wider, 2 * MAX_ADDRESSES)] {
            if self.failures.contains_key(&counted_as) {
                return counted_as;
            }
            make_room(&mut self.failures, most, counts);
            if self.failures.len() < most {
                return counted_as;
            }
        }
        OriginGroup::All
    }
}

/// Removes entries that do not count any more, when the table is full.
fn make_room<K: Eq + Hash, V>(table: &mut HashMap<K, V>, most: usize, counts: impl Fn(&V) -> bool) {
    if table.len() >= most {
        table.retain(|_, value| counts(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(token: &str, address: [u16; 8]) -> Caller {
        let peer = Peer::Address(address.into());
        Caller { token: TokenHash::of(token), peer }
    }

    #[test]
    fn after_too_many_failures_an_address_waits_but_a_known_token_does_not() {
        let throttle = Throttle::new(3);
        let bad = caller("bad", [1, 2, 3, 4, 5, 6, 7, 8]);
        for _ in 0..3 {
            throttle.admit(&bad).unwrap();
            throttle.failed(&bad);
        }
        assert!(throttle.admit(&bad).is_err());
        // The same network, whatever the address.
        let neighbour = caller("other", [1, 2, 3, 4, 9, 9, 9, 9]);
        assert!(throttle.admit(&neighbour).is_err());
        throttle.admit(&caller("other", [1, 2, 3, 5, 5, 6, 7, 8])).unwrap();
        throttle.known(&neighbour);
        throttle.admit(&neighbour).unwrap();
        let BrokerNotice::Throttled { attempts, .. } = throttle.report().pop().unwrap();
        assert_eq!((attempts, throttle.report().len()), (2, 0));
    }

    #[test]
    fn a_full_table_locks_out_no_other_networks() {
        let throttle = Throttle::new(1);
        // A network of 48 bits has more networks of 64 bits than the table has entries.
        for n in 0..2 * u16::try_from(MAX_ADDRESSES).unwrap() {
            throttle.failed(&caller("bad", [1, 2, 3, n, 0, 0, 0, 0]));
        }
        assert_eq!(throttle.lock().failures.len(), MAX_ADDRESSES + 1);
        assert!(throttle.admit(&caller("good", [1, 2, 3, 0xffff, 0, 0, 0, 0])).is_err());
        throttle.admit(&caller("good", [1, 2, 4, 0, 0, 0, 0, 0])).unwrap();
        for address in [[192, 0, 2, 1], [127, 0, 0, 1]] {
            let peer = Peer::Address(address.into());
            throttle.admit(&Caller { token: TokenHash::of("good"), peer }).unwrap();
        }
        throttle.admit(&Caller { token: TokenHash::of("good"), peer: Peer::User(1) }).unwrap();
    }

    #[test]
    fn the_table_is_bounded_and_strangers_then_count_together() {
        let throttle = Throttle::new(1);
        for n in 0..3 * u16::try_from(MAX_ADDRESSES).unwrap() {
            throttle.failed(&caller("bad", [n, 0, 0, 0, 0, 0, 0, 0]));
        }
        assert_eq!(throttle.lock().failures.len(), 2 * MAX_ADDRESSES + 1);
        assert!(throttle.admit(&caller("bad", [0xffff, 1, 0, 0, 0, 0, 0, 0])).is_err());
    }
}
