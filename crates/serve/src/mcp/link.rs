//! A session with a worker: JSON-RPC messages, one a line.
//!
//! Requests get new ids and progress tokens, since several clients' requests may
//! share a session; replies are routed back by them.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, Mutex, OnceLock},
};

use portcullis_rpc::{MemoryBudget, Reservation, response};
use rmcp::{
    ErrorData, RoleServer,
    model::{ProgressToken, ProtocolVersion, RequestId, ServerNotification, SubscriptionFilter},
    service::{Peer, RequestContext},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::{
    io::AsyncWriteExt as _,
    net::{UnixStream, unix::OwnedWriteHalf},
    sync::{Notify, mpsc, oneshot},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{in_transit::InTransit, line::ResumedMemory, priming, reading::Reading};
use crate::lock;

/// A session. Dropping it ends it.
pub(super) struct Link {
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    state: Arc<Mutex<LinkState>>,
    /// The protocol revision agreed on by client and worker.
    revision: OnceLock<ProtocolVersion>,
    pub(super) resumed: ResumedMemory,
}

#[derive(Default)]
pub(super) struct LinkState {
    next: u64,
    pub(super) pending: HashMap<u64, Pending>,
    /// The receiver of notifications that belong to no request.
    pub(super) host: Option<Peer<RoleServer>>,
    /// Requests of the worker that were sent to the client; the sender withdraws
    /// one.
    pub(super) asked: HashMap<String, oneshot::Sender<()>>,
    /// Cancelled when the worker's stream ends.
    pub(super) over: CancellationToken,
}

/// A request without a reply yet.
pub(super) struct Pending {
    /// Gets the granted filter of a subscription.
    pub(super) granted: Option<oneshot::Sender<SubscriptionFilter>>,
    pub(super) answer: oneshot::Sender<Result<WorkerReply, ErrorData>>,
    /// Requests of the worker while it carries this one out.
    pub(super) questions: mpsc::UnboundedSender<Question>,
    /// The notifications of its subscription.
    pub(super) events: Arc<Events>,
    /// The client's id of the request.
    request: Option<RequestId>,
    /// The client's progress token.
    pub(super) token: Option<ProgressToken>,
    /// The receiver of progress notifications.
    pub(super) peer: Option<Peer<RoleServer>>,
}

/// Notifications that a subscriber has not received yet. Equal ones are queued once,
/// so their number is bounded by the subscription.
#[derive(Default)]
pub(super) struct Events {
    waiting: Mutex<VecDeque<(Value, ServerNotification)>>,
    wake: Notify,
}

impl Events {
    pub(super) fn push(&self, text: Value, event: ServerNotification) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|(there, _)| *there == text) {
            waiting.push_back((text, event));
            self.wake.notify_one();
        }
    }

    /// Waits for the next notification.
    pub(super) async fn next(&self) -> ServerNotification {
        loop {
            let waiting = || lock(&self.waiting).pop_front();
            if let Some((_, event)) = waiting() {
                return event;
            }
            self.wake.notified().await;
        }
    }
}

/// A request from the worker to the client.
pub(super) struct Question {
    pub(super) id: Value,
    pub(super) message: Value,
    pub(super) withdrawn: oneshot::Receiver<()>,
}

/// A reply with the memory that it occupies.
pub(super) struct WorkerReply {
    pub(super) value: Box<RawValue>,
    pub(super) held: Option<Reservation>,
}

/// A request in flight. Dropping it cancels the request at the worker.
pub(super) struct RequestInFlight {
    id: u64,
    state: Arc<Mutex<LinkState>>,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    /// The granted filter of a subscription.
    pub(super) granted: oneshot::Receiver<SubscriptionFilter>,
    pub(super) answer: oneshot::Receiver<Result<WorkerReply, ErrorData>>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    pub(super) events: Arc<Events>,
}

impl Link {
    /// Starts the reader of a session.
    pub(super) fn start(stream: UnixStream, memory: MemoryBudget) -> Arc<Self> {
        let (reader, writer) = stream.into_split();
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let state = Arc::<Mutex<LinkState>>::default();
        let reading = Reading::new(&state, &writer, memory);
        tokio::spawn(reading.run(reader));
        let (revision, resumed) = Default::default();
        Arc::new(Self { writer, state, revision, resumed })
    }

