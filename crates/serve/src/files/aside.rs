//! A request that waits for a person: the next ones of its client go on meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use portcullis_rpc::{MemoryBudget, Reservation};

use super::{memory::reserve, turns::RequestSlot};
use crate::{
    gateway::{Approver, Ticket},
    lock,
};

/// Requests of one client that wait for a person.
const WAITING: usize = 16;

/// A request's place among those that are carried out.
pub(super) struct HeldSlot {
    pub(super) free: Option<tokio::sync::oneshot::Sender<()>>,
    pub(super) turn: Option<RequestSlot>,
    /// How large a content or list that it discloses is at most; the memory is for that.
    pub(super) reply: Option<usize>,
    pub(super) memory: Option<Reservation>,
}

/// A request that may have to wait for a person: it steps aside then.
pub(super) struct Aside<'a> {
    pub(super) place: &'a std::sync::Mutex<HeldSlot>,
    pub(super) waiting: &'a AtomicUsize,
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
        // What a person must agree to is read afterwards.
        if place.reply.is_some() {
            place.memory = None;
        }
        if let Some(free) = place.free.take() {
            let _ = free.send(());
        }
    }

    fn over(&self, _ticket: &Ticket) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let reply = {
            let place = lock(self.place);
            place.reply.filter(|_| place.memory.is_none())
        };
        if let Some(reply) = reply {
            let memory = reserve(self.share, reply);
            let memory = tokio::runtime::Handle::current().block_on(memory);
            lock(self.place).memory = memory;
        }
    }
}
