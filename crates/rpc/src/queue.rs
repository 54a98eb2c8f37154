//! A bounded, closable queue between threads.
//!
//! Its items are bounded by weight (bytes), so that a peer that does not read slows its
//! correspondent down instead of filling memory.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::lock;

/// Interval at which a sender that waits for room checks whether to give up.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A queue whose items together weigh at most its capacity. A heavier item waits until the queue is
/// empty and then enters alone. The item that the receiver works on takes no room.
pub struct BoundedQueue<T> {
    state: Mutex<QueueState<T>>,
    /// An item was added, or no more will be.
    filled: Notify,
    /// There is more room, or no more items can be added.
    emptied: Notify,
    capacity: usize,
}

struct QueueState<T> {
    items: VecDeque<(T, usize)>,
    /// The weight of the items.
    weight: usize,
    /// Takes items at once while the queue is empty, or returns them.
    shortcut: Option<Shortcut<T>>,
    /// The weight of the item that the receiver still works on.
    received: usize,
    closed: bool,
    /// True if it is closed and its items were dropped.
    discarded: bool,
    finished: bool,
}

type Shortcut<T> = Box<dyn FnMut(T) -> Option<T> + Send>;

/// A condition variable that makes a system call only while a thread waits for it. All uses of one
/// are under the same lock.
#[derive(Debug, Default)]
pub struct Notify {
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Notify {
    /// Wakes one waiting thread. A woken thread that does not use the reason must pass it on.
    pub fn notify_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_one();
        }
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for a notification; `None` if the `deadline` has passed.
    pub fn wait<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'a, T>> {
        // The notifier holds the same lock, so it sees the count.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let woken = wait(&self.changed, guard, deadline);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }
}

fn wait<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> Option<MutexGuard<'a, T>> {
    let Some(deadline) = deadline else {
        return Some(changed.wait(guard).unwrap_or_else(PoisonError::into_inner));
    };
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    let (guard, _) = changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    Some(guard)
}

/// The item was not added: the queue is closed or stayed full for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejected;

impl<T> BoundedQueue<T> {
    /// Makes an empty queue.
    pub fn new(capacity: usize) -> Self {
        let state = QueueState {
            items: VecDeque::new(),
            weight: 0,
            shortcut: None,
            received: 0,
            closed: false,
            discarded: false,
            finished: false,
        };
        let (filled, emptied) = (Notify::default(), Notify::default());
        Self { state: Mutex::new(state), filled, emptied, capacity }
    }

    /// Sets a `shortcut` that takes an item which would be the only one, so that the receiver need
    /// not wake up for it; an item that it returns is added. It must not block, and is dropped when
    /// the receiver has finished.
    pub fn set_shortcut(&self, shortcut: impl FnMut(T) -> Option<T> + Send + 'static) {
        self.lock().shortcut = Some(Box::new(shortcut));
    }

    /// Adds an item, waiting for room.
    ///
    /// # Errors
    /// If the queue is closed.
    pub fn push(&self, item: T, weight: usize) -> Result<(), Rejected> {
        self.push_before(item, weight, None, || None)
    }

    /// Adds an item, even beyond the capacity.
    ///
    /// # Errors
    /// If the queue is closed.
    pub fn push_over(&self, item: T, weight: usize) -> Result<(), Rejected> {
        let state = self.lock();
        if state.closed {
            return Err(Rejected);
        }
        self.insert(state, item, weight);
        Ok(())
    }