    /// Returns true if the session has ended.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.state).over.is_cancelled()
    }

    /// Returns a future of the session's end, which does not keep the session alive.
    pub(super) fn ended(&self) -> WaitForCancellationFutureOwned {
        lock(&self.state).over.clone().cancelled_owned()
    }

    /// Shuts down the sending side: the worker withdraws pending approvals, and
    /// finishes requests in flight.
    pub(super) async fn shut_down(&self) {
        // A worker that is gone needs no shutdown.
        let _ = self.writer.lock().await.shutdown().await;
    }

    /// Returns true if the worker still reads. One that stops reads no more, but
    /// replies to earlier requests.
    pub(super) fn is_read(&self) -> bool {
        // The writer that has the lock will notice.
        let Ok(writer) = self.writer.try_lock() else { return !self.has_ended() };
        let has_stopped = |error: io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        !self.has_ended() && !writer.try_write(&[]).is_err_and(has_stopped)
    }

    /// Returns true if no request waits for its reply.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.state).pending.is_empty()
    }

    /// Sets the revision agreed on by client and worker; only the first call counts.
    pub(super) fn set_revision(&self, revision: ProtocolVersion) {
        let _ = self.revision.set(revision);
    }

    /// Returns true if the client knows events without data.
    pub(super) fn is_primed(&self) -> bool {
        self.revision.get().is_none_or(priming::is_known)
    }

    /// Sets the receiver of notifications that belong to no request.
    pub(super) fn set_host(&self, peer: Peer<RoleServer>) {
        lock(&self.state).host = Some(peer);
    }

    /// Sends a request; `context` and `transit` are those of the client's message.
    ///
    /// # Errors
    /// When the session is over.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: Option<Value>,
        meta: Option<Map<String, Value>>,
        context: Option<&RequestContext<RoleServer>>,
        transit: Option<&InTransit>,
    ) -> Result<RequestInFlight, ErrorData> {
        let (sender, answer) = oneshot::channel();
        let (grant, granted) = oneshot::channel();
        let (questions, asked) = mpsc::unbounded_channel();
        let events = Arc::<Events>::default();
        let mut meta = meta.unwrap_or_default();
        let token = meta.get("progressToken").cloned();
        let id = {
            let mut state = lock(&self.state);
            if state.over.is_cancelled() {
                return Err(over());
            }
            let id = state.next;
            state.next = id.wrapping_add(1);
            let token = token.and_then(|token| serde_json::from_value(token).ok());
            if token.is_some() {
                meta.insert("progressToken".to_owned(), json!(id));
            }
            let events = Arc::clone(&events);
            let granted = Some(grant);
            let request = context.map(|context| context.id.clone());
            let peer = context.map(|context| context.peer.clone());
            let pending =
                Pending { granted, answer: sender, questions, events, request, token, peer };
            state.pending.insert(id, pending);
            id
        };
        let (state, writer) = (Arc::clone(&self.state), Arc::clone(&self.writer));
        let asked =
            RequestInFlight { id, state, writer, granted, answer, questions: asked, events };
        let message = response::request(id, method, with_meta(params, meta));
        // Earlier requests may still get their replies.
        write(&self.writer, message, transit.cloned()).await.map_err(|_| over())?;
        Ok(asked)
    }

    /// Cancels a client's request; returns false if there is none without a reply.
    pub(super) async fn cancel(&self, request: &RequestId) -> bool {
        let cancelled = {
            let pending = &mut lock(&self.state).pending;
            let is_it = |pending: &Pending| pending.request.as_ref() == Some(request);
            let id = pending.iter().find(|(_, pending)| is_it(pending)).map(|(id, _)| *id);
            id.and_then(|id| Some((id, pending.remove(&id)?)))
        };
        let Some((id, pending)) = cancelled else { return false };
        let _ = pending.answer.send(Err(ErrorData::internal_error("cancelled", None)));
        // An ended session needs none.
        let _ = write(&self.writer, cancellation(id), None).await;
        true
    }

    /// Forwards a notification.
    pub(super) async fn notify(&self, method: &str, params: Option<Value>) {
        let message = response::notification(method, with_meta(params, Map::new()));
        // An ended session needs none.
        let _ = write(&self.writer, message, None).await;
    }

    /// Sends the reply to a request of the worker.
    pub(super) async fn answer(&self, question: &Value, outcome: Result<Value, ErrorData>) {
        let message = match outcome {
            Ok(result) => response::result(question, result),
            Err(error) => response::error(Some(question), error),
        };
        let _ = write(&self.writer, message, None).await;
    }
}

impl Question {
    /// Returns the id, the message, and the receiver of its withdrawal.
    pub(super) fn into_parts(self) -> (Value, Value, oneshot::Receiver<()>) {
        (self.id, self.message, self.withdrawn)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        if lock(&self.state).pending.remove(&self.id).is_none() {
            return;
        }
        let (message, writer) = (cancellation(self.id), Arc::clone(&self.writer));
        tokio::spawn(async move {
            let _ = write(&writer, message, None).await;
        });
    }
}

