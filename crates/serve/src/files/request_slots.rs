//! Slots that bound how many requests of the `files` channel are carried out at once: by
//! all agents, and by one agent on all its connections.
//!
//! Requests get slots in the order in which they ask. A connection asks for one slot at a
//! time, so one that sends much waits behind those that send little. An agent with many
//! connections waits for its own slots.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{lock, model::AgentName};

/// The slots of all agents.
#[derive(Debug)]
pub(super) struct RequestSlots {
    all: Arc<Semaphore>,
    each: usize,
    /// Bounded, because the operator names the agents.
    agents: Mutex<HashMap<AgentName, Arc<Semaphore>>>,
}

/// The slots of one agent.
#[derive(Debug)]
pub(super) struct AgentSlots {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// A slot, occupied until it is dropped.
#[derive(Debug)]
pub(super) struct RequestSlot {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl RequestSlots {
    /// Returns `all` slots, of which one agent may occupy `each`; at least one of each.
    pub(super) fn new(all: usize, each: usize) -> Self {
        let all = Arc::new(Semaphore::new(all.max(1)));
        Self { all, each: each.max(1), agents: Mutex::default() }
    }

    pub(super) fn of(&self, agent: &AgentName) -> AgentSlots {
        let mut agents = lock(&self.agents);
        let own = agents.entry(agent.clone()).or_insert_with(|| Semaphore::new(self.each).into());
        AgentSlots { own: Arc::clone(own), all: Arc::clone(&self.all) }
    }
}

impl AgentSlots {
    /// Waits for a slot. The result is always `Some`, since neither semaphore is closed.
    pub(super) async fn take(&self) -> Option<RequestSlot> {
        // This order keeps a request that waits for its own agent's slots from occupying a
        // common one.
        let own = Arc::clone(&self.own).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(RequestSlot { _own: own, _all: all })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_agent_with_many_connections_leaves_slots_to_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let slots = RequestSlots::new(4, 2);
            let of = |agent: &str| slots.of(&agent.parse().unwrap());
            let now = async |agent: &str| {
                tokio::time::timeout(Duration::ZERO, of(agent).take()).await.ok().flatten()
            };
            let mut held = Vec::new();
            while let Some(slot) = now("a").await {
                held.push(slot);
                assert!(held.len() < 4);
            }
            let other = now("b").await;
            assert!(held.len() == 2 && other.is_some());
            held.pop();
            assert!(now("a").await.is_some());
        });
    }
}
