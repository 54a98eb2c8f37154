//! A memory budget, in bytes, for several parties.
//!
//! A party reserves bytes before it allocates them, and is queued or refused while the budget is
//! used up. Dropping the reservation returns the bytes.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::poll_fn,
    hash::Hash,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::lock;

/// A budget of bytes. Clones share it.
#[derive(Clone)]
pub struct MemoryBudget(Arc<Inner>);

struct Inner {
    total: usize,
    /// The budget of which this one is a share; that one is not a share itself.
    parent: Option<MemoryBudget>,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    /// The bytes in use; more than the total while the budget is overdrawn.
    used: usize,
    /// The waiting reservations, oldest first.
    waiting: VecDeque<Waiting>,
    next: u64,
}

struct Waiting {
    number: u64,
    bytes: usize,
    since: Instant,
    waker: Waker,
}

/// Reserved bytes, which are returned when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
    /// The reservation in the budget of which this one is a share.
    parent: Option<Box<Reservation>>,
}

impl MemoryBudget {
    /// Makes a budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        Self::with(total, None)
    }

    fn with(total: usize, parent: Option<Self>) -> Self {
        Self(Arc::new(Inner { total, parent, state: Mutex::default() }))
    }

    /// Returns a reservation of no bytes, which may grow.
    pub fn empty(&self) -> Reservation {
        let parent = self.0.parent.as_ref().map(|parent| Box::new(parent.empty()));
        Reservation { budget: self.clone(), bytes: 0, parent }
    }

    /// Reserves bytes, or the total if that is less, after earlier reservations. Dropping the
    /// future gives up the position in the queue.
    pub async fn reserve(&self, bytes: usize) -> Reservation {
        // With this order, an owner that waits for its own share does not block others.
        let mut reservation = self.reserve_own(bytes).await;
        if let Some(parent) = &self.0.parent {
            reservation.parent = Some(Box::new(parent.reserve_own(bytes).await));
        }
        reservation
    }

    async fn reserve_own(&self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.0.total);
        let mut ticket = Ticket { budget: self, bytes, number: None };
        poll_fn(|context| ticket.poll(context)).await;
        Reservation { budget: self.clone(), bytes, parent: None }
    }

    /// Charges bytes that are allocated already, even beyond the budget; later reservations wait
    /// until they are returned.
    pub fn overdraw(&self, bytes: usize) -> Reservation {
        let mut state = lock(&self.0.state);
        state.used = state.used.saturating_add(bytes);
        drop(state);
        let parent = self.0.parent.as_ref().map(|parent| Box::new(parent.overdraw(bytes)));
        Reservation { budget: self.clone(), bytes, parent }
    }

    /// Returns the waiting time of the oldest queued reservation.
    pub fn waiting_for(&self) -> Duration {
        let state = lock(&self.0.state);
        state.waiting.front().map_or(Duration::ZERO, |oldest| oldest.since.elapsed())
    }

    /// Returns the number of free bytes.
    pub fn free(&self) -> usize {
        self.0.total.saturating_sub(lock(&self.0.state).used)
    }

    fn release(&self, bytes: usize) {
        self.change(|state| state.used = state.used.saturating_sub(bytes));
    }

    /// Changes the state, and grants queued reservations for which bytes are free then.
    fn change(&self, change: impl FnOnce(&mut BudgetState)) {
        let mut state = lock(&self.0.state);
        change(&mut state);
        let mut woken = Vec::new();
        while let Some(oldest) = state.waiting.front()
            && state.used.saturating_add(oldest.bytes) <= self.0.total
        {
            state.used = state.used.saturating_add(oldest.bytes);
            woken.extend(state.waiting.pop_front().map(|oldest| oldest.waker));
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBudget").field("total", &self.0.total).finish_non_exhaustive()
    }
}

impl Reservation {
    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows to `bytes`; false, without a change, if they are not free or other reservations wait.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        let mut state = lock(&self.budget.0.state);
        let used = state.used.saturating_add(more);
        if used > self.budget.0.total || !state.waiting.is_empty() {
            return false;
        }
        state.used = used;
        drop(state);
        if self.parent.as_mut().is_some_and(|parent| !parent.try_grow(bytes)) {
            self.budget.release(more);
            return false;
        }
        self.bytes = bytes;
        true
    }

    /// Takes over the bytes of another reservation in the same budget.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes = self.bytes.saturating_add(std::mem::take(&mut other.bytes));
        match (&mut self.parent, other.parent.take()) {
            (Some(parent), Some(other)) => parent.merge(*other),
            (None, other) => self.parent = other,
            (Some(_), None) => {}
        }
    }

    /// Returns the bytes beyond `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        self.budget.release(self.bytes.saturating_sub(bytes));
        self.bytes = self.bytes.min(bytes);
        if let Some(parent) = &mut self.parent {
            parent.shrink(bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

/// A position in the queue.
struct Ticket<'a> {
    budget: &'a MemoryBudget,
    bytes: usize,
    /// Set from the first wait until the bytes are taken.
    number: Option<u64>,
}

impl Ticket<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.budget.0.state);
        if let Some(number) = self.number {
            let waiting = state.waiting.iter_mut().find(|waiting| waiting.number == number);
            if let Some(waiting) = waiting {
                waiting.waker.clone_from(context.waker());
                return Poll::Pending;
            }
            self.number = None;
            return Poll::Ready(());
        }
        let used = state.used.saturating_add(self.bytes);
        if used <= self.budget.0.total && state.waiting.is_empty() {
            state.used = used;
            return Poll::Ready(());
        }
        let (number, waker) = (state.next, context.waker().clone());
        state.next = number.wrapping_add(1);
        let (bytes, since) = (self.bytes, Instant::now());
        state.waiting.push_back(Waiting { number, bytes, since, waker });
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.budget.change(|state| {
            let place = state.waiting.iter().position(|waiting| waiting.number == number);
            match place {
                Some(place) => drop(state.waiting.remove(place)),
                // The reservation was granted, but not taken.
                None => state.used = state.used.saturating_sub(self.bytes),
            }
        });
    }
}