    /// Adds an item, waiting for room until the `deadline`, and then as long as `again` returns
    /// another one.
    fn push_before(
        &self,
        item: T,
        weight: usize,
        mut deadline: Option<Instant>,
        mut again: impl FnMut() -> Option<Instant>,
    ) -> Result<(), Rejected> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(Rejected);
            }
            if state.weight == 0 || state.weight.saturating_add(weight) <= self.capacity {
                break;
            }
            state = match self.emptied.wait(state, deadline) {
                Some(state) => state,
                None => {
                    deadline = Some(again().ok_or(Rejected)?);
                    self.lock()
                }
            };
        }
        self.insert(state, item, weight);
        Ok(())
    }

    fn insert(&self, mut state: MutexGuard<'_, QueueState<T>>, mut item: T, weight: usize) {
        if state.is_idle()
            && let Some(shortcut) = &mut state.shortcut
        {
            match shortcut(item) {
                Some(rest) => item = rest,
                None => return,
            }
        }
        let weight = weight.max(1);
        state.weight = state.weight.saturating_add(weight);
        state.items.push_back((item, weight));
        self.filled.notify_all();
    }

    /// True if there is no item, and the receiver works on none.
    pub fn is_idle(&self) -> bool {
        self.lock().is_idle()
    }

    /// True while the queue is open and the items, including the one that the receiver works on,
    /// weigh `weight` or more.
    pub fn holds(&self, weight: usize) -> bool {
        self.lock().holds(weight)
    }

    /// Waits until they weigh less than the capacity, or the queue is closed.
    pub fn wait_for_room(&self) {
        let mut state = self.lock();
        while state.holds(self.capacity) {
            match self.emptied.wait(state, None) {
                Some(again) => state = again,
                None => return,
            }
        }
    }

    /// Takes the next item, waiting for one; `None` once the queue is closed and empty.
    pub fn pop(&self) -> Option<T> {
        self.pop_before(None)
    }

    /// Takes the next item, waiting at most `timeout`.
    pub fn pop_within(&self, timeout: Duration) -> Option<T> {
        self.pop_before(Some(Instant::now() + timeout))
    }

    fn pop_before(&self, deadline: Option<Instant>) -> Option<T> {
        let mut state = self.lock();
        let was_idle = std::mem::take(&mut state.received) == 0;
        if !was_idle && state.items.is_empty() {
            self.emptied.notify_all();
        }
        loop {
            if let Some((item, weight)) = state.items.pop_front() {
                state.weight = state.weight.saturating_sub(weight);
                state.received = weight;
                self.emptied.notify_all();
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self.filled.wait(state, deadline)?;
        }
    }

    /// Closes the queue; the items in it can still be taken.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.notify_all();
    }

    /// Closes the queue and drops its items.
    pub fn discard(&self) {
        let mut state = self.lock();
        state.discard();
        self.notify_all();
    }

    /// Reports that the receiver has processed all items and ends.
    pub fn finish(&self) {
        let mut state = self.lock();
        state.discard();
        state.finished = true;
        state.shortcut = None;
        self.notify_all();
    }

    /// Waits until the receiver has [finished](Self::finish); false if it has not within `timeout`,
    /// or if items were dropped.
    pub fn wait_finished(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.finished {
            if state.discarded {
                return false;
            }
            match self.emptied.wait(state, Some(deadline)) {
                Some(again) => state = again,
                None => return false,
            }
        }
        true
    }

    /// Wakes all threads. The caller holds the lock.
    fn notify_all(&self) {
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        lock(&self.state)
    }
}

impl<T> fmt::Debug for BoundedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedQueue").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl<T> QueueState<T> {
    fn is_idle(&self) -> bool {
        self.items.is_empty() && self.received == 0
    }

    fn holds(&self, weight: usize) -> bool {
        !self.closed && self.weight.saturating_add(self.received) >= weight
    }

    fn discard(&mut self) {
        self.closed = true;
        self.discarded = true;
        self.items.clear();
        self.weight = 0;
    }
}

impl BoundedQueue<Vec<u8>> {
    /// Adds a line with a `\n`, waiting for room until `hopeless`, which is called repeatedly, is
    /// true.
    ///
    /// # Errors
    /// If the queue is closed or `hopeless` is true.
    pub fn push_line(
        &self,
        line: Vec<u8>,
        mut hopeless: impl FnMut() -> bool,
    ) -> Result<(), Rejected> {
        let next = || Instant::now() + POLL_INTERVAL;
        self.push_line_before(line, next(), || (!hopeless()).then(next))
    }

    /// Adds a line with a `\n`, waiting at most `timeout`.
    ///
    /// # Errors
    /// If the queue is closed or stays full.
    pub fn push_line_within(&self, line: Vec<u8>, timeout: Duration) -> Result<(), Rejected> {
        self.push_line_before(line, Instant::now() + timeout, || None)
    }

