//! Requests that wait for the editor's user.

use std::sync::{Arc, Mutex};

use portcullis_rpc::Id;

use crate::{
    gateway::{Approver, Ticket},
    lock,
};

use super::{
    permission_request::{params, take},
    proxy::AcpProxy,
    request_queue::Waiting,
    sessions::SessionLink,
};

/// An `fs/*` or `terminal/create` request that may have to wait for the editor's user.
pub(super) struct EditorApprover<'a> {
    pub(super) proxy: &'a AcpProxy<'a>,
    pub(super) session_link: &'a Arc<SessionLink>,
    /// The agent's request.
    pub(super) id: &'a Id,
    /// The ID of the question to the editor, while it waits.
    pub(super) call: Mutex<Option<String>>,
}

impl Approver for EditorApprover<'_> {
    fn ask(&self, ticket: &Arc<Ticket>) {
        // Other requests can use the worker's slot while it waits.
        let waiting =
            Waiting { acp_id: self.session_link.acp_id.clone(), ticket: Arc::clone(ticket) };
        self.proxy.agent_requests.pause(self.id, waiting);
        let (proxy, question) = (self.proxy, ticket.question());
        let params =
            params(&self.session_link.acp_id, question, &proxy.roots, &proxy.editor_requests);
        let answered = Arc::clone(ticket);
        let call =
            self.proxy.editor_requests.post("session/request_permission", &params, move |answer| {
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
            self.proxy.editor_requests.give_up(&call);
        }
        self.proxy.agent_requests.resume(self.id);
    }
}
