//! The `files` channel: requests and replies about the files of one workspace, as JSON
//! messages, for a client whose WebSocket belongs to another process.
//!
//! Between that process and this one a message is its length (four bytes, big endian) and
//! as many bytes of UTF-8. `wire` parses messages, `request` turns them into requests to
//! the gateway, `reply` renders replies, and `changes` sends changes. Requests of a client
//! are carried out one after the other; one that waits for an approval lets the next ones
//! go on.
//!
//! Memory is bounded for all clients together, and for each agent: a large message is read
//! only once memory is reserved for it.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use portcullis_audit::Receipt;
use portcullis_rpc::{MemoryBudget, MemoryShares, Reservation};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    sync::Mutex,
    task::JoinHandle,
};

use crate::{
    buffer,
    gateway::{self, Gateway, MAX_LIST, Subscription},
    lock,
    model::{Access, AgentName, Session, Transport},
};

mod approver;
mod changes;
mod memory;
mod reply;
mod request;
mod request_slots;
mod wire;

use approver::{HeldSlot, WaitingApprover};
use memory::{MAX_COPIES, MAX_UNCOUNTED, reserve};
use reply::Reply;
use request::ParsedRequest;
use request_slots::{AgentSlots, RequestSlots};
use wire::{ClientMessage, Malformed};

/// Timeout for the replies to requests that waited for approvals, once the client has
/// left.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of shares of the memory; the clients of one agent have one share.
const MEMORY_SHARES: usize = 4;
/// The number of shares of the slots; the clients of one agent have one share.
const SLOT_SHARES: usize = 2;

/// The limits of the channel in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Largest message in bytes. Base64 makes a content a third longer, escapes make a
    /// text longer still.
    pub message: usize,
    /// Memory for large messages in flight, of all clients, in bytes.
    pub memory: usize,
    /// Maximum of requests carried out at once, with subscriptions that begin.
    pub requests: usize,
}

impl Default for ChannelLimits {
    /// Returns limits for files of 100 MB.
    fn default() -> Self {
        Self { message: 144 << 20, memory: 512 << 20, requests: 16 }
    }
}

/// The reason why a client is served no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream failed.
    #[error("the connection broke: {0}")]
    Stream(#[from] io::Error),
    /// A message exceeds the maximum.
    #[error("a message of {0} bytes is too large")]
    TooLarge(usize),
    /// There is no memory for a message.
    #[error("there is no memory for a message of {0} bytes")]
    NoMemory(usize),
    /// The client has stopped reading replies.
    #[error("the client does not read replies: {reason}")]
    NotReading {
        /// The error of the last reply.
        reason: io::Error,
        /// The number of requests that were received and not begun.
        left: usize,
    },
    /// The agent's session was revoked.
    #[error("the session is closed to the agent, or the workspace to all")]
    Revoked {
        /// The number of requests that were received and not begun.
        left: usize,
    },
}

/// The reason why a message was not carried out.
enum RejectedMessage {
    /// Its reply could not be sent.
    NotReading(io::Error),
    /// The client's session was revoked.
    Revoked,
}

/// The channel over one gateway, for any number of clients.
#[derive(Debug)]
pub struct Channel {
    gateway: Arc<Gateway>,
    limits: ChannelLimits,
    memory: MemoryShares<AgentName>,
    slots: RequestSlots,
}

/// The state shared by the requests of one client.
struct Client<W> {
    channel: Arc<Channel>,
    session: Session,
    share: MemoryBudget,
    slots: AgentSlots,
    output: Mutex<W>,
    /// Tasks of requests that waited for an approval.
    approval_tasks: std::sync::Mutex<Vec<JoinHandle<io::Result<()>>>>,
    /// Set once no further request of the client may begin.
    revoked: Arc<AtomicBool>,
}

impl Channel {
    /// Makes the channel of `gateway`.
    pub fn new(gateway: Arc<Gateway>, limits: ChannelLimits) -> Arc<Self> {
        let memory =
            MemoryShares::new(MemoryBudget::new(limits.memory), limits.memory / MEMORY_SHARES);
        let slots = RequestSlots::new(limits.requests, limits.requests / SLOT_SHARES);
        Arc::new(Self { gateway, limits, memory, slots })
    }

    /// Serves one client until it closes its side; requests received by then get replies.
    /// If the client does not read replies, or is `revoked`, no further request is begun, and
    /// the number of those received is recorded. The setter of `revoked` must shut the
    /// stream down, too.
    ///
    /// # Errors
    /// When the stream fails, or the client breaks the framing.
    pub async fn serve(
        self: &Arc<Self>,
        session: Session,
        stream: UnixStream,
        revoked: Arc<AtomicBool>,
    ) -> Result<(), Error> {
        let (input, output) = stream.into_split();
        let served = self.pump(&session, input, output, revoked).await;
        if let Err(error) = &served {
            let mut facts = facts(&error.to_string());
            if let Error::NotReading { left, .. } | Error::Revoked { left } = error {
                facts.insert("notStarted".to_owned(), json!(left));
            }
            self.report(&session, facts);
        }
        self.gateway.end_session(&session);
        served
    }