    fn push_line_before(
        &self,
        mut line: Vec<u8>,
        deadline: Instant,
        again: impl FnMut() -> Option<Instant>,
    ) -> Result<(), Rejected> {
        line.push(b'\n');
        let weight = line.len();
        self.push_before(line, weight, Some(deadline), again)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicBool},
        thread,
    };

    use super::*;

    #[test]
    fn a_full_queue_holds_the_sender_back_until_an_item_is_taken() {
        let queue = BoundedQueue::new(10);
        queue.push(1, 8).unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        assert_eq!(queue.push_before(2, 8, Some(deadline), || None), Err(Rejected));
        thread::scope(|scope| {
            scope.spawn(|| queue.push(3, 8).unwrap());
            assert_eq!(queue.pop(), Some(1));
            assert_eq!(queue.pop(), Some(3));
        });
    }

    #[test]
    fn an_item_heavier_than_the_capacity_goes_in_alone() {
        let queue = BoundedQueue::new(10);
        queue.push("big", 1000).unwrap();
        assert_eq!(queue.push_before("next", 1, Some(Instant::now()), || None), Err(Rejected));
        assert_eq!(queue.pop(), Some("big"));
    }

    #[test]
    fn a_shortcut_takes_items_only_past_nobody() {
        let queue = Arc::new(BoundedQueue::new(10));
        let (sender, taken) = std::sync::mpsc::channel();
        let open = Arc::new(AtomicBool::new(true));
        let way = Arc::clone(&open);
        queue.set_shortcut(move |item| match way.load(Ordering::Relaxed) {
            true => sender.send(item).err().map(|error| error.0),
            false => Some(item + 100),
        });
        queue.push(1, 1).unwrap();
        assert_eq!(taken.try_recv(), Ok(1));
        open.store(false, Ordering::Relaxed);
        assert!(queue.is_idle());
        queue.push(2, 1).unwrap();
        assert!(!queue.is_idle());
        open.store(true, Ordering::Relaxed);
        // One item is queued or with the receiver, so later ones must not overtake it.
        queue.push(3, 1).unwrap();
        assert_eq!((queue.pop(), queue.pop()), (Some(102), Some(3)));
        assert!(!queue.is_idle());
        queue.push(4, 1).unwrap();
        assert_eq!(queue.pop(), Some(4));
        assert!(taken.try_recv().is_err());
        // The receiver is done with it when it asks for the next one.
        assert_eq!(queue.pop_within(Duration::ZERO), None);
        queue.push(5, 1).unwrap();
        assert_eq!(taken.try_recv(), Ok(5));
        queue.finish();
        assert!(taken.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn closing_lets_the_receiver_drain_and_the_sender_go() {
        let queue = BoundedQueue::new(10);
        queue.push(1, 10).unwrap();
        thread::scope(|scope| {
            let pusher = scope.spawn(|| queue.push(2, 10));
            thread::sleep(Duration::from_millis(10));
            queue.close();
            assert_eq!(pusher.join().unwrap(), Err(Rejected));
        });
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.pop(), None);
        assert!(!queue.wait_finished(Duration::ZERO));
        queue.finish();
        assert!(queue.wait_finished(Duration::ZERO));
    }

    #[test]
    fn items_over_the_capacity_are_seen_until_the_receiver_is_done_with_them() {
        let queue = BoundedQueue::new(10);
        queue.push_over(1, 8).unwrap();
        assert!(!queue.holds(10));
        queue.push_over(2, 80).unwrap();
        assert!(queue.holds(88));
        assert_eq!((queue.pop(), queue.holds(88)), (Some(1), true));
        assert_eq!((queue.pop(), queue.holds(80), queue.holds(81)), (Some(2), true, false));
        assert_eq!((queue.pop_within(Duration::ZERO), queue.holds(1)), (None, false));
        queue.wait_for_room();
        queue.close();
        assert_eq!((queue.push_over(3, 1), queue.holds(0)), (Err(Rejected), false));
    }
}
