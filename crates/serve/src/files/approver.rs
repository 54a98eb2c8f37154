//! Requests that wait for an approval; later requests of the client go on meanwhile.

use std::sync::Arc;

use portcullis_rpc::{MemoryBudget, Reservation};

use super::{memory::reserve, request_slots::RequestSlot};
use crate::{
    gateway::{Approver, Ticket},
    lock,
};

/// The slot of a request among those that are carried out.
pub(super) struct HeldSlot {
    pub(super) free: Option<tokio::sync::oneshot::Sender<()>>,
    pub(super) slot: Option<RequestSlot>,
    /// The largest content or list that the reply may disclose, in bytes; `memory` is
    /// reserved for that.
    pub(super) reply: Option<usize>,
    pub(super) memory: Option<Reservation>,
}

/// The approver of a request, which releases its slot while it waits.
pub(super) struct WaitingApprover<'a> {
    pub(super) slot: &'a std::sync::Mutex<HeldSlot>,
    pub(super) share: &'a MemoryBudget,
}

impl Approver for WaitingApprover<'_> {
    fn ask(&self, _ticket: &Arc<Ticket>) {
        // The channel has no means of asking its user; `portcullis approve` has.
        let mut held = lock(self.slot);
        held.slot.take();
        // The content is read only after the approval.
        if held.reply.is_some() {
            held.memory = None;
        }
        if let Some(free) = held.free.take() {
            let _ = free.send(());
        }
    }

    fn over(&self, _ticket: &Ticket) {
        let reply = {
            let held = lock(self.slot);
            held.reply.filter(|_| held.memory.is_none())
        };
        if let Some(reply) = reply {
            let memory = reserve(self.share, reply);
            let memory = tokio::runtime::Handle::current().block_on(memory);
            lock(self.slot).memory = memory;
        }
    }
}
