//! The `files` channel: requests and replies about the files of one workspace,
//! as JSON messages, for a client whose WebSocket another process holds.
//!
//! Between that process and this one a message is its length (four bytes, big
//! endian) and as many bytes of UTF-8. `wire` reads messages, `request` makes
//! operations of them, which the gateway decides about, `reply` renders, and
//! `changes` tells what changes. Requests of a client are carried out one after the
//! other; one that waits for a person lets the next ones go on.
//!
//! Memory is bounded for all clients together, and for each agent: a large
//! message is read only once there is room for it.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
    model::{Access, AgentName, Door, Session},
};

mod aside;
mod changes;
mod memory;
mod reply;
mod request;
mod turns;
mod wire;

use aside::{Aside, HeldSlot};
use memory::{COPIES, MAX_UNCOUNTED, reserve};
use reply::Reply;
use request::Wanted;
use turns::{AgentSlots, RequestSlots};
use wire::{ClientMessage, Malformed};

/// How long requests that waited for a person may take over their answers once nobody
/// is asked any more.
const ANSWERS: Duration = Duration::from_secs(2);
/// Shares of the memory; the clients of one agent have one of them.
const SHARES: usize = 4;
/// Shares of the turns; the same.
const TURN_SHARES: usize = 2;

/// What bounds the channel in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Largest message in bytes. Base64 makes a content a third longer, escapes
    /// make a text longer still.
    pub message: usize,
    /// Memory for large messages under way, of all clients, in bytes.
    pub memory: usize,
    /// Requests that are carried out, and subscriptions that begin, at once.
    pub requests: usize,
}

impl Default for ChannelLimits {
    /// For files of 100 MB.
    fn default() -> Self {
        Self { message: 144 << 20, memory: 512 << 20, requests: 16 }
    }
}

/// A client cannot be served any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream broke.
    #[error("the connection broke: {0}")]
    Stream(#[from] io::Error),
    /// A message is larger than it may be.
    #[error("a message of {0} bytes is too large")]
    TooLarge(usize),
    /// There is no memory for a message.
    #[error("there is no memory for a message of {0} bytes")]
    NoMemory(usize),
    /// It takes no answers any more.
    #[error("the client takes no answers: {why}")]
    Deaf {
        /// What came of the last answer.
        why: io::Error,
        /// Requests that had come and were not begun.
        left: usize,
    },
    /// It may have the session no more.
    #[error("the session is closed to the agent, or the workspace to all")]
    Revoked {
        /// Requests that had come and were not begun.
        left: usize,
    },
}

/// Why a message was not dealt with as it should be.
enum Unheard {
    /// Its answer could not be sent.
    Deaf(io::Error),
    /// Whoever said it may not any more.
    Revoked,
}

/// The channel over one gateway, for any number of clients.
#[derive(Debug)]
pub struct Channel {
    gateway: Arc<Gateway>,
    limits: ChannelLimits,
    memory: MemoryShares<AgentName>,
    turns: RequestSlots,
}

/// What is shared by the requests of one client.
struct Client<W> {
    channel: Arc<Channel>,
    session: Session,
    share: MemoryBudget,
    turns: AgentSlots,
    output: Mutex<W>,
    waiting: AtomicUsize,
    /// Those that wait, or did.
    aside: std::sync::Mutex<Vec<JoinHandle<io::Result<()>>>>,
    /// Nothing more of what it has said is begun.
    revoked: Arc<AtomicBool>,
}

impl Channel {
    /// A channel without clients yet.
    pub fn new(gateway: Arc<Gateway>, limits: ChannelLimits) -> Arc<Self> {
        let memory = MemoryShares::new(MemoryBudget::new(limits.memory), limits.memory / SHARES);
        let turns = RequestSlots::new(limits.requests, limits.requests / TURN_SHARES);
        Arc::new(Self { gateway, limits, memory, turns })
    }

