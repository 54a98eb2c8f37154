//! The memory that the guests of one gate take together.
//!
//! All guests are one agent's, which may open many connections and leave lines
//! unfinished, calls waiting and replies unread on each. What they send is counted
//! apart from what is told to them: whoever waits to be told something holds what it
//! sent, and must not wait for that.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use crate::lock;

/// Most bytes of lines that are not whole yet and of requests that are not answered.
const SENT: usize = 192 << 20;
/// Most bytes of replies that were not taken, before no more calls begin.
const TOLD: usize = 64 << 20;
/// Calls that are carried out at once: the reply of each may be large.
pub(crate) const PLACES: usize = 4;
/// What a call that begins must find free for its reply.
const REPLY: usize = 1 << 20;
/// How long one waits for memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// The memory of all guests.
#[derive(Debug)]
pub(crate) struct Stock {
    pub(crate) sent: Arc<Purse>,
    pub(crate) told: Arc<Purse>,
    places: Arc<Semaphore>,
}

/// A number of bytes.
pub(crate) struct Purse {
    free: Semaphore,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What was taken beyond what there was.
    debt: usize,
    /// Since when each of those who wait does, by their number.
    waiting: BTreeMap<u64, Instant>,
    next: u64,
}

/// Bytes that were taken, given back when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    purse: Arc<Purse>,
    bytes: usize,
}

/// What a call holds while it is carried out, until its reply is on its way.
#[derive(Debug)]
pub(crate) struct Place {
    _place: OwnedSemaphorePermit,
    _reply: Hold,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Default for Stock {
    fn default() -> Self {
        Self {
            sent: Purse::new(SENT),
            told: Purse::new(TOLD),
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }
}

impl Stock {
    /// Waits for a call's turn, and for room for its reply; nothing when there is none
    /// for too long.
    pub(crate) async fn enter(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(Place { _place: place, _reply: self.told.take(REPLY).await?, _turn: None })
    }

    /// For how long somebody has been waiting for memory.
    pub(crate) fn short_for(&self) -> Duration {
        self.sent.short_for().max(self.told.short_for())
    }
}

impl Place {
    /// The same with the turn that its client gave it.
    pub(crate) fn of(self, turn: OwnedSemaphorePermit) -> Self {
        Self { _turn: Some(turn), ..self }
    }
}

impl Purse {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { free: Semaphore::new(most), most, state: Mutex::default() })
    }

    /// Takes so many bytes, or all that there are if that is less, in line behind those
    /// who came before; nothing when they are not free in time.
    pub(crate) async fn take(self: &Arc<Self>, bytes: usize) -> Option<Hold> {
        let bytes = bytes.min(self.most);
        let permits = u32::try_from(bytes).ok()?;
        let taken = match self.free.try_acquire_many(permits) {
            Ok(taken) => taken,
            Err(_) => {
                let _waits = Waits::begin(self);
                timeout(PATIENCE, self.free.acquire_many(permits)).await.ok()?.ok()?
            }
        };
        taken.forget();
        Some(Hold { purse: Arc::clone(self), bytes })
    }

    /// Counts bytes that are there already, whether or not there is room for them: who
    /// comes next waits until they are gone.
    pub(crate) fn owe(self: &Arc<Self>, bytes: usize) -> Hold {
        let mut state = lock(&self.state);
        let taken = self.free.forget_permits(bytes);
        state.debt = state.debt.saturating_add(bytes.saturating_sub(taken));
        Hold { purse: Arc::clone(self), bytes }
    }

    fn give_back(&self, bytes: usize) {
        let mut state = lock(&self.state);
        let paid = state.debt.min(bytes);
        state.debt = state.debt.saturating_sub(paid);
        self.free.add_permits(bytes.saturating_sub(paid));
    }

    fn short_for(&self) -> Duration {
        let state = lock(&self.state);
        state.waiting.first_key_value().map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

impl fmt::Debug for Purse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Purse").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Hold {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes what another one holds.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.bytes = self.bytes.saturating_add(std::mem::take(&mut other.bytes));
    }

    /// Gives back what is over.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.purse.give_back(self.bytes.saturating_sub(bytes));
        self.bytes = self.bytes.min(bytes);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.purse.give_back(self.bytes);
    }
}

/// One that waits for memory.
struct Waits<'a>(&'a Purse, u64);

impl<'a> Waits<'a> {
    fn begin(purse: &'a Purse) -> Self {
        let mut state = lock(&purse.state);
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.waiting.insert(number, Instant::now());
        Self(purse, number)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waiting.remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap().block_on(test)
    }

    #[test]
    fn what_is_taken_is_given_back_and_debts_are_paid_first() {
        block_on(async {
            let purse = Purse::new(10);
            let mut first = purse.take(4).await.unwrap();
            first.merge(purse.take(4).await.unwrap());
            let owed = purse.owe(5);
            assert!(purse.take(1).await.is_none());
            first.shrink(4);
            // Four came back, of which three were owed.
            drop(purse.take(1).await.unwrap());
            assert!(purse.take(2).await.is_none());
            drop((first, owed));
            assert_eq!(purse.take(99).await.unwrap().bytes(), 10);
        });
    }

    #[test]
    fn who_waits_is_served_in_line_and_not_for_ever() {
        block_on(async {
            let purse = Purse::new(10);
            let all = purse.take(10).await.unwrap();
            let theirs = Arc::clone(&purse);
            let large = tokio::spawn(async move { theirs.take(9).await.is_some() });
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(purse.short_for(), Duration::from_secs(5));
            let theirs = Arc::clone(&purse);
            let small = tokio::spawn(async move { theirs.take(5).await.is_some() });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!large.is_finished() && !small.is_finished());
            drop(all);
            assert!(large.await.unwrap() && small.await.unwrap());
            let _all = purse.take(10).await.unwrap();
            assert!(purse.take(1).await.is_none());
            assert_eq!(purse.short_for(), Duration::ZERO);
        });
    }

    #[test]
    fn a_call_has_a_place_until_its_reply_is_on_its_way() {
        block_on(async {
            let stock = Stock::default();
            let mut places = Vec::new();
            for _ in 0..PLACES {
                places.push(stock.enter().await.unwrap());
            }
            assert!(timeout(Duration::from_secs(90), stock.enter()).await.is_err());
            places.pop();
            let unread = stock.told.owe(TOLD);
            assert!(stock.enter().await.is_none());
            drop(unread);
            assert!(stock.enter().await.is_some());
        });
    }
}
