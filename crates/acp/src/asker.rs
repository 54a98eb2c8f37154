//! Requests that wait for the editor's user.

use std::sync::{Arc, Mutex};

use portcullis_rpc::Id;

use crate::{
    gateway::{Approver, Ticket},
    lock,
};

use super::{
    asking::{params, take},
    door::Door,
    jobs::Waiting,
    sessions::Visit,
};

/// An `fs/*` request that may have to wait for the editor's user.
pub(super) struct Asker<'a> {
    pub(super) door: &'a Door<'a>,
    pub(super) visit: &'a Arc<Visit>,
    /// The agent's request.
    pub(super) id: &'a Id,
    /// The ID of the question to the editor, while it waits.
    pub(super) call: Mutex<Option<String>>,
}

impl Approver for Asker<'_> {
    fn ask(&self, ticket: &Arc<Ticket>) {
        // Other requests can use the worker's slot while it waits.
        let waiting = Waiting { acp_id: self.visit.acp_id.clone(), ticket: Arc::clone(ticket) };
        self.door.jobs.pause(self.id, waiting);
        let (door, question) = (self.door, ticket.question());
        let params = params(&self.visit.acp_id, question, &door.roots, &door.calls);
        let answered = Arc::clone(ticket);
        let call = self.door.calls.post("session/request_permission", &params, move |answer| {
            take(&answered, answer);
        });
        match call {
            Ok(call) => *lock(&self.call) = Some(call),
            // The question can still be answered in another way, or time out.
            Err(error) => tracing::warn!(%error, "the editor cannot be asked for approval"),
        }
    }

    fn over(&self, _ticket: &Ticket) {
        if let Some(call) = lock(&self.call).take() {
            self.door.calls.give_up(&call);
        }
        self.door.jobs.resume(self.id);
    }
}
