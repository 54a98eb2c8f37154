//! The scheduler of a shared gateway.
//!
//! A bounded number of requests is carried out at once. The others wait in queues, one for each
//! session of each agent. The next slot goes to the agent, and of it to the session, that has
//! waited longest since its last one. So a flood of requests delays only its own session. The
//! requests that an agent may have in the queues, start in a second and the bytes that it may move
//! in a second are bounded; a request past that is refused at once.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::{leaky_bucket::LeakyBucket, lock::lock};
use crate::{model::Session, policy::Decision};

/// The quotas of a shared gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLimits {
    /// Requests that are carried out at once.
    pub slots: usize,
    /// Requests of one session that are carried out at once.
    pub per_session: usize,
    /// Requests of one agent that begin in a second.
    pub requests_per_second: u64,
    /// Bytes of content that one agent reads or writes in a second.
    pub bytes_per_second: u64,
    /// Requests of one agent that wait or are carried out.
    pub concurrent: usize,
    /// Subscriptions to changes that one agent has at once.
    pub watches: usize,
}

/// The scheduler.
#[derive(Debug)]
pub(super) struct Scheduler {
    shares: SharedLimits,
    state: Mutex<SchedulerState>,
    /// Locked while a subscription begins.
    watching: Mutex<()>,
    /// Locked by an agent's next subscription, by agent.
    next_to_watch: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

#[derive(Debug)]
struct SchedulerState {
    free: usize,
    /// The next agent comes first; likewise its sessions.
    queues: VecDeque<AgentQueue>,
    /// Number of slots of each session.
    taken: HashMap<String, usize>,
    accounts: HashMap<String, Account>,
}

#[derive(Debug)]
struct AgentQueue {
    agent: String,
    sessions: VecDeque<(String, VecDeque<Arc<Waiter>>)>,
}

/// The use of its quotas by an agent.
#[derive(Debug)]
struct Account {
    inside: usize,
    requests: LeakyBucket,
    bytes: LeakyBucket,
}

/// A waiting request.
#[derive(Debug, Default)]
struct Waiter {
    called: Mutex<bool>,
    called_signal: Condvar,
}

/// A slot; the next request begins when it is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct SchedulerSlot<'a> {
    slots: &'a Scheduler,
    agent: &'a str,
    session: &'a str,
}

impl Scheduler {
    pub(super) fn new(shares: SharedLimits) -> Self {
        let state = SchedulerState {
            free: shares.slots.max(1),
            queues: VecDeque::new(),
            taken: HashMap::new(),
            accounts: HashMap::new(),
        };
        Self {
            shares,
            state: Mutex::new(state),
            watching: Mutex::default(),
            next_to_watch: Mutex::default(),
        }
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// A denial when the agent is over a quota.
    pub(super) fn enter<'a>(&'a self, session: &'a Session) -> Result<SchedulerSlot<'a>, Decision> {
        self.enter_with(session, 1)
    }

    /// Waits for one slot for `requests` requests. Each counts; more than may begin in a second may
    /// begin only when the bucket is empty.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub(super) fn enter_with<'a>(
        &'a self,
        session: &'a Session,
        requests: usize,
    ) -> Result<SchedulerSlot<'a>, Decision> {
        let (slot, waiter) = {
            let mut state = lock(&self.state);
            self.admit(&mut state, session.agent.as_str(), requests, Instant::now())?;
            let slot =
                SchedulerSlot { slots: self, agent: session.agent.as_str(), session: &session.id };
            let waiter = Arc::new(Waiter::default());
            state.queue(slot.agent, slot.session, Arc::clone(&waiter));
            state.call(self.shares.per_session);
            // From here on, dropping the slot gives the counts back.
            (slot, waiter)
        };
        waiter.wait();
        Ok(slot)
    }

    /// Returns the lock that an agent's subscription takes before its slot: it may walk the whole
    /// workspace, and the agent's other subscriptions wait for it without slots.
    pub(super) fn next_to_watch(&self, agent: &str) -> Arc<Mutex<()>> {
        Arc::clone(lock(&self.next_to_watch).entry(agent.to_owned()).or_default())
    }

    /// Admits a subscription of an agent that has as many already as `has` returns. No other begins
    /// while the returned guard is held, because two could pass the same check.
    ///
    /// # Errors
    /// A denial when the agent has as many subscriptions as it may.
    pub(super) fn watch(
        &self,
        has: impl FnOnce() -> usize,
    ) -> Result<MutexGuard<'_, ()>, Decision> {
        let alone = lock(&self.watching);
        if has() >= self.shares.watches {
            return Err(too_much("watches", "too many subscriptions to changes"));
        }
        Ok(alone)
    }

    /// Returns the number of requests that wait and that have a slot.
    pub(super) fn count(&self) -> (u64, u64) {
        let state = lock(&self.state);
        let waiting = |queue: &AgentQueue| {
            queue.sessions.iter().map(|(_, waiters)| waiters.len()).sum::<usize>()
        };
        let waiting: usize = state.queues.iter().map(waiting).sum();
        let taken: usize = state.taken.values().sum();
        (u64::try_from(waiting).unwrap_or(u64::MAX), u64::try_from(taken).unwrap_or(u64::MAX))
    }

    fn admit(
        &self,
        state: &mut SchedulerState,
        agent: &str,
        requests: usize,
        now: Instant,
    ) -> Result<(), Decision> {
        // Agents are the operator's, so there are not many of them.
        let SharedLimits { requests_per_second, bytes_per_second, concurrent, .. } = self.shares;
        let account = state.accounts.entry(agent.to_owned()).or_insert_with(|| Account {
            inside: 0,
            requests: LeakyBucket::new(requests_per_second, now),
            bytes: LeakyBucket::new(bytes_per_second, now),
        });
        if account.inside >= concurrent {
            return Err(too_much("concurrentRequests", "too many requests at once"));
        }
        if account.bytes.is_full(now) {
            return Err(too_much("bytesPerSecond", "too many bytes a second"));
        }
        let requests = u64::try_from(requests).unwrap_or(u64::MAX);
        if !account.requests.try_add(requests, now) {
            return Err(too_much("requestsPerSecond", "too many requests a second"));
        }
        account.inside += 1;
        Ok(())
    }
}

