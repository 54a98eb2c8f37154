//! A bounded, closable queue between threads.
//!
//! What waits in it is bounded by weight (bytes), so a peer that does not read
//! slows its own correspondent down instead of filling memory.

use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::lock;

/// How often one that waits for room looks whether it waits in vain.
const LOOK: Duration = Duration::from_millis(250);

/// A queue whose items together weigh at most its capacity; a heavier item
/// waits until the queue is empty and then goes in alone.
pub(super) struct Lane<T> {
    state: Mutex<State<T>>,
    /// Something came in, or nothing more will.
    filled: Bell,
    /// Something was taken out, or nothing more can come in.
    emptied: Bell,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    /// Deals at once with what comes while nothing is in, or gives it back.
    shortcut: Option<Shortcut<T>>,
    /// The taker is still at what it took last.
    busy: bool,
    closed: bool,
    /// Closed, and what was in thrown away.
    discarded: bool,
    finished: bool,
}

type Shortcut<T> = Box<dyn FnMut(T) -> Option<T> + Send>;

/// A condition that costs a system call only when somebody waits for it. Used
/// under one and the same lock.
#[derive(Default)]
pub(super) struct Bell {
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Bell {
    /// Wakes one that waits. Whoever is woken and does not take what it was
    /// woken for must pass it on.
    pub(super) fn ring_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_one();
        }
    }

    /// Wakes all that wait.
    pub(super) fn ring(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for a ring; `None` when `end` has passed.
    pub(super) fn wait<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        end: Option<Instant>,
    ) -> Option<MutexGuard<'a, T>> {
        // Counted under the lock that whoever rings holds too.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let woken = wait(&self.changed, guard, end);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }
}

/// The item did not go in: the lane is closed or stayed full for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

impl<T> Lane<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let state = State {
            items: VecDeque::new(),
            weight: 0,
            shortcut: None,
            busy: false,
            closed: false,
            discarded: false,
            finished: false,
        };
        let (filled, emptied) = (Bell::default(), Bell::default());
        Self { state: Mutex::new(state), filled, emptied, capacity }
    }

    /// Lets `shortcut` deal with items that would be the only one in, so that the
    /// taker need not be woken for them; what it gives back goes in. It must not
    /// wait, and is dropped when the taker is gone.
    pub(super) fn shorten(&self, shortcut: impl FnMut(T) -> Option<T> + Send + 'static) {
        self.lock().shortcut = Some(Box::new(shortcut));
    }

    /// Puts `item` in, waiting for room.
    pub(super) fn push(&self, item: T, weight: usize) -> Result<(), Refused> {
        self.push_before(item, weight, None, || None)
    }

    /// Puts `item` in, waiting for room no longer than `timeout`.
    #[cfg(test)]
    fn push_within(&self, item: T, weight: usize, timeout: Duration) -> Result<(), Refused> {
        self.push_before(item, weight, Some(Instant::now() + timeout), || None)
    }

    /// Puts `item` in, waiting for room until `end`, and then as long as `again`
    /// gives another.
    fn push_before(
        &self,
        mut item: T,
        weight: usize,
        mut end: Option<Instant>,
        mut again: impl FnMut() -> Option<Instant>,
    ) -> Result<(), Refused> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(Refused);
            }
            if state.weight == 0 || state.weight.saturating_add(weight) <= self.capacity {
                break;
            }
            state = match self.emptied.wait(state, end) {
                Some(state) => state,
                None => {
                    end = Some(again().ok_or(Refused)?);
                    self.lock()
                }
            };
        }
        if state.items.is_empty()
            && !state.busy
            && let Some(shortcut) = &mut state.shortcut
        {
            match shortcut(item) {
                Some(rest) => item = rest,
                None => return Ok(()),
            }
        }
        let weight = weight.max(1);
        state.weight = state.weight.saturating_add(weight);
        state.items.push_back((item, weight));
        self.filled.ring();
        Ok(())
    }

    /// Whether nothing is in, nor with the taker.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.items.is_empty() && !state.busy
    }

    /// Takes the next item, waiting for one; `None` once the lane is closed
    /// and empty.
    pub(super) fn pop(&self) -> Option<T> {
        self.pop_before(None)
    }

    /// Like [`pop`](Self::pop), but waits no longer than `timeout`.
    pub(super) fn pop_within(&self, timeout: Duration) -> Option<T> {
        self.pop_before(Some(Instant::now() + timeout))
    }

    fn pop_before(&self, end: Option<Instant>) -> Option<T> {
        let mut state = self.lock();
        state.busy = false;
        loop {
            if let Some((item, weight)) = state.items.pop_front() {
                state.weight = state.weight.saturating_sub(weight);
                state.busy = true;
                self.emptied.ring();
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self.filled.wait(state, end)?;
        }
    }

    /// Lets nothing more in; what is in can still be taken.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.ring();
    }

    /// Lets nothing more in and throws away what is in.
    pub(super) fn discard(&self) {
        let mut state = self.lock();
        state.discard();
        self.ring();
    }

    /// Says that the taker has put everything where it belongs and is gone.
    pub(super) fn finish(&self) {
        let mut state = self.lock();
        state.discard();
        state.finished = true;
        state.shortcut = None;
        self.ring();
    }

    /// Waits until the taker has [finished](Self::finish); false when it did
    /// not within `timeout`, or has nothing left to finish.
    pub(super) fn wait_finished(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.finished {
            if state.discarded {
                return false;
            }
            match self.emptied.wait(state, Some(end)) {
                Some(again) => state = again,
                None => return false,
            }
        }
        true
    }

    /// Wakes everybody. Under the lock.
    fn ring(&self) {
        self.filled.ring();
        self.emptied.ring();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}

