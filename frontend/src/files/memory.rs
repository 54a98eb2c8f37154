//! Memory for large messages: so much for all clients together, and for the
//! clients of one agent no more than a part of it. Who does not take its replies
//! keeps itself waiting, and nobody else.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{lock, model::AgentName};

/// Messages up to this size, in bytes, are not counted.
const SMALL: usize = 64 * 1024;
/// What a message takes while it is dealt with, at most, for each of its bytes:
/// itself, the content in it, and what becomes of that.
pub(super) const SHARE: usize = 3;
/// The unit in which memory is counted, in bytes.
const UNIT: usize = 1024;
/// An agent may have one of so many parts.
const PARTS: usize = 4;

/// All that there is.
#[derive(Debug)]
pub(super) struct Memory {
    all: Stock,
    agents: Mutex<HashMap<AgentName, Weak<Semaphore>>>,
}

/// What the clients of one agent may have.
#[derive(Debug)]
pub(super) struct Share {
    own: Stock,
    all: Stock,
}

/// What one message has.
#[derive(Debug)]
pub(super) struct Room {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

#[derive(Debug, Clone)]
struct Stock {
    units: usize,
    left: Arc<Semaphore>,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> Self {
        Self { all: Stock::new(bytes / UNIT), agents: Mutex::default() }
    }

    /// The share of an agent.
    pub(super) fn of(&self, agent: &AgentName) -> Share {
        let mut agents = lock(&self.agents);
        let mut own = Stock::new(self.all.units / PARTS);
        match agents.get(agent).and_then(Weak::upgrade) {
            Some(left) => own.left = left,
            None => {
                agents.retain(|_, left| left.strong_count() > 0);
                agents.insert(agent.clone(), Arc::downgrade(&own.left));
            }
        }
        Share { own, all: self.all.clone() }
    }
}

impl Share {
    /// Waits until a message of `length` bytes may be in memory; one that is not
    /// counted needs no room.
    pub(super) async fn room(&self, length: usize) -> Option<Room> {
        if length <= SMALL {
            return None;
        }
        let units = length.saturating_mul(SHARE) / UNIT;
        // In this order: who waits for its agent's others keeps nobody else
        // waiting.
        let own = self.own.take(units).await?;
        Some(Room { own, all: self.all.take(units).await? })
    }
}

impl Room {
    /// As much of it as a message of `length` bytes takes.
    pub(super) fn kept(mut self, length: usize) -> Option<Self> {
        let units = length.div_ceil(UNIT);
        let own = self.own.split(units.min(self.own.num_permits()))?;
        Some(Self { own, all: self.all.split(units.min(self.all.num_permits()))? })
    }
}

impl Stock {
    fn new(units: usize) -> Self {
        let units = units.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { units, left: Arc::new(Semaphore::new(units)) }
    }

    /// Waits for as much. Who needs more than there is has all of it.
    async fn take(&self, units: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(units.clamp(1, self.units)).unwrap_or(u32::MAX);
        Arc::clone(&self.left).acquire_many_owned(units).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// What there is at once.
    async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let look = |context: &mut std::task::Context<'_>| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => Poll::Ready(None),
        };
        std::future::poll_fn(look).await
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn an_agent_that_takes_no_reply_keeps_only_itself_waiting() {
        run(async {
            let memory = Memory::new(512 << 20);
            let (greedy, other) =
                (memory.of(&"a".parse().unwrap()), memory.of(&"b".parse().unwrap()));
            let mut held = Vec::new();
            // Each of these reads 10 MiB and is not taken.
            while let Some(room) = now(greedy.room(10 << 20)).await {
                held.push(room.unwrap().kept(10 << 20).unwrap());
                assert!(held.len() < 100);
            }
            let again = memory.of(&"a".parse().unwrap());
            assert!(now(again.room(10 << 20)).await.is_none(), "another connection helps");
            let others: Vec<_> = (0..4).map(|_| other.room(10 << 20)).collect();
            for room in others {
                assert!(now(room).await.is_some());
            }
            drop(held);
            assert!(now(again.room(10 << 20)).await.is_some());
        });
    }

    #[test]
    fn a_message_larger_than_a_share_goes_alone_and_small_ones_are_not_counted() {
        run(async {
            let memory = Memory::new(512 << 20);
            let share = memory.of(&"a".parse().unwrap());
            let large = now(share.room(144 << 20)).await.unwrap().unwrap();
            assert_eq!(memory.all.left.available_permits(), (512 - 3 * 144) << 10);
            assert!(now(share.room(SMALL + 1)).await.is_none());
            assert!(now(share.room(SMALL)).await.unwrap().is_none());
            let reply = large.kept(100).unwrap();
            assert_eq!(memory.all.left.available_permits(), (512 << 10) - 1);
            assert!(now(share.room(1 << 20)).await.is_some());
            drop(reply);
        });
    }
}
