//! A request that waits for a person: the next ones of its client go on meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use portcullis_rpc::{MemoryBudget, Reservation};

use super::{Channel, turns::Turn};
use crate::{
    gateway::{Approver, Ticket},
    lock,
};

/// Requests of one client that wait for a person.
const WAITING: usize = 16;

/// A request's place among those that are carried out.
pub(super) struct Place {
    pub(super) free: Option<tokio::sync::oneshot::Sender<()>>,
    pub(super) turn: Option<Turn>,
    /// The memory is for a content that will be read.
    pub(super) reads: bool,
    pub(super) memory: Option<Reservation>,
}

/// A request that may have to wait for a person: it steps aside then.
pub(super) struct Aside<'a> {
    pub(super) place: &'a std::sync::Mutex<Place>,
    pub(super) waiting: &'a AtomicUsize,
    pub(super) channel: &'a Channel,
    pub(super) share: &'a MemoryBudget,
}

impl Approver for Aside<'_> {
    fn ask(&self, ticket: &Arc<Ticket>) {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= WAITING {
            ticket.withdraw();
            return;
        }
        // The channel has no way to ask its user; `portcullis approve` has.
        let mut place = lock(self.place);
        place.turn.take();
        if place.reads {
            place.memory = None;
        }
        if let Some(free) = place.free.take() {
            let _ = free.send(());
        }
    }

    fn over(&self, _ticket: &Ticket) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let needs_memory = {
            let place = lock(self.place);
            place.reads && place.memory.is_none()
        };
        if needs_memory {
            let memory = self.channel.memory_to_read(self.share);
            let memory = tokio::runtime::Handle::current().block_on(memory);
            lock(self.place).memory = memory;
        }
    }
}