    /// Serves one client until it closes its side; what it has said by then is
    /// answered. Of one that takes no answers, or is `revoked`, nothing more is begun,
    /// and what it had said is counted in a record. Whoever sets `revoked` shuts the
    /// stream, too.
    ///
    /// # Errors
    /// When the stream breaks, or the client does not keep to the framing.
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
            if let Error::Deaf { left, .. } | Error::Revoked { left } = error {
                facts.insert("notBegun".to_owned(), json!(left));
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
            turns: self.turns.of(&session.agent),
            output: Mutex::new(output),
            waiting: AtomicUsize::new(0),
            aside: std::sync::Mutex::default(),
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
                let Err(why) = client.hear(bytes, memory).await else { continue };
                let left = left(&mut input).await;
                return Err(match why {
                    Unheard::Deaf(why) => Error::Deaf { why, left },
                    // That one, too.
                    Unheard::Revoked => Error::Revoked { left: left.saturating_add(1) },
                });
            }
        };
        let Some(changes) = changes else {
            let served = served.await;
            client.finish().await;
            return served;
        };
        let telling = tokio::spawn(changes::tell(Arc::clone(&client), changes.clone()));
        let served = served.await;
        // It ends then, and tears no message that others follow.
        self.gateway.unwatch(&changes);
        client.finish().await;
        telling.abort();
        served
    }

    /// The next message, once there is room for it.
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
        // A small message finds memory in any case.
        if memory.is_some() && !buffer::is_free(length.saturating_mul(COPIES)) {
            return Err(Error::NoMemory(length));
        }
        let mut bytes = vec![0; length];
        input.read_exact(&mut bytes).await?;
        Ok(Some((bytes, memory)))
    }

    /// Records what was no request.
    fn report(&self, session: &Session, facts: BTreeMap<String, Value>) -> Option<Receipt> {
        let recorded = self.gateway.report(session, "files.dropped", facts);
        // Without its log the gateway refuses every file by itself.
        recorded.inspect_err(|error| tracing::error!(%error, "cannot record")).ok()
    }

    /// The size of the content or list that a message asks for at most: nobody knows it
    /// before.
    fn largest_reply(&self, message: &[u8]) -> Option<usize> {
        // A large one is refused where it asks for that.
        let kind = (message.len() <= MAX_UNCOUNTED).then(|| wire::kind(message))?;
        match kind.as_deref()? {
            "read" => {
                let most = self.gateway.policy().max_size(Access::Read, Door::Files);
                Some(usize::try_from(most).unwrap_or(usize::MAX))
            }
            "list" => Some(MAX_LIST),
            _ => None,
        }
    }
}

/// Why something is dropped.
fn facts(why: &str) -> BTreeMap<String, Value> {
    BTreeMap::from([("why".to_owned(), json!(why))])
}