/// Shares of one budget, one for each present owner.
#[derive(Debug)]
pub struct MemoryShares<K> {
    all: MemoryBudget,
    each: usize,
    owners: Mutex<HashMap<K, Weak<Inner>>>,
}

impl<K: Hash + Eq> MemoryShares<K> {
    /// Makes shares by which every owner may reserve `each` bytes of `all`.
    pub fn new(all: MemoryBudget, each: usize) -> Self {
        Self { all, each, owners: Mutex::default() }
    }

    /// Returns the budget of all owners together.
    pub fn all(&self) -> &MemoryBudget {
        &self.all
    }

    /// Returns the share of `owner`, the same one as long as it is in use.
    pub fn share(&self, owner: K) -> MemoryBudget {
        let mut owners = lock(&self.owners);
        if let Some(share) = owners.get(&owner).and_then(Weak::upgrade) {
            return MemoryBudget(share);
        }
        owners.retain(|_, share| share.strong_count() > 0);
        let share = MemoryBudget::with(self.each, Some(self.all.clone()));
        owners.insert(owner, Arc::downgrade(&share.0));
        share
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("total", &self.total).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn now(budget: &MemoryBudget, bytes: usize) -> Option<Reservation> {
        poll(pin!(budget.reserve(bytes)))
    }

    #[test]
    fn a_reservation_returns_its_bytes_and_debts_are_paid_first() {
        let budget = MemoryBudget::new(10);
        let mut first = now(&budget, 4).unwrap();
        first.merge(now(&budget, 4).unwrap());
        let overdraft = budget.overdraw(5);
        assert!(now(&budget, 1).is_none() && !budget.empty().try_grow(1));
        first.shrink(4);
        // Four of 13 bytes have been returned.
        drop(now(&budget, 1).unwrap());
        assert!(now(&budget, 2).is_none());
        drop((first, overdraft));
        assert_eq!(now(&budget, 99).unwrap().bytes(), 10);
        assert_eq!(budget.free(), 10);
    }

    #[test]
    fn reservations_are_granted_in_line() {
        let budget = MemoryBudget::new(10);
        assert_eq!(budget.waiting_for(), Duration::ZERO);
        let all = now(&budget, 10).unwrap();
        let mut large = pin!(budget.reserve(9));
        let mut small = pin!(budget.reserve(1));
        assert!(poll(large.as_mut()).is_none() && poll(small.as_mut()).is_none());
        std::thread::sleep(Duration::from_millis(2));
        assert!(budget.waiting_for() >= Duration::from_millis(2));
        let mut all = all;
        all.shrink(8);
        // Two bytes are free, but an earlier reservation waits.
        assert!(poll(small.as_mut()).is_none() && !budget.empty().try_grow(1));
        drop(all);
        let small = poll(small).unwrap();
        assert!(poll(large).is_some());
        drop(small);
        assert_eq!((budget.free(), budget.waiting_for()), (10, Duration::ZERO));
    }

    #[test]
    fn giving_up_leaves_the_line_and_loses_nothing() {
        let budget = MemoryBudget::new(10);
        let all = now(&budget, 10).unwrap();
        let mut next = Box::pin(budget.reserve(1));
        let mut granted = Box::pin(budget.reserve(9));
        assert!(poll(next.as_mut()).is_none() && poll(granted.as_mut()).is_none());
        let mut last = Box::pin(budget.reserve(10));
        assert!(poll(last.as_mut()).is_none());
        drop(next);
        drop(all);
        // The bytes belong to the granted reservation by now.
        drop(granted);
        assert!(poll(last.as_mut()).is_some());
        assert_eq!(budget.free(), 10);
    }

    #[test]
    fn an_owner_that_uses_up_its_share_leaves_the_rest_to_others() {
        let shares = MemoryShares::new(MemoryBudget::new(100), 25);
        let greedy = shares.share("a");
        let held: Vec<_> = std::iter::from_fn(|| now(&greedy, 10)).collect();
        assert_eq!((held.len(), shares.all().free()), (2, 80));
        let again = shares.share("a");
        assert!(now(&again, 10).is_none() && !again.empty().try_grow(10));
        assert!(now(&shares.share("b"), 10).is_some());
        drop(held);
        assert!(now(&again, 10).is_some());
        assert_eq!(shares.all().free(), 100);
    }

    #[test]
    fn more_than_a_share_takes_all_of_it_alone() {
        let shares = MemoryShares::new(MemoryBudget::new(100), 25);
        let share = shares.share("a");
        let mut large = now(&share, 90).unwrap();
        assert_eq!((share.free(), shares.all().free()), (0, 10));
        large.shrink(20);
        assert_eq!((share.free(), shares.all().free()), (5, 80));
    }

    #[test]
    fn a_reservation_that_cannot_grow_stays_as_it_is() {
        let shares = MemoryShares::new(MemoryBudget::new(100), 60);
        let mut one = now(&shares.share("a"), 50).unwrap();
        let mut other = shares.share("b").empty();
        assert!(!other.try_grow(60) && other.try_grow(50));
        assert!(!one.try_grow(61) && !one.try_grow(60));
        assert_eq!((one.bytes(), other.bytes(), shares.all().free()), (50, 50, 0));
        drop(one);
        assert!(other.try_grow(60));
        drop(other);
        assert_eq!((shares.share("a").free(), shares.share("b").free()), (60, 60));
    }
}