fn too_much(limit: &str, reason: &str) -> Decision {
    Decision::built_in_denial(&format!("serve.limits.{limit}"), reason)
}

impl SchedulerState {
    fn queue(&mut self, agent: &str, session: &str, waiter: Arc<Waiter>) {
        if !self.queues.iter().any(|queue| queue.agent == agent) {
            self.queues
                .push_back(AgentQueue { agent: agent.to_owned(), sessions: VecDeque::new() });
        }
        let Some(queue) = self.queues.iter_mut().find(|queue| queue.agent == agent) else { return };
        match queue.sessions.iter_mut().find(|(id, _)| id == session) {
            Some((_, waiters)) => waiters.push_back(waiter),
            None => queue.sessions.push_back((session.to_owned(), VecDeque::from([waiter]))),
        }
    }

    /// Gives free slots to the next requests.
    fn call(&mut self, per_session: usize) {
        while self.free > 0 && self.call_one(per_session) {
            self.free -= 1;
        }
    }

    fn call_one(&mut self, per_session: usize) -> bool {
        for nth in 0..self.queues.len() {
            let Some(queue) = self.queues.get_mut(nth) else { return false };
            let taken = &self.taken;
            let may = |(id, _): &(String, _)| taken.get(id).copied().unwrap_or(0) < per_session;
            let Some(at) = queue.sessions.iter().position(may) else { continue };
            let Some((id, mut waiters)) = queue.sessions.remove(at) else { return false };
            let called = waiters.pop_front();
            *self.taken.entry(id.clone()).or_default() += 1;
            if !waiters.is_empty() {
                queue.sessions.push_back((id, waiters));
            }
            // Moves the agent behind all others.
            if let Some(queue) = self.queues.remove(nth)
                && !queue.sessions.is_empty()
            {
                self.queues.push_back(queue);
            }
            if let Some(waiter) = called {
                waiter.call();
            }
            return true;
        }
        false
    }
}

impl SchedulerSlot<'_> {
    /// Counts the bytes that the request read or wrote.
    pub(super) fn charge(&self, bytes: u64) {
        let mut state = lock(&self.slots.state);
        if let Some(account) = state.accounts.get_mut(self.agent) {
            account.bytes.add(bytes, Instant::now());
        }
    }
}