    async fn pump(
        self: &Arc<Self>,
        session: &Session,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin + Send + 'static,
        revoked: Arc<AtomicBool>,
    ) -> Result<(), Error> {
        // Small, for there may be thousands; large messages go past it.
        let mut input = BufReader::with_capacity(512, input);
        let client = Arc::new(Client {
            channel: Arc::clone(self),
            session: session.clone(),
            share: self.memory.share(session.agent.clone()),
            slots: self.slots.of(&session.agent),
            output: Mutex::new(output),
            approval_tasks: std::sync::Mutex::default(),
            revoked,
        });
        let changes = Arc::clone(&client).watch().await;
        let served = async {
            loop {
                let pause = self.gateway.pause(session);
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                let message = self.message(&mut input, &client.share).await?;
                let Some((bytes, memory)) = message else { return Ok(()) };
                let Err(reason) = client.handle(bytes, memory).await else { continue };
                let left = left(&mut input).await;
                return Err(match reason {
                    RejectedMessage::NotReading(reason) => Error::NotReading { reason, left },
                    // The message at hand counts as well.
                    RejectedMessage::Revoked => Error::Revoked { left: left.saturating_add(1) },
                });
            }
        };
        let Some(changes) = changes else {
            let served = served.await;
            client.finish().await;
            return served;
        };
        let change_task = tokio::spawn(changes::send(Arc::clone(&client), changes.clone()));
        let served = served.await;
        // The task ends by itself then, without tearing a message.
        self.gateway.unwatch(&changes);
        client.finish().await;
        change_task.abort();
        served
    }

    /// Reads the next message, once memory is reserved for it.
    async fn message(
        &self,
        input: &mut (impl AsyncRead + Unpin),
        share: &MemoryBudget,
    ) -> Result<Option<(Vec<u8>, Option<Reservation>)>, Error> {
        let Some(length) = length(input).await? else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > self.limits.message {
            return Err(Error::TooLarge(length));
        }
        let memory = reserve(share, length).await;
        // A small message always has memory.
        if memory.is_some() && !buffer::is_free(length.saturating_mul(MAX_COPIES)) {
            return Err(Error::NoMemory(length));
        }
        let mut bytes = vec![0; length];
        input.read_exact(&mut bytes).await?;
        Ok(Some((bytes, memory)))
    }

    /// Records a message that is no request.
    fn report(&self, session: &Session, facts: BTreeMap<String, Value>) -> Option<Receipt> {
        let recorded = self.gateway.report(session, "files.dropped", facts);
        // Without its log the gateway refuses every request anyway.
        recorded.inspect_err(|error| tracing::error!(%error, "cannot record")).ok()
    }

    /// Returns the maximum size of the content or list that a message asks for; the actual
    /// size is unknown until it is read.
    fn largest_reply(&self, message: &[u8]) -> Option<usize> {
        // A larger message of these types is refused by the parser.
        let kind = (message.len() <= MAX_UNCOUNTED).then(|| wire::kind(message))?;
        match kind.as_deref()? {
            "read" => {
                let maximum = self.gateway.policy().max_size(Access::Read, Transport::Files);
                Some(usize::try_from(maximum).unwrap_or(usize::MAX))
            }
            "list" => Some(MAX_LIST),
            _ => None,
        }
    }
}

/// Returns the record's facts for a dropped message.
fn facts(reason: &str) -> BTreeMap<String, Value> {
    BTreeMap::from([("reason".to_owned(), json!(reason))])
}

