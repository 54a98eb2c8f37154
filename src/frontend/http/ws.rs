//! The `files` channel over a WebSocket (RFC 6455): the handshake, and a pump
//! between the socket and the worker, which reads the messages.
//!
//! `GET /workspaces/NAME/ws`. Every close has a reason. A client that does not
//! read, does not answer pings or takes its time over a message has its time; a
//! message is held in memory only as far as the memory for all of them goes.
//! Extensions are not offered, so nothing is ever unpacked.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{
    Caller, Front,
    reply::{self, Body},
};
use crate::model::Door;

/// What of a message is not counted, in bytes.
const SMALL: usize = 64 * 1024;
/// In what steps memory is taken for the rest, in bytes.
const STEP: usize = 64 * 1024;
/// How much is read from a socket at once; each has a buffer of this size.
const READ: usize = 4 * 1024;
/// How long a client may take to answer a close.
const FAREWELL: Duration = Duration::from_secs(5);

/// What bounds the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Largest message from a client, in bytes.
    pub message: usize,
    /// Memory for messages on their way, of all clients, in bytes.
    pub memory: usize,
    /// How often a client is asked whether it is there.
    pub ping: Duration,
    /// How long it may stay silent, pings unanswered and no message whole.
    pub silence: Duration,
    /// How long a client may take to take a message.
    pub write: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // 100 MB in base64, and what is around it.
            message: 144 << 20,
            memory: 512 << 20,
            ping: Duration::from_secs(45),
            silence: Duration::from_secs(120),
            write: Duration::from_secs(30),
        }
    }
}

/// What the sockets of one front share.
#[derive(Debug)]
pub(super) struct Sockets {
    bounds: Bounds,
    memory: Arc<Semaphore>,
}

impl Sockets {
    pub(super) fn new(bounds: Bounds) -> Self {
        let sockets = Self { bounds, memory: Arc::new(Semaphore::new(bounds.steps())) };
        debug_assert!(bounds.memory >= bounds.message, "room for one message");
        sockets
    }

    /// Largest message, in bytes.
    pub(super) fn most(&self) -> usize {
        self.bounds.message
    }

    /// Memory for a message of `length` bytes; `None` when there is too little
    /// now.
    pub(super) fn room(&self, length: usize) -> Option<Option<OwnedSemaphorePermit>> {
        match self.bounds.taken(length) {
            0 => Some(None),
            steps => Arc::clone(&self.memory).try_acquire_many_owned(steps).ok().map(Some),
        }
    }
}

impl Bounds {
    fn steps(&self) -> usize {
        (self.memory / STEP).clamp(1, Semaphore::MAX_PERMITS)
    }

    /// How many steps a message of `length` bytes takes; the largest take all
    /// there are.
    fn taken(&self, length: usize) -> u32 {
        let steps = if length > SMALL { length.div_ceil(STEP).min(self.steps()) } else { 0 };
        u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

/// Shakes hands, opens a session and pumps until either side ends.
pub(super) async fn handle(
    front: Arc<Front>,
    caller: Caller,
    workspace: &str,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let accept = match accept(&request) {
        Ok(accept) => accept,
        Err(refused) => return *refused,
    };
    let worker = match front.open(&caller, workspace, Door::Files).await {
        Ok(worker) => worker,
        Err(error) => return reply::refused(&error),
    };
    let mut reply = Response::new(reply::whole(""));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    // A browser that names protocols wants to hear one of them.
    headers.extend(protocol(request.headers()).map(|word| (SEC_WEBSOCKET_PROTOCOL, word)));
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (from_worker, to_worker) = worker.into_split();
        let stopping = front.stopping();
        pump(front.sockets(), TokioIo::new(upgraded), (from_worker, to_worker), stopping).await;
    });
    reply
}

