//! Approvals by a request to the client: the message, its reply, and its withdrawal.

use std::sync::Arc;

use rmcp::{
    RoleServer,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientResult, ElicitRequest, RequestId,
        RequestMetaObject, ServerRequest,
    },
    service::{PeerRequestOptions, RequestContext, ServiceError},
};
use serde_json::json;

use crate::gateway::Ticket;

use super::approver;

/// The key of the id of the call that a request is about.
pub const REQUEST: &str = "portcullis/request";

/// Asks the client's user by a request to the client.
pub(super) async fn elicit(context: &RequestContext<RoleServer>, ticket: &Arc<Ticket>) {
    let Some(form) = approver::form(ticket.question()) else { return };
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form));
    let mut meta = RequestMetaObject::new();
    meta.insert(REQUEST.to_owned(), json!(context.id));
    let mut options = PeerRequestOptions::no_options();
    options.meta = Some(meta);
    let handle = match context.peer.send_cancellable_request(request, options).await {
        Ok(handle) => handle,
        Err(error) => {
            tracing::warn!(%error, "the client cannot be asked for approval");
            return;
        }
    };
    let mut withdrawal = Withdrawal { context, id: Some(handle.id.clone()) };
    let answered = handle.await_response().await;
    withdrawal.id = None;
    match answered {
        Ok(ClientResult::ElicitResult(result)) => approver::take(ticket, &result),
        Ok(_) => {
            let _ = ticket.answer(crate::gateway::Answer::Reject, "an answer that cannot be read");
        }
        // An error means that the client did not ask its user.
        Err(ServiceError::McpError(error)) => {
            tracing::warn!(code = error.code.0, "the client did not ask its user");
        }
        Err(error) => tracing::warn!(%error, "the client did not answer"),
    }
}

/// Withdraws the request when dropped, unless it has a reply.
struct Withdrawal<'a> {
    context: &'a RequestContext<RoleServer>,
    id: Option<RequestId>,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let peer = self.context.peer.clone();
        let params = CancelledNotificationParam::new(Some(id), Some("answered".to_owned()));
        tokio::spawn(async move {
            // Best effort.
            let _ = peer.send_notification(CancelledNotification::new(params).into()).await;
        });
    }
}
