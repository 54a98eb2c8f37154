//! One session with a worker: JSON-RPC messages, one a line.
//!
//! Requests get ids and progress tokens of our own, since several clients'
//! requests may share a session; what comes back goes to whoever asked.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    io,
    ops::ControlFlow,
    sync::{Arc, Mutex},
};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        ProgressNotification, ProgressNotificationParam, ProgressToken, ServerJsonRpcMessage,
        ServerNotification, SubscriptionFilter,
    },
    service::Peer,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{UnixStream, unix::OwnedReadHalf, unix::OwnedWriteHalf},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
};

use super::line::{self, Line};
use crate::{lock, mcp::REQUEST};

/// The key in `_meta` of a notification that somebody subscribed to.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The first notification of a subscription.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// A session. Dropping it ends it.
pub(super) struct Link {
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    next: u64,
    pending: HashMap<u64, Pending>,
    /// Who hears what nobody asked for.
    host: Option<Peer<RoleServer>>,
    /// Questions of the worker that the client was asked, and who waits.
    asked: HashMap<String, oneshot::Sender<()>>,
    over: bool,
}

struct Pending {
    /// What a subscription was granted, once that is known.
    granted: Option<oneshot::Sender<SubscriptionFilter>>,
    answer: oneshot::Sender<Result<Answer, ErrorData>>,
    /// Questions of the worker while it works on this.
    questions: mpsc::UnboundedSender<Question>,
    /// What it subscribed to.
    events: Arc<Events>,
    /// The client's own token.
    token: Option<ProgressToken>,
    /// Who hears of progress.
    peer: Option<Peer<RoleServer>>,
}

/// What a subscriber was not told yet. The same is not told twice, so there is
/// never more than it subscribed to.
#[derive(Default)]
pub(super) struct Events {
    waiting: Mutex<VecDeque<(Value, ServerNotification)>>,
    bell: Notify,
}

impl Events {
    fn push(&self, text: Value, event: ServerNotification) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|(there, _)| *there == text) {
            waiting.push_back((text, event));
            self.bell.notify_one();
        }
    }

    /// The next one.
    pub(super) async fn next(&self) -> ServerNotification {
        loop {
            let waiting = || lock(&self.waiting).pop_front();
            if let Some((_, event)) = waiting() {
                return event;
            }
            self.bell.notified().await;
        }
    }
}

/// A request of the worker for the client.
pub(super) struct Question {
    id: Value,
    pub(super) message: Value,
    pub(super) withdrawn: oneshot::Receiver<()>,
}

/// An answer, and the memory that it takes.
pub(super) struct Answer {
    pub(super) value: Box<RawValue>,
    pub(super) held: Option<OwnedSemaphorePermit>,
}

/// A request under way. Dropping it tells the worker that nobody waits.
pub(super) struct Asked {
    id: u64,
    state: Arc<Mutex<State>>,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    /// What a subscription was granted.
    pub(super) granted: oneshot::Receiver<SubscriptionFilter>,
    pub(super) answer: oneshot::Receiver<Result<Answer, ErrorData>>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    pub(super) events: Arc<Events>,
}

#[derive(Deserialize)]
struct Message<'a> {
    id: Option<Value>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorData>,
}

impl Link {
    /// Begins to read.
    pub(super) fn start(stream: UnixStream, memory: Arc<Semaphore>) -> Arc<Self> {
        let (reader, writer) = stream.into_split();
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let state = Arc::<Mutex<State>>::default();
        let reading =
            Reading { state: Arc::clone(&state), writer: Arc::downgrade(&writer), memory };
        tokio::spawn(reading.run(reader));
        Arc::new(Self { writer, state })
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).over
    }

    /// Whether the worker still hears it. One that stops does not, while it
    /// answers what it heard before.
    pub(super) fn is_heard(&self) -> bool {
        // Whoever writes finds out.
        let Ok(writer) = self.writer.try_lock() else { return !self.is_over() };
        let deaf = |error: io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        !self.is_over() && !writer.try_write(&[]).is_err_and(deaf)
    }

    /// Whether no request waits for its answer.
    pub(super) fn is_silent(&self) -> bool {
        lock(&self.state).pending.is_empty()
    }

    /// Who hears from now on what nobody asked for.
    pub(super) fn belongs_to(&self, peer: Peer<RoleServer>) {
        lock(&self.state).host = Some(peer);
    }

    /// Puts a request.
    ///
    /// # Errors
    /// When the session is over.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: Option<Value>,
        meta: Option<Map<String, Value>>,
        peer: Option<Peer<RoleServer>>,
    ) -> Result<Asked, ErrorData> {
        let (sender, answer) = oneshot::channel();
        let (grant, granted) = oneshot::channel();
        let (questions, asked) = mpsc::unbounded_channel();
        let events = Arc::<Events>::default();
        let mut meta = meta.unwrap_or_default();
        let token = meta.get("progressToken").cloned();
        let id = {
            let mut state = lock(&self.state);
            if state.over {
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
            let pending = Pending { granted, answer: sender, questions, events, token, peer };
            state.pending.insert(id, pending);
            id
        };
        let (state, writer) = (Arc::clone(&self.state), Arc::clone(&self.writer));
        let asked = Asked { id, state, writer, granted, answer, questions: asked, events };
        let mut message = json!({ "jsonrpc": "2.0", "id": id, "method": method });
        put(&mut message, params, meta);
        if self.write(&message).await.is_err() {
            lock(&self.state).over = true;
            return Err(over());
        }
        Ok(asked)
    }

    /// Passes a notification on.
    pub(super) async fn notify(&self, method: &str, params: Option<Value>) {
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        put(&mut message, params, Map::new());
        // A session that is over needs none.
        let _ = self.write(&message).await;
    }

    /// Answers a question of the worker.
    pub(super) async fn answer(&self, question: &Value, outcome: Result<Value, ErrorData>) {
        let message = match outcome {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": question, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": question, "error": error }),
        };
        let _ = self.write(&message).await;
    }

    async fn write(&self, message: &Value) -> io::Result<()> {
        write(&self.writer, message).await
    }
}

