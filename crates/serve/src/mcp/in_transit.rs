//! The slot of its session and the memory that a message of a client occupies on its way to the
//! worker.
//!
//! `rmcp` handles each message in a task of its own, which may outlive the HTTP request. So
//! these belong to the message, and end with it.

use std::sync::{Arc, Mutex};

use portcullis_rpc::Reservation;

use super::session_scheduler::SessionSlot;
use crate::lock;

/// Slot and memory of a message, until it is [sent](Self::sent) or its last copy is dropped.
#[derive(Clone)]
pub(super) struct InTransit(Arc<State>);

struct State {
    slot: SessionSlot,
    memory: Mutex<Option<Reservation>>,
}

impl InTransit {
    pub(super) fn new(slot: SessionSlot, memory: Reservation) -> Self {
        Self(Arc::new(State { slot, memory: Mutex::new(Some(memory)) }))
    }

    /// Returns true if the worker has the message.
    pub(super) fn is_sent(&self) -> bool {
        lock(&self.0.memory).is_none()
    }

    /// Notes that the worker has the message: a request that waits for its reply occupies no
    /// memory.
    pub(super) fn sent(&self) {
        self.0.slot.sent();
        lock(&self.0.memory).take();
    }
}