/// Returns the notification that cancels a request at the worker.
fn cancellation(id: u64) -> Vec<u8> {
    let params = json!({ "requestId": id, "reason": "the client does not wait any more" });
    response::notification("notifications/cancelled", Some(params))
}

/// Parses a reply as `T`.
pub(super) fn typed<T: DeserializeOwned>(answer: &RawValue) -> Result<T, ErrorData> {
    serde_json::from_str(answer.get()).map_err(|error| {
        tracing::error!(%error, "a worker's answer cannot be read");
        ErrorData::internal_error("the answer cannot be read", None)
    })
}

/// Returns the error of a session whose worker is gone.
pub(super) fn over() -> ErrorData {
    ErrorData::internal_error("the session with the workspace has ended", None)
}

/// Returns parameters with their `_meta`; `None` where there are none.
fn with_meta(params: Option<Value>, meta: Map<String, Value>) -> Option<Value> {
    let mut params = match params {
        Some(Value::Object(params)) => params,
        Some(Value::Null) | None => Map::new(),
        other => return other,
    };
    if !meta.is_empty() {
        params.insert("_meta".to_owned(), Value::Object(meta));
    }
    (!params.is_empty()).then_some(Value::Object(params))
}

/// Writes a message to the worker. Cancel safe: a line is written completely or not at all.
pub(super) async fn write(
    writer: &Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    mut message: Vec<u8>,
    transit: Option<InTransit>,
) -> io::Result<()> {
    message.push(b'\n');
    let mut writer = Arc::clone(writer).lock_owned().await;
    let written = tokio::spawn(async move {
        let written = writer.write_all(&message).await;
        transit.as_ref().inspect(|transit| transit.sent());
        written
    });
    written.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;
    use portcullis_mcp::REQUEST;

    #[test]
    fn a_refusal_that_names_no_request_leaves_nobody_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let link = Link::start(ours, MemoryBudget::new(1 << 20));
            let mut asked = link.ask("tools/call", None, None, None, None).await.unwrap();
            let (reader, mut writer) = theirs.into_split();
            let mut lines = BufReader::new(reader).lines();
            assert!(lines.next_line().await.unwrap().unwrap().contains("tools/call"));
            let refusal =
                b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"\"}}\n";
            writer.write_all(refusal).await.unwrap();
            let answer = tokio::time::timeout(Duration::from_secs(60), &mut asked.answer).await;
            assert_eq!(answer.unwrap().unwrap().err(), Some(over()));
            assert!(link.has_ended());
        });
    }

    /// Each reply used to stay in memory as long as the session.
    #[test]
    fn a_question_that_nobody_waits_for_is_forgotten() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let link = Link::start(ours, MemoryBudget::new(1 << 20));
            let mut asked = link.ask("tools/call", None, None, None, None).await.unwrap();
            for number in 0..100 {
                let question = json!({
                    "jsonrpc": "2.0", "id": number, "method": "elicitation/create",
                    "params": { "_meta": { REQUEST: asked.id }, "message": "?" },
                });
                theirs.write_all(format!("{question}\n").as_bytes()).await.unwrap();
                let put = asked.questions.recv();
                let put = tokio::time::timeout(Duration::from_secs(60), put).await;
                let (id, ..) = put.unwrap().unwrap().into_parts();
                link.answer(&id, Ok(json!({ "action": "decline" }))).await;
            }
            assert_eq!(lock(&link.state).asked.len(), 1);
        });
    }

    /// The newest request was asked, and it got its reply before the approval.
    #[test]
    fn a_question_goes_to_the_client_that_it_is_about() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let link = Link::start(ours, MemoryBudget::new(1 << 20));
            let mut older = link.ask("tools/call", None, None, None, None).await.unwrap();
            let mut newer = link.ask("tools/call", None, None, None, None).await.unwrap();
            for asked in [&mut older, &mut newer] {
                let question = json!({
                    "jsonrpc": "2.0", "id": asked.id + 7, "method": "elicitation/create",
                    "params": { "_meta": { REQUEST: asked.id }, "message": "?" },
                });
                theirs.write_all(format!("{question}\n").as_bytes()).await.unwrap();
                let put = asked.questions.recv();
                let put = tokio::time::timeout(Duration::from_secs(60), put).await;
                let put = put.unwrap().unwrap();
                assert_eq!(put.id, json!(asked.id + 7));
                assert_eq!(put.message["params"], json!({ "_meta": {}, "message": "?" }));
            }
        });
    }
}