/// Reads the length of the next message; `None` at the end.
async fn length(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<u32>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length).await {
        Ok(_) => Ok(Some(u32::from_be_bytes(length))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Counts the complete messages that are left in the stream.
async fn left(input: &mut (impl AsyncRead + Unpin)) -> usize {
    let mut count = 0_usize;
    while let Ok(Some(length)) = length(input).await {
        let mut message = (&mut *input).take(length.into());
        match tokio::io::copy(&mut message, &mut tokio::io::sink()).await {
            Ok(copied) if copied == u64::from(length) => count = count.saturating_add(1),
            _ => break,
        }
    }
    count
}

impl<W: AsyncWrite + Unpin + Send + 'static> Client<W> {
    /// Subscribes to changes; a client that may see nothing gets no messages.
    async fn watch(self: Arc<Self>) -> Option<Subscription> {
        // Subscribing may walk the whole workspace.
        let slot = self.slots.take().await?;
        let client = Arc::clone(&self);
        let watched = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            client.channel.gateway.watch(&client.session, &changes::query())
        });
        let watched = watched.await.ok()?;
        match watched {
            Ok(watching) => Some(watching.output),
            Err(error) => {
                tracing::warn!(%error, "a client is notified of no changes");
                // A refusal by the policy is not sent to the client.
                let policy = error.rule().is_some_and(|rule| !rule.starts_with("serve.limits."));
                if !policy {
                    changes::send_end(&self, &error).await;
                }
                None
            }
        }
    }

    /// Withdraws the client's pending approvals: requests that wait for one are cancelled
    /// and get a reply.
    async fn finish(&self) {
        for ticket in self.channel.gateway.approvals().waiting() {
            if ticket.question().session == self.session {
                ticket.withdraw();
            }
        }
        let tasks = std::mem::take(&mut *lock(&self.approval_tasks));
        let answered = async {
            for task in tasks {
                // A client that is gone gets no reply, but there is a record.
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(REPLY_TIMEOUT, answered).await;
    }

    /// Carries out one message; returns when the next one may be read.
    async fn handle(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        memory: Option<Reservation>,
    ) -> Result<(), RejectedMessage> {
        let (free, freed) = tokio::sync::oneshot::channel();
        let reply = self.channel.largest_reply(&bytes);
        let memory = match reply {
            Some(reply) => reserve(&self.share, reply).await,
            None => memory,
        };
        let Some(slot) = self.slots.take().await else { return Ok(()) };
        if self.revoked.load(Ordering::SeqCst) {
            return Err(RejectedMessage::Revoked);
        }
        let held = HeldSlot { free: Some(free), slot: Some(slot), reply, memory };
        let held = Arc::new(std::sync::Mutex::new(held));
        let client = Arc::clone(self);
        let mut task = tokio::spawn(async move {
            let (worker, slot) = (Arc::clone(&client), Arc::clone(&held));
            let reply = tokio::task::spawn_blocking(move || worker.carry_out(bytes, &slot)).await;
            let reply = reply.map_err(io::Error::other)?;
            // A client that does not read keeps the memory of its reply only, and no slot.
            let mut memory = {
                let mut held = lock(&held);
                held.slot = None;
                held.memory.take()
            };
            memory.iter_mut().for_each(|memory| memory.shrink(reply.len()));
            client.send_message(&reply).await
        });
        tokio::select! {
            ended = &mut task => {
                ended.map_err(io::Error::other).flatten().map_err(RejectedMessage::NotReading)
            }
            // The request waits for an approval; its reply comes later.
            Ok(()) = freed => {
                let mut tasks = lock(&self.approval_tasks);
                tasks.retain(|task| !task.is_finished());
                tasks.push(task);
                Ok(())
            }
        }
    }

    /// Sends one message; waits while the client does not read.
    async fn send_message(&self, message: &[u8]) -> io::Result<()> {
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let mut output = self.output.lock().await;
        output.write_all(&length.to_be_bytes()).await?;
        output.write_all(message).await?;
        output.flush().await
    }

    /// Returns the reply to a message. Blocks on the disk.
    fn carry_out(&self, bytes: Vec<u8>, slot: &std::sync::Mutex<HeldSlot>) -> Vec<u8> {
        let gateway = &self.channel.gateway;
        let message = match wire::parse(&bytes) {
            Ok(message) => message,
            Err(Malformed { head, reason }) => {
                let receipt = self.channel.report(&self.session, facts(&reason));
                return Reply::to(&head).failed_because(&reason, receipt.as_ref());
            }
        };
        let ClientMessage { head, fields } = message;
        let reply = Reply::to(&head);
        let request = match ParsedRequest::new(fields) {
            Ok(request) => request,
            Err(rejected) => {
                let path = rejected.path.as_deref();
                let error = gateway.refuse(&self.session, &rejected.op, path, &rejected.refusal);
                return reply.failed(&error, rejected.client_message.as_deref());
            }
        };
        drop(bytes);
        let approver = WaitingApprover { slot, share: &self.share };
        request.send(gateway, &self.session, gateway::Client::asking(&approver), &reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_takes_no_reply_keeps_only_itself_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let memory =
                MemoryShares::new(MemoryBudget::new(512 << 20), (512 << 20) / MEMORY_SHARES);
            let now = async |agent: &str, length| {
                let share = memory.share(agent.parse::<AgentName>().unwrap());
                tokio::time::timeout(Duration::ZERO, reserve(&share, length)).await.ok()
            };
            let mut held = Vec::new();
            // Each request reads 10 MiB, and its reply is not taken.
            while let Some(Some(mut reserved)) = now("a", 10 << 20).await {
                reserved.shrink(10 << 20);
                held.push(reserved);
                assert!(held.len() < 100);
            }
            assert!(matches!(now("a", MAX_UNCOUNTED).await, Some(None)));
            for _ in 0..4 {
                assert!(matches!(now("b", 10 << 20).await, Some(Some(_))));
            }
            drop(held);
            assert!(matches!(now("a", 10 << 20).await, Some(Some(_))));
        });
    }
}
