//! `notifications/cancelled` in a session.
//!
//! `rmcp` puts the reply to a cancelled request, if it is on its way to the client, into the
//! session's own stream, which keeps it as long as the session. So the link cancels the request
//! first, and a request that has its reply is not cancelled.

use portcullis_rpc::Message;
use rmcp::model::{CancelledNotificationParam, RequestId};

use super::shared::Shared;

/// The name of the method.
const METHOD: &str = "notifications/cancelled";

/// Returns the id of the request that a message cancels, if any.
pub(super) fn request(message: &Message<'_>) -> Option<RequestId> {
    match message {
        Message::Notification { method, params: Some(params) } if method == METHOD => {
            serde_json::from_str::<CancelledNotificationParam>(params.get()).ok()?.request_id
        }
        _ => None,
    }
}

/// Cancels a request of a session; returns false if it has its reply, or never was.
pub(super) async fn cancel(shared: &Shared, session: &str, request: &RequestId) -> bool {
    match shared.sessions.link(session) {
        Some(link) => link.cancel(request).await,
        None => false,
    }
}