impl<T> State<T> {
    fn discard(&mut self) {
        self.closed = true;
        self.discarded = true;
        self.items.clear();
        self.weight = 0;
    }
}

impl Lane<Vec<u8>> {
    /// Puts a line in, which gets its `\n`, waiting for room; `hopeless` is asked
    /// again and again whether that is in vain.
    pub(super) fn push_line(
        &self,
        line: Vec<u8>,
        mut hopeless: impl FnMut() -> bool,
    ) -> Result<(), Refused> {
        let next = || Instant::now() + LOOK;
        self.push_line_before(line, next(), || (!hopeless()).then(next))
    }

    /// The same, waiting no longer than `timeout`.
    pub(super) fn push_line_within(&self, line: Vec<u8>, timeout: Duration) -> Result<(), Refused> {
        self.push_line_before(line, Instant::now() + timeout, || None)
    }

    fn push_line_before(
        &self,
        mut line: Vec<u8>,
        end: Instant,
        again: impl FnMut() -> Option<Instant>,
    ) -> Result<(), Refused> {
        line.push(b'\n');
        let weight = line.len();
        self.push_before(line, weight, Some(end), again)
    }
}

/// Waits for a change; `None` when `end` has passed.
pub(super) fn wait<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    end: Option<Instant>,
) -> Option<MutexGuard<'a, T>> {
    let Some(end) = end else {
        return Some(changed.wait(guard).unwrap_or_else(PoisonError::into_inner));
    };
    let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    let (guard, _) = changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    Some(guard)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicBool},
        thread,
    };

    use super::*;

    #[test]
    fn a_full_lane_holds_the_pusher_back_until_something_is_taken() {
        let lane = Lane::new(10);
        lane.push(1, 8).unwrap();
        assert_eq!(lane.push_within(2, 8, Duration::from_millis(20)), Err(Refused));
        thread::scope(|scope| {
            scope.spawn(|| lane.push(3, 8).unwrap());
            assert_eq!(lane.pop(), Some(1));
            assert_eq!(lane.pop(), Some(3));
        });
    }

    #[test]
    fn an_item_heavier_than_the_lane_goes_in_alone() {
        let lane = Lane::new(10);
        lane.push("big", 1000).unwrap();
        assert_eq!(lane.push_within("next", 1, Duration::ZERO), Err(Refused));
        assert_eq!(lane.pop(), Some("big"));
    }

    #[test]
    fn a_shortcut_is_taken_only_past_nobody() {
        let lane = Arc::new(Lane::new(10));
        let (sender, taken) = std::sync::mpsc::channel();
        let open = Arc::new(AtomicBool::new(true));
        let way = Arc::clone(&open);
        lane.shorten(move |item| match way.load(Ordering::Relaxed) {
            true => sender.send(item).err().map(|error| error.0),
            false => Some(item + 100),
        });
        lane.push(1, 1).unwrap();
        assert_eq!(taken.try_recv(), Ok(1));
        open.store(false, Ordering::Relaxed);
        assert!(lane.is_idle());
        lane.push(2, 1).unwrap();
        assert!(!lane.is_idle());
        open.store(true, Ordering::Relaxed);
        // One is in, then with the taker: nobody may overtake it.
        lane.push(3, 1).unwrap();
        assert_eq!((lane.pop(), lane.pop()), (Some(102), Some(3)));
        assert!(!lane.is_idle());
        lane.push(4, 1).unwrap();
        assert_eq!(lane.pop(), Some(4));
        assert!(taken.try_recv().is_err());
        // It is done with that when it comes for more.
        assert_eq!(lane.pop_within(Duration::ZERO), None);
        lane.push(5, 1).unwrap();
        assert_eq!(taken.try_recv(), Ok(5));
        lane.finish();
        assert!(taken.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn closing_lets_the_taker_drain_and_the_pusher_go() {
        let lane = Lane::new(10);
        lane.push(1, 10).unwrap();
        thread::scope(|scope| {
            let pusher = scope.spawn(|| lane.push(2, 10));
            thread::sleep(Duration::from_millis(10));
            lane.close();
            assert_eq!(pusher.join().unwrap(), Err(Refused));
        });
        assert_eq!(lane.pop(), Some(1));
        assert_eq!(lane.pop(), None);
        assert!(!lane.wait_finished(Duration::ZERO));
        lane.finish();
        assert!(lane.wait_finished(Duration::ZERO));
    }
}