impl Question {
    /// Its id, and what else there is.
    pub(super) fn into_parts(self) -> (Value, Value, oneshot::Receiver<()>) {
        (self.id, self.message, self.withdrawn)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if lock(&self.state).pending.remove(&self.id).is_none() {
            return;
        }
        let (id, writer) = (self.id, Arc::clone(&self.writer));
        let reason = "the client does not wait any more";
        let message = json!({
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": { "requestId": id, "reason": reason },
        });
        tokio::spawn(async move {
            let _ = write(&writer, &message).await;
        });
    }
}

/// Reads an answer as what it should be.
pub(super) fn typed<T: DeserializeOwned>(answer: &RawValue) -> Result<T, ErrorData> {
    serde_json::from_str(answer.get()).map_err(|error| {
        tracing::error!(%error, "a worker's answer cannot be read");
        ErrorData::internal_error("the answer cannot be read", None)
    })
}

/// What is said when the worker is gone.
pub(super) fn over() -> ErrorData {
    ErrorData::internal_error("the session with the workspace has ended", None)
}

/// What is said when a reply finds no room.
fn busy() -> ErrorData {
    let why = "the reply is too large for what is under way; it was carried out, try again later";
    ErrorData::internal_error(why, None)
}

/// The thread of a session that reads.
struct Reading {
    state: Arc<Mutex<State>>,
    writer: std::sync::Weak<tokio::sync::Mutex<OwnedWriteHalf>>,
    memory: Arc<Semaphore>,
}

impl Reading {
    async fn run(self, reader: OwnedReadHalf) {
        let mut reader = BufReader::with_capacity(4096, reader);
        loop {
            match line::next(&mut reader, &self.memory).await {
                Ok(Some(Line::Whole(line, held))) => {
                    if self.hear(&line, held).await.is_break() {
                        break;
                    }
                }
                Ok(Some(Line::Lost(begin))) => {
                    let Some(id) = line::id(&begin) else { break };
                    let Some(pending) = lock(&self.state).pending.remove(&id) else { continue };
                    let _ = pending.answer.send(Err(busy()));
                }
                Ok(None) | Err(_) => break,
            }
        }
        let mut state = lock(&self.state);
        state.over = true;
        for (_, pending) in state.pending.drain() {
            let _ = pending.answer.send(Err(over()));
        }
        state.asked.clear();
    }