/// What the handshake is answered with.
fn accept<B>(request: &Request<B>) -> Result<HeaderValue, Box<Response<Body>>> {
    let refuse = |status, why| Err(Box::new(reply::text(status, why)));
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "not with this method");
    }
    let headers = request.headers();
    if !has_word(headers, &UPGRADE, "websocket") || !has_word(headers, &CONNECTION, "upgrade") {
        let mut refused = reply::text(StatusCode::UPGRADE_REQUIRED, "expected a WebSocket");
        refused.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return Err(Box::new(refused));
    }
    if !has_word(headers, &SEC_WEBSOCKET_VERSION, "13") {
        let mut refused = reply::text(StatusCode::UPGRADE_REQUIRED, "only version 13 is spoken");
        refused.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(Box::new(refused));
    }
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).into_iter();
    // 16 bytes in base64.
    let key = keys.next().filter(|key| key.len() == 24 && keys.next().is_none());
    let accept = key.and_then(|key| HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok());
    match accept {
        Some(accept) => Ok(accept),
        None => refuse(StatusCode::BAD_REQUEST, "`Sec-WebSocket-Key` is missing or wrong"),
    }
}

fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// The word before the token, as the client spells it.
fn protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    let mut words =
        values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let word = words.find(|word| word.trim().eq_ignore_ascii_case("bearer"))?;
    HeaderValue::from_str(word.trim()).ok()
}

/// Why a connection is closed.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The client closed, or is gone: there is nobody to tell.
    Gone,
    /// We close, and say so.
    Close(CloseCode, &'static str),
}