impl Drop for SchedulerSlot<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.slots.state);
        if let Some(account) = state.accounts.get_mut(self.agent) {
            account.inside = account.inside.saturating_sub(1);
        }
        if let Some(taken) = state.taken.get_mut(self.session) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                state.taken.remove(self.session);
            }
        }
        state.free += 1;
        state.call(self.slots.shares.per_session);
    }
}

impl Waiter {
    fn call(&self) {
        *lock(&self.called) = true;
        self.called_signal.notify_one();
    }

    fn wait(&self) {
        let mut called = lock(&self.called);
        while !*called {
            called = self.called_signal.wait(called).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;
    use crate::model::Transport;

    fn session(agent: &str, id: &str) -> Session {
        let (agent, user) = (agent.parse().unwrap(), "me".to_owned());
        Session { id: id.to_owned(), agent, user, transport: Transport::Mcp, acp: None }
    }

    fn shares(slots: usize) -> SharedLimits {
        SharedLimits {
            slots,
            per_session: slots,
            requests_per_second: 1_000_000,
            bytes_per_second: 1 << 40,
            concurrent: 1_000,
            watches: 1_000,
        }
    }

    #[test]
    fn one_that_floods_waits_behind_those_that_do_not() {
        let slots = Scheduler::new(shares(1));
        let (flood, calm) = (session("flood", "f"), session("calm", "c"));
        let (say, hear) = mpsc::channel();
        thread::scope(|scope| {
            let first = slots.enter(&flood).unwrap();
            for _ in 0..20 {
                let (say, flood) = (say.clone(), &flood);
                let slots = &slots;
                scope.spawn(move || {
                    let _slot = slots.enter(flood).unwrap();
                    say.send("flood").unwrap();
                });
            }
            while slots.count().0 < 20 {
                thread::yield_now();
            }
            let say = say.clone();
            let (slots, calm) = (&slots, &calm);
            scope.spawn(move || {
                let _slot = slots.enter(calm).unwrap();
                say.send("calm").unwrap();
            });
            while slots.count().0 < 21 {
                thread::yield_now();
            }
            drop(first);
        });
        drop(say);
        let order: Vec<_> = hear.iter().collect();
        assert_eq!(order.len(), 21);
        assert!(order.iter().position(|who| *who == "calm").unwrap() <= 1, "{order:?}");
        assert_eq!(slots.count(), (0, 0));
    }

    #[test]
    fn a_session_has_no_more_turns_than_its_own() {
        let slots = Scheduler::new(SharedLimits { per_session: 1, ..shares(2) });
        let (one, other) = (session("a", "1"), session("a", "2"));
        let held = slots.enter(&one).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(slots.enter(&one).unwrap()));
            while slots.count().0 < 1 {
                thread::yield_now();
            }
            // The other session's slot is free all the while.
            drop(slots.enter(&other).unwrap());
            assert_eq!(slots.count(), (1, 1));
            drop(held);
        });
    }

    #[test]
    fn more_than_a_share_is_refused_and_time_gives_it_back() {
        let asks = session("a", "1");
        let slots = Scheduler::new(SharedLimits { concurrent: 1, ..shares(4) });
        let held = slots.enter(&asks).unwrap();
        let refused = slots.enter(&asks).unwrap_err();
        assert_eq!(refused.rule(), "serve.limits.concurrentRequests");
        slots.enter(&session("b", "2")).map(drop).unwrap();
        held.charge(1 << 50);
        drop(held);
        assert_eq!(slots.enter(&asks).unwrap_err().rule(), "serve.limits.bytesPerSecond");
        let slots = Scheduler::new(SharedLimits { requests_per_second: 2, ..shares(4) });
        let now = Instant::now();
        let mut state = lock(&slots.state);
        let begun = |state: &mut SchedulerState, at| {
            (0..9).filter(|_| slots.admit(state, "a", 1, at).is_ok()).count()
        };
        assert_eq!(begun(&mut state, now), 2);
        assert_eq!(begun(&mut state, now + Duration::from_millis(500)), 1);
        assert_eq!(begun(&mut state, now + Duration::from_secs(9)), 2);
        // Six at once are three seconds' worth.
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(slots.admit(&mut state, "a", 6, later(9)).is_err());
        slots.admit(&mut state, "a", 6, later(20)).unwrap();
        assert_eq!(begun(&mut state, later(22)), 0);
        assert_eq!(begun(&mut state, later(30)), 2);
    }
}