/// How long the next message is; nothing at the end.
async fn length(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<u32>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length).await {
        Ok(_) => Ok(Some(u32::from_be_bytes(length))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// How many whole messages there still are.
async fn left(input: &mut (impl AsyncRead + Unpin)) -> usize {
    let mut whole = 0_usize;
    while let Ok(Some(length)) = length(input).await {
        let mut message = (&mut *input).take(length.into());
        match tokio::io::copy(&mut message, &mut tokio::io::sink()).await {
            Ok(copied) if copied == u64::from(length) => whole = whole.saturating_add(1),
            _ => break,
        }
    }
    whole
}

impl<W: AsyncWrite + Unpin + Send + 'static> Client<W> {
    /// Subscribes to what changes; a client that may not see anything is told
    /// nothing.
    async fn watch(self: Arc<Self>) -> Option<Subscription> {
        // It may walk all of the workspace.
        let turn = self.turns.take().await?;
        let client = Arc::clone(&self);
        let watched = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            client.channel.gateway.watch(&client.session, &changes::query())
        });
        let watched = watched.await.ok()?;
        match watched {
            Ok(watching) => Some(watching.output),
            Err(error) => {
                tracing::warn!(%error, "a client is told of no changes");
                // Of what the policy does not let it see it hears nothing at all.
                let policy = error.rule().is_some_and(|rule| !rule.starts_with("serve.limits."));
                if !policy {
                    changes::say_over(&self, &error).await;
                }
                None
            }
        }
    }

    /// Nobody is asked any more for this client: what waits for an answer is
    /// cancelled, and says so.
    async fn finish(&self) {
        for ticket in self.channel.gateway.approvals().waiting() {
            if ticket.question().session == self.session {
                ticket.withdraw();
            }
        }
        let aside = std::mem::take(&mut *lock(&self.aside));
        let answered = async {
            for done in aside {
                // One that is gone hears nothing, and has a record.
                let _ = done.await;
            }
        };
        let _ = tokio::time::timeout(ANSWERS, answered).await;
    }

    /// Deals with one message; returns when the next one may be heard.
    async fn hear(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        memory: Option<Reservation>,
    ) -> Result<(), Unheard> {
        let (free, freed) = tokio::sync::oneshot::channel();
        let reply = self.channel.largest_reply(&bytes);
        let memory = match reply {
            Some(reply) => reserve(&self.share, reply).await,
            None => memory,
        };
        let Some(turn) = self.turns.take().await else { return Ok(()) };
        if self.revoked.load(Ordering::SeqCst) {
            return Err(Unheard::Revoked);
        }
        let place = HeldSlot { free: Some(free), turn: Some(turn), reply, memory };
        let place = Arc::new(std::sync::Mutex::new(place));
        let client = Arc::clone(self);
        let mut done = tokio::spawn(async move {
            let (worker, taken) = (Arc::clone(&client), Arc::clone(&place));
            let reply = tokio::task::spawn_blocking(move || worker.carry_out(bytes, &taken)).await;
            let reply = reply.map_err(io::Error::other)?;
            // A client that does not read holds no more than its reply, and nobody's turn.
            let mut memory = {
                let mut place = lock(&place);
                place.turn = None;
                place.memory.take()
            };
            memory.iter_mut().for_each(|memory| memory.shrink(reply.len()));
            client.say(&reply).await
        });
        tokio::select! {
            said = &mut done => {
                said.map_err(io::Error::other).flatten().map_err(Unheard::Deaf)
            }
            // It waits for a person; its answer comes later.
            Ok(()) = freed => {
                let mut aside = lock(&self.aside);
                aside.retain(|done| !done.is_finished());
                aside.push(done);
                Ok(())
            }
        }
    }

    /// Sends one message, waiting while the client does not read.
    async fn say(&self, message: &[u8]) -> io::Result<()> {
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let mut output = self.output.lock().await;
        output.write_all(&length.to_be_bytes()).await?;
        output.write_all(message).await?;
        output.flush().await
    }

    /// Answers a message. Blocks on the disk.
    fn carry_out(&self, bytes: Vec<u8>, place: &std::sync::Mutex<HeldSlot>) -> Vec<u8> {
        let gateway = &self.channel.gateway;
        let message = match wire::parse(&bytes) {
            Ok(message) => message,
            Err(Malformed { head, why }) => {
                let receipt = self.channel.report(&self.session, facts(&why));
                return Reply::to(&head).failed_because(&why, receipt.as_ref());
            }
        };
        let ClientMessage { head, wanted } = message;
        let reply = Reply::to(&head);
        let wanted = match Wanted::new(wanted) {
            Ok(wanted) => wanted,
            Err(trouble) => {
                let path = trouble.path.as_deref();
                let error = gateway.refuse(&self.session, &trouble.op, path, &trouble.refusal);
                return reply.failed(&error, trouble.said.as_deref());
            }
        };
        drop(bytes);
        let aside = Aside { place, waiting: &self.waiting, share: &self.share };
        wanted.put(gateway, &self.session, gateway::Client::asking(&aside), &reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_takes_no_reply_keeps_only_itself_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let memory = MemoryShares::new(MemoryBudget::new(512 << 20), (512 << 20) / SHARES);
            let now = async |agent: &str, length| {
                let share = memory.share(agent.parse::<AgentName>().unwrap());
                tokio::time::timeout(Duration::ZERO, reserve(&share, length)).await.ok()
            };
            let mut held = Vec::new();
            // Each of these reads 10 MiB, and its reply is not taken.
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
