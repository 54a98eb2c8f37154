//! The reader of a worker's messages in one session. It routes replies to the
//! requests they belong to, requests of the worker to the clients whose requests
//! they concern, and notifications to their receivers.

use std::{
    borrow::Cow,
    ops::ControlFlow,
    sync::{Arc, Mutex, Weak},
};

use portcullis_mcp::REQUEST;
use portcullis_rpc::{MemoryBudget, Reservation, response};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        ProgressNotification, ProgressNotificationParam, ProgressToken, ServerJsonRpcMessage,
        ServerNotification, SubscriptionFilter,
    },
    service::Peer,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::BufReader,
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    sync::oneshot,
};

use super::{
    line::{self, Line},
    link::{LinkState, Question, WorkerReply, over, write},
};
use crate::lock;

/// The key in `_meta` of a subscription's notification.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The first notification of a subscription.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

#[derive(Deserialize)]
struct WorkerMessage<'a> {
    id: Option<Value>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorData>,
}

/// The reading task of a session.
pub(super) struct Reading {
    state: Arc<Mutex<LinkState>>,
    writer: Weak<tokio::sync::Mutex<OwnedWriteHalf>>,
    memory: MemoryBudget,
}

impl Reading {
    pub(super) fn new(
        state: &Arc<Mutex<LinkState>>,
        writer: &Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
        memory: MemoryBudget,
    ) -> Self {
        Self { state: Arc::clone(state), writer: Arc::downgrade(writer), memory }
    }

    /// Reads until the worker's stream ends.
    pub(super) async fn run(self, reader: OwnedReadHalf) {
        let mut reader = BufReader::with_capacity(4096, reader);
        loop {
            match line::next(&mut reader, &self.memory).await {
                Ok(Some(Line::Whole(line, held))) => {
                    if self.hear(&line, held).await.is_break() {
                        break;
                    }
                }
                Ok(Some(Line::Skipped(begin))) => {
                    let Some(id) = line::id(&begin) else { break };
                    let Some(pending) = lock(&self.state).pending.remove(&id) else { continue };
                    let _ = pending.answer.send(Err(busy()));
                }
                Ok(None) | Err(_) => break,
            }
        }
        let mut state = lock(&self.state);
        state.over.cancel();
        for (_, pending) in state.pending.drain() {
            let _ = pending.answer.send(Err(over()));
        }
        state.asked.clear();
    }