    /// Deals with one line. What does not say whose it is ends the session: who
    /// waits for it would wait for ever.
    async fn hear(&self, bytes: &[u8], held: Option<OwnedSemaphorePermit>) -> ControlFlow<()> {
        let Ok(message) = serde_json::from_slice::<Message<'_>>(bytes) else {
            tracing::error!("a worker's line cannot be read");
            return ControlFlow::Break(());
        };
        match (message.method, message.id) {
            (None, None) => {
                let why = message.error.map(|error| error.message);
                tracing::warn!(why = why.as_deref(), "a worker answered nobody in particular");
                return ControlFlow::Break(());
            }
            (None, Some(id)) => {
                let pending = id.as_u64().and_then(|id| lock(&self.state).pending.remove(&id));
                // Nobody waits for it any more.
                let Some(pending) = pending else { return ControlFlow::Continue(()) };
                let answer = match (message.result, message.error) {
                    (Some(result), None) => Ok(Answer { value: result.to_owned(), held }),
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

    /// The worker asks the client: through whoever put the request that it is about.
    async fn question(&self, id: Value, bytes: &[u8]) {
        let mut message = serde_json::from_slice(bytes).unwrap_or(Value::Null);
        let meta = message.pointer_mut("/params/_meta").and_then(Value::as_object_mut);
        // That id is between the worker and us.
        let about = meta.and_then(|meta| meta.remove(REQUEST)).and_then(|id| id.as_u64());
        let (withdraw, withdrawn) = oneshot::channel();
        let sent = {
            let mut state = lock(&self.state);
            let pending = about.and_then(|about| state.pending.get(&about));
            let question = Question { id: id.clone(), message, withdrawn };
            let sent = pending.is_some_and(|pending| pending.questions.send(question).is_ok());
            if sent {
                state.asked.insert(id.to_string(), withdraw);
            }
            sent
        };
        if !sent && let Some(writer) = self.writer.upgrade() {
            let error = ErrorData::internal_error("nobody is there to be asked", None);
            let message = json!({ "jsonrpc": "2.0", "id": id, "error": error });
            let _ = write(&writer, &message).await;
        }
    }

    async fn note(&self, method: &str, bytes: &[u8]) {
        if method == ACKNOWLEDGED {
            let granted = subscription(bytes).zip(granted(bytes));
            let Some((subscription, filter)) = granted else { return };
            let mut state = lock(&self.state);
            let pending = state.pending.get_mut(&subscription);
            if let Some(grant) = pending.and_then(|pending| pending.granted.take()) {
                // A client that is gone has no use for it.
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
                // Whoever waits for it tells the client.
                id.and_then(|id| lock(&self.state).asked.remove(&id));
                return;
            }
            other => {
                let Some(host) = lock(&self.state).host.clone() else { return };
                (host, other)
            }
        };
        // A client that is gone hears nothing.
        let _ = peer.send_notification(note).await;
    }

    /// Who asked for this progress, and under which token.
    fn asker(&self, token: &ProgressToken) -> Option<(Peer<RoleServer>, ProgressToken)> {
        let id = json!(token).as_u64()?;
        let state = lock(&self.state);
        let pending = state.pending.get(&id)?;
        Some((pending.peer.clone()?, pending.token.clone()?))
    }
}

/// The request with which a client subscribed to what a notification tells.
fn subscription(bytes: &[u8]) -> Option<u64> {
    let message = serde_json::from_slice::<Value>(bytes).ok()?;
    message.get("params")?.get("_meta")?.get(SUBSCRIPTION)?.as_u64()
}

/// What an acknowledgement grants.
fn granted(bytes: &[u8]) -> Option<SubscriptionFilter> {
    #[derive(Deserialize)]
    struct Acknowledged {
        params: Params,
    }
    #[derive(Deserialize)]
    struct Params {
        notifications: SubscriptionFilter,
    }
    Some(serde_json::from_slice::<Acknowledged>(bytes).ok()?.params.notifications)
}

fn put(message: &mut Value, params: Option<Value>, meta: Map<String, Value>) {
    let mut params = match params {
        Some(Value::Object(params)) => params,
        Some(Value::Null) | None => Map::new(),
        Some(other) => {
            if let Some(message) = message.as_object_mut() {
                message.insert("params".to_owned(), other);
            }
            return;
        }
    };
    if !meta.is_empty() {
        params.insert("_meta".to_owned(), Value::Object(meta));
    }
    if let Some(message) = message.as_object_mut().filter(|_| !params.is_empty()) {
        message.insert("params".to_owned(), Value::Object(params));
    }
}

async fn write(writer: &tokio::sync::Mutex<OwnedWriteHalf>, message: &Value) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.lock().await.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncBufReadExt as _;

    use super::*;

    #[test]
    fn a_refusal_that_names_no_request_leaves_nobody_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let link = Link::start(ours, Arc::new(Semaphore::new(8)));
            let mut asked = link.ask("tools/call", None, None, None).await.unwrap();
            let (reader, mut writer) = theirs.into_split();
            let mut lines = BufReader::new(reader).lines();
            assert!(lines.next_line().await.unwrap().unwrap().contains("tools/call"));
            let refusal =
                b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"\"}}\n";
            writer.write_all(refusal).await.unwrap();
            let answer = tokio::time::timeout(Duration::from_secs(60), &mut asked.answer).await;
            assert_eq!(answer.unwrap().unwrap().err(), Some(over()));
            assert!(link.is_over());
        });
    }

    /// The newest request was asked, which had its answer before the person.
    #[test]
    fn a_question_goes_to_whoever_it_is_about() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let link = Link::start(ours, Arc::new(Semaphore::new(8)));
            let mut older = link.ask("tools/call", None, None, None).await.unwrap();
            let mut newer = link.ask("tools/call", None, None, None).await.unwrap();
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