/// Pumps between a client and a worker.
async fn pump<S>(
    sockets: &Sockets,
    client: S,
    worker: (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    stopping: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let bounds = &sockets.bounds;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ)
        .write_buffer_size(0)
        .max_message_size(Some(bounds.message))
        .max_frame_size(Some(bounds.message));
    let meter =
        Arc::new(Mutex::new(Meter { memory: Arc::clone(&sockets.memory), held: None, read: 0 }));
    let metered = Metered { inner: client, meter: Arc::clone(&meter) };
    let socket = WebSocketStream::from_raw_socket(metered, Role::Server, Some(config)).await;
    let (mut to_client, mut from_client) = socket.split();
    let heard = Mutex::new(Instant::now());
    let end = tokio::select! {
        end = inward(&mut from_client, worker.1, &meter, &heard) => end,
        end = outward(sockets, &mut to_client, worker.0, &heard) => end,
        () = stopping => End::Close(CloseCode::Away, "the service is stopping"),
    };
    if let End::Close(code, reason) = end {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        let farewell = async {
            if to_client.send(Message::Close(Some(frame))).await.is_ok() {
                // Whatever comes before the client's own close is passed over.
                while let Some(Ok(_)) = from_client.next().await {}
            }
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }
}

/// Client → worker.
async fn inward(
    client: &mut (impl Stream<Item = tungstenite::Result<Message>> + Unpin),
    mut worker: impl AsyncWrite + Unpin,
    meter: &Mutex<Meter>,
    heard: &Mutex<Instant>,
) -> End {
    loop {
        let message = match client.next().await {
            Some(Ok(message)) => message,
            Some(Err(error)) => return ended(&error),
            None => return End::Gone,
        };
        *lock(heard) = Instant::now();
        // Held until it is through.
        let _held = lock(meter).next();
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => {
                return End::Close(CloseCode::Unsupported, "only text messages are understood");
            }
            Message::Close(_) => return End::Gone,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        let Ok(length) = u32::try_from(text.len()) else {
            return End::Close(CloseCode::Size, "the message is too large");
        };
        let sent = async {
            worker.write_all(&length.to_be_bytes()).await?;
            worker.write_all(text.as_bytes()).await
        };
        if sent.await.is_err() {
            return End::Close(CloseCode::Error, "the session has ended");
        }
    }
}

/// Worker → client, and pings.
async fn outward(
    sockets: &Sockets,
    client: &mut (impl Sink<Message> + Unpin),
    mut worker: impl AsyncRead + Unpin,
    heard: &Mutex<Instant>,
) -> End {
    let Bounds { ping, silence, write, .. } = sockets.bounds;
    let mut next_ping = tokio::time::Instant::now() + ping;
    let mut coming = Coming::default();
    loop {
        let message = tokio::select! {
            // Goes on where it was when a ping came between.
            read = coming.read(&mut worker, sockets) => match read {
                Ok(Some(message)) => message,
                Ok(None) => return End::Close(CloseCode::Error, "the session has ended"),
                Err(error) => {
                    tracing::warn!(%error, "a worker's message cannot be read");
                    return End::Close(CloseCode::Error, "the session broke off");
                }
            },
            () = tokio::time::sleep_until(next_ping.min(end_of(heard, silence).into())) => {
                if end_of(heard, silence) <= Instant::now() {
                    return End::Close(CloseCode::Away, "no answer to pings");
                }
                if tokio::time::Instant::now() < next_ping {
                    continue;
                }
                next_ping += ping;
                (Message::Ping(Bytes::new()), None)
            }
        };
        match tokio::time::timeout(write, client.send(message.0)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return End::Gone,
            Err(_) => return End::Close(CloseCode::Away, "messages are not read"),
        }
    }
}

/// Until when a client may be silent.
fn end_of(heard: &Mutex<Instant>, silence: Duration) -> Instant {
    *lock(heard) + silence
}

/// What to say to a client that broke a rule.
fn ended(error: &tungstenite::Error) -> End {
    use tungstenite::Error as E;
    match error {
        E::Capacity(_) => End::Close(CloseCode::Size, "the message is too large"),
        E::Utf8(_) => End::Close(CloseCode::Invalid, "the message is not UTF-8"),
        E::Protocol(_) => End::Close(CloseCode::Protocol, "not as RFC 6455 says"),
        E::Io(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            End::Close(CloseCode::Again, "too much is under way; try again later")
        }
        _ => End::Gone,
    }
}

/// A worker's message that may have come in part.
#[derive(Default)]
struct Coming {
    length: [u8; 4],
    have: usize,
    bytes: Option<Vec<u8>>,
    room: Option<OwnedSemaphorePermit>,
}

impl Coming {
    /// The next message and the memory that it holds; nothing at the end.
    /// Nothing is lost when this is given up and begun again.
    async fn read(
        &mut self,
        worker: &mut (impl AsyncRead + Unpin),
        sockets: &Sockets,
    ) -> io::Result<Option<(Message, Option<OwnedSemaphorePermit>)>> {
        while let Some(rest) = self.length.get_mut(self.have..).filter(|rest| !rest.is_empty()) {
            match worker.read(rest).await? {
                0 if self.have == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => self.have += more,
            }
        }
        let length = usize::try_from(u32::from_be_bytes(self.length)).unwrap_or(usize::MAX);
        let steps = sockets.bounds.taken(length);
        if steps > 0 && self.room.is_none() {
            let room = Arc::clone(&sockets.memory).acquire_many_owned(steps).await;
            self.room = Some(room.map_err(io::Error::other)?);
        }
        let bytes = self.bytes.get_or_insert_with(|| Vec::with_capacity(length));
        while bytes.len() < length {
            let left = u64::try_from(length - bytes.len()).unwrap_or(u64::MAX);
            if (&mut *worker).take(left).read_buf(bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.have = 0;
        let bytes = Bytes::from(self.bytes.take().unwrap_or_default());
        let text = Utf8Bytes::try_from(bytes).map_err(io::Error::other)?;
        Ok(Some((Message::Text(text), self.room.take())))
    }
}

/// What a client's message takes while it arrives.
struct Meter {
    memory: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    read: usize,
}

impl Meter {
    /// Whether there is memory for more.
    fn more(&mut self) -> bool {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if self.read < held.saturating_mul(STEP).saturating_add(SMALL) {
            return true;
        }
        // Not waited for: those that wait for each other would wait for ever.
        let Ok(step) = Arc::clone(&self.memory).try_acquire_owned() else { return false };
        match &mut self.held {
            Some(held) => held.merge(step),
            None => self.held = Some(step),
        }
        true
    }

    /// A message is whole: what it holds is now the reader's.
    fn next(&mut self) -> Option<OwnedSemaphorePermit> {
        self.read = 0;
        self.held.take()
    }
}

/// A stream whose reader takes memory as it reads.
struct Metered<S> {
    inner: S,
    meter: Arc<Mutex<Meter>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !lock(&self.meter).more() {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let more = buffer.filled().len().saturating_sub(before);
        let mut meter = lock(&self.meter);
        meter.read = meter.read.saturating_add(more);
        drop(meter);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