    /// Handles one line. A line without an id or a method ends the session: the
    /// request that it belongs to would wait for ever.
    async fn hear(&self, bytes: &[u8], held: Reservation) -> ControlFlow<()> {
        let Ok(message) = serde_json::from_slice::<WorkerMessage<'_>>(bytes) else {
            tracing::error!("a worker's line cannot be read");
            return ControlFlow::Break(());
        };
        match (message.method, message.id) {
            (None, None) => {
                let reason = message.error.map(|error| error.message);
                tracing::warn!(
                    reason = reason.as_deref(),
                    "a worker answered nobody in particular"
                );
                return ControlFlow::Break(());
            }
            (None, Some(id)) => {
                let pending = id.as_u64().and_then(|id| lock(&self.state).pending.remove(&id));
                // The request was cancelled meanwhile.
                let Some(pending) = pending else { return ControlFlow::Continue(()) };
                let answer = match (message.result, message.error) {
                    (Some(result), None) => {
                        Ok(WorkerReply { value: result.to_owned(), held: Some(held) })
                    }
                    (_, Some(error)) => Err(error),
                    (None, None) => Err(over()),
                };
                let _ = pending.answer.send(answer);
            }
            (Some(_), Some(id)) => self.question(id, bytes).await,
            (Some(method), None) => self.note(&method, bytes).await,
        }
        ControlFlow::Continue(())
    }

    /// Routes a request of the worker to the client whose request it concerns.
    async fn question(&self, id: Value, bytes: &[u8]) {
        let mut message = serde_json::from_slice(bytes).unwrap_or(Value::Null);
        let meta = message.pointer_mut("/params/_meta").and_then(Value::as_object_mut);
        // The id is known to the worker and this process only.
        let about = meta.and_then(|meta| meta.remove(REQUEST)).and_then(|id| id.as_u64());
        let (withdraw, withdrawn) = oneshot::channel();
        let sent = {
            let mut state = lock(&self.state);
            let pending = about.and_then(|about| state.pending.get(&about));
            let question = Question { id: id.clone(), message, withdrawn };
            let sent = pending.is_some_and(|pending| pending.questions.send(question).is_ok());
            if sent {
                // Completed requests need no withdrawal.
                state.asked.retain(|_, withdraw| !withdraw.is_closed());
                state.asked.insert(id.to_string(), withdraw);
            }
            sent
        };
        if !sent && let Some(writer) = self.writer.upgrade() {
            let error = ErrorData::internal_error("nobody is there to be asked", None);
            let _ = write(&writer, response::error(Some(id), error), None).await;
        }
    }

    async fn note(&self, method: &str, bytes: &[u8]) {
        if method == ACKNOWLEDGED {
            let granted = subscription(bytes).zip(granted(bytes));
            let Some((subscription, filter)) = granted else { return };
            let mut state = lock(&self.state);
            let pending = state.pending.get_mut(&subscription);
            if let Some(grant) = pending.and_then(|pending| pending.granted.take()) {
                // The receiver of a client that is gone is closed.
                let _ = grant.send(filter);
            }
            return;
        }
        let Ok(ServerJsonRpcMessage::Notification(note)) = serde_json::from_slice(bytes) else {
            tracing::error!(method, "a worker's notification cannot be read");
            return;
        };
        if let Some(subscription) = subscription(bytes) {
            if let Some(pending) = lock(&self.state).pending.get(&subscription) {
                let text = json!(note.notification);
                pending.events.push(text, note.notification);
            }
            return;
        }
        let (peer, note) = match note.notification {
            ServerNotification::ProgressNotification(progress) => {
                let ProgressNotificationParam { progress_token, .. } = &progress.params;
                let Some((peer, token)) = self.asker(progress_token) else { return };
                let mut params = progress.params;
                params.progress_token = token;
                (peer, ServerNotification::from(ProgressNotification::new(params)))
            }
            ServerNotification::CancelledNotification(cancelled) => {
                let id = cancelled.params.request_id.map(|id| json!(id).to_string());
                // The task that waits for the client's reply reports it to the client.
                id.and_then(|id| lock(&self.state).asked.remove(&id));
                return;
            }
            other => {
                let Some(host) = lock(&self.state).host.clone() else { return };
                (host, other)
            }
        };
        // A send to a client that is gone is ignored.
        let _ = peer.send_notification(note).await;
    }

    /// Returns the receiver of a progress notification, and the client's token for
    /// it.
    fn asker(&self, token: &ProgressToken) -> Option<(Peer<RoleServer>, ProgressToken)> {
        let id = json!(token).as_u64()?;
        let state = lock(&self.state);
        let pending = state.pending.get(&id)?;
        Some((pending.peer.clone()?, pending.token.clone()?))
    }
}

/// Returns the id of the subscription that a notification belongs to.
fn subscription(bytes: &[u8]) -> Option<u64> {
    let message = serde_json::from_slice::<Value>(bytes).ok()?;
    message.get("params")?.get("_meta")?.get(SUBSCRIPTION)?.as_u64()
}

/// Returns the filter that an acknowledgement grants.
fn granted(bytes: &[u8]) -> Option<SubscriptionFilter> {
    #[derive(Deserialize)]
    struct Acknowledged {
        params: AcknowledgedParams,
    }
    #[derive(Deserialize)]
    struct AcknowledgedParams {
        notifications: SubscriptionFilter,
    }
    Some(serde_json::from_slice::<Acknowledged>(bytes).ok()?.params.notifications)
}

/// Returns the error for a reply for which there is no memory.
fn busy() -> ErrorData {
    let reason =
        "the reply is too large for what is under way; it was carried out, try again later";
    ErrorData::internal_error(reason, None)
}
