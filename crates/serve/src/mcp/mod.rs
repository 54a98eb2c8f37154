//! The Model Context Protocol over streamable HTTP: `rmcp` handles the client's
//! side, and each session's messages are forwarded to the worker, one a line, as
//! over its standard streams.
//!
//! `/workspaces/NAME/mcp`, and `/mcp` for a token of one workspace. A session
//! belongs to the token that opened it. From the revision 2026-07-28 on there are no
//! sessions: there all requests of a token to a workspace share one session with the
//! worker. This module decides nothing, and knows no tools.

mod absent;
mod cancellation;
mod error_reply;
mod ids;
mod in_transit;
mod introduction;
mod lenient_json;
mod line;
mod link;
mod listen;
mod pieces;
mod priming;
mod reading;
mod refused;
mod relay;
mod session_scheduler;
mod sessions;
mod shared;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body as _, Bytes, Incoming},
    http::request::Parts,
};
use portcullis_mcp::{message, values_of};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    Caller, Front, OpenError, TokenHash, WORKER_REPLY_TIMEOUT,
    reply::{self, Body},
    ws,
};
use crate::lock;
use ids::{Handled, Head};
use in_transit::InTransit;
use pieces::Pieces;
use relay::Relay;
use session_scheduler::{ActiveSessions, SessionScheduler};
use sessions::{NewSessionLink, Sessions};
use shared::{Ids, Refusal, Shared};

/// Time for which a token's unused state is retained: longer than any request takes
/// to arrive.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum interval between searches for unused state.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The header with the id of a session.
const SESSION_ID: &str = "mcp-session-id";
/// The header with the id of the last event of a stream that is resumed.
const LAST_EVENT: &str = "last-event-id";
/// Largest body without an announced length, in bytes.
const MAX_UNSIZED_BODY: usize = 1 << 20;
/// Permits for requests in flight; never exhausted.
const REQUEST_PERMITS: u32 = 1 << 20;
/// Maximum of pairs of token and workspace that have an endpoint.
const MAX_SESSIONS: usize = 4096;

type Service = StreamableHttpService<Relay, LocalSessionManager>;

/// The MCP endpoints of one front.
#[derive(Default)]
pub(super) struct Mcp {
    endpoints: Mutex<HashMap<(TokenHash, String), Endpoint>>,
    active_sessions: Arc<ActiveSessions>,
}

/// The endpoint of one token at one workspace.
struct Endpoint {
    service: Service,
    shared: Arc<Shared>,
    used: Instant,
}

/// The service and the state of an endpoint, for one request.
type EndpointService = (Service, Arc<Shared>);

/// Handles one request; without `workspace` it goes to the caller's only one.
pub(super) async fn handle(
    front: &Arc<Front>,
    mcp: &Mcp,
    caller: Caller,
    workspace: Option<&str>,
    request: Request<Incoming>,
) -> Response<Body> {
    if !matches!(*request.method(), Method::GET | Method::POST | Method::DELETE) {
        return reply::not_so("GET, POST, DELETE");
    }
    let (service, shared) = match service(front, mcp, &caller, workspace).await {
        Ok(service) => service,
        Err(refused) => return *refused,
    };
    let (parts, body) = request.into_parts();
    let length = body.size_hint().exact();
    let length = length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if length.is_some_and(|length| length > front.sockets().most()) {
        return reply::text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
    }
    let most = length.unwrap_or(MAX_UNSIZED_BODY).min(front.sockets().most());
    let mut memory = front.sockets().share(caller.token).empty();
    // Memory is reserved for bytes that have arrived, not for the announced length.
    let holds = |length| ws::cover(&mut memory, length);
    let bytes = match reply::body(body, most, front.limits().body, holds).await {
        Ok(bytes) => bytes,
        Err(refused) => return *refused,
    };
    let is_delete = parts.method == Method::DELETE;
    let session = parts.headers.get(SESSION_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    // The body of a session that does not exist is not parsed: that delays other sessions.
    let names_session = is_delete || ids::has_sessions(&parts.headers);
    if let Some(id) = session.as_deref()
        && (shared.sessions.has_stopped_reading(id)
            || (names_session && !shared.sessions.exists(id).await))
    {
        tracing::debug!(id, "a session has ended");
        return reply::text(StatusCode::NOT_FOUND, "the session has ended");
    }
    let is_post = parts.method == Method::POST;
    let size = bytes.len().saturating_add(values_of(&bytes));
    if is_post && !ws::cover(&mut memory, size) {
        return reply::full();
    }
    let under_way =
        if is_post { Arc::clone(&shared.under_way).try_acquire_owned().ok() } else { None };
    // Parsing a body delays other sessions, too.
    let scheduled = ids::session_of(&parts.headers, session.as_deref());
    let slot = shared.scheduler.enter(scheduled).await;
    let message = if is_post { message(&bytes) } else { None };
    if is_post && message.is_none() {
        return lenient_json::refuse(&shared, &caller.peer, &bytes).await;
    }
    let own_session = session.as_deref().filter(|_| is_post);
    let cancelled = message.as_ref().and_then(cancellation::request);
    let head = message.and_then(Head::of);
    let taken = match ids::take(&shared, own_session, &parts.headers, head.as_ref()).await {
        Ok(taken) => taken,
        Err(refused) => return *refused,
    };
    if let (Some(session), Some(request)) = (own_session, &cancelled)
        && !cancellation::cancel(&shared, session, request).await
    {
        return reply::accepted();
    }
    let transit = InTransit::new(slot, memory);
    let (peer, head) = (&caller.peer, head.as_ref());
    let absent = absent::refuse(&shared, peer, own_session, &parts.headers, head, &transit);
    if let Some(refused) = absent.await {
        return refused;
    }
    let begun = match listen::begin(&shared, peer, head, &transit).await {
        Ok(begun) => begun,
        Err(refused) => return *refused,
    };
    // A subscription lasts until the client goes.
    let under_way = under_way.filter(|_| begun.is_none());
    let method = head.map(|head| refused::beginning(&head.method));
    let bytes = head.and_then(introduction::shorten).unwrap_or(bytes);
    let held = line::ReplyMemory::default();
    let resumed = resumed(&shared, &parts);
    let (refusal, new_link) = (Refusal::default(), NewSessionLink::default());
    let mut request = Request::from_parts(parts, Full::<Bytes>::new(bytes));
    request.extensions_mut().insert(held.clone());
    request.extensions_mut().insert(refusal.clone());
    request.extensions_mut().insert(NewSessionLink::clone(&new_link));
    request.extensions_mut().insert(transit.clone());
    request.extensions_mut().insert(caller.peer.clone());
    if let Some(taken) = &taken {
        request.extensions_mut().insert(Handled::new(taken));
    }
    let reply = listen::with(begun, service.handle(request)).await;
    if let Some(error) = refusal.get() {
        return reply::refused(error);
    }
    if let Some(method) = method
        && reply.status() == StatusCode::BAD_REQUEST
        && !transit.is_sent()
    {
        let reply = reply.map(|body| body.boxed());
        return refused::record(&shared, &caller.peer, own_session, &method, reply).await;
    }
    drop(transit);
    let new_id = reply.headers().get(SESSION_ID).and_then(|id| id.to_str().ok());
    if let (Some(id), Some(link)) = (new_id, new_link.get()) {
        shared.sessions.register(id, link);
    }
    if let Some(id) = session.as_deref().filter(|_| is_delete && reply.status().is_success()) {
        shared.sessions.announce_end(id).await;
    }
    let link = match session.as_deref() {
        Some(id) => shared.sessions.link(id),
        None => new_link.get().and_then(Weak::upgrade),
    };
    let is_primed = link.is_none_or(|link| link.is_primed());
    let mut reply = reply.map(|body| {
        let through = move |frame| if is_primed { frame } else { priming::remove(frame) };
        // Held until the last byte is sent, or the client is gone.
        Pieces::new(body.map_frame(through), (held, resumed, under_way, taken)).boxed()
    });
    if is_delete && reply.status() == StatusCode::ACCEPTED {
        // The deletion is complete, and some clients take no other status for success.
        *reply.status_mut() = StatusCode::OK;
    }
    reply
}

/// Returns the memory of the reply if a request resumes the stream of another one. The events
/// of such a stream have its number in their ids, those of a session's stream have none.
fn resumed(shared: &Shared, parts: &Parts) -> Option<line::ReplyMemory> {
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
    header(LAST_EVENT).filter(|event| event.contains('/'))?;
    Some(shared.sessions.link(header(SESSION_ID)?)?.resumed.get())
}

/// Returns the caller's endpoint, creating it on first use.
async fn service(
    front: &Arc<Front>,
    mcp: &Mcp,
    caller: &Caller,
    workspace: Option<&str>,
) -> Result<EndpointService, Box<Response<Body>>> {
    let refuse = |error: OpenError| Box::new(reply::refused(&error));
    if let Some(name) = workspace
        && let Some(service) = mcp.known(caller, name)
    {
        return Ok(service);
    }
    // The list of workspaces also shows if the token is valid.
    let names = front.workspaces(caller).await.map_err(refuse)?;
    let name = match (workspace, names.as_slice()) {
        (Some(name), names) if names.iter().any(|known| known == name) => name.to_owned(),
        (None, [name]) => name.clone(),
        (Some(name), _) => {
            // The broker records requests for workspaces of other agents.
            front.open(caller, name, crate::model::Transport::Mcp).await.map_err(refuse)?;
            name.to_owned()
        }
        (None, [_, _, ..]) => {
            let reason = "this token has several workspaces: use /workspaces/NAME/mcp";
            return Err(Box::new(reply::text(StatusCode::NOT_FOUND, reason)));
        }
        (None, []) => return Err(refuse(OpenError::UnknownWorkspace)),
    };
    mcp.get(front, caller, name).ok_or_else(|| refuse(OpenError::Busy))
}

impl Mcp {
    fn known(&self, caller: &Caller, workspace: &str) -> Option<EndpointService> {
        let mut endpoints = lock(&self.endpoints);
        let endpoint = endpoints.get_mut(&(caller.token, workspace.to_owned()))?;
        endpoint.used = Instant::now();
        Some(endpoint.served())
    }

    fn get(
        &self,
        front: &Arc<Front>,
        caller: &Caller,
        workspace: String,
    ) -> Option<EndpointService> {
        let mut endpoints = lock(&self.endpoints);
        if let Some(endpoint) = endpoints.get_mut(&(caller.token, workspace.clone())) {
            endpoint.used = Instant::now();
            return Some(endpoint.served());
        }
        if endpoints.len() >= MAX_SESSIONS {
            return None;
        }
        let endpoint = make(front, &self.active_sessions, caller, workspace.clone());
        let served = endpoint.served();
        endpoints.insert((caller.token, workspace), endpoint);
        Some(served)
    }

    /// Removes unused endpoints periodically, and ends shared sessions after `idle`.
    pub(super) async fn tidy(&self, idle: Duration) {
        loop {
            tokio::time::sleep((idle / 2).min(CHECK_INTERVAL)).await;
            // Requests of a removed endpoint are complete, or continue without it.
            lock(&self.endpoints)
                .retain(|_, endpoint| !endpoint.shared.end_if_idle(idle) || !endpoint.is_idle());
        }
    }
}

impl Endpoint {
    fn served(&self) -> EndpointService {
        (self.service.clone(), Arc::clone(&self.shared))
    }

    fn is_idle(&self) -> bool {
        self.shared.sessions.is_empty() && self.used.elapsed() >= IDLE_TIMEOUT
    }
}

impl fmt::Debug for Mcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mcp").finish_non_exhaustive()
    }
}

fn make(
    front: &Arc<Front>,
    active_sessions: &Arc<ActiveSessions>,
    caller: &Caller,
    workspace: String,
) -> Endpoint {
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(front.limits().session_idle);
    let manager = Arc::new(manager);
    let shared = Arc::new(Shared {
        front: Arc::downgrade(front),
        token: caller.token,
        workspace,
        sessions: Sessions::new(Arc::clone(&manager)),
        scheduler: SessionScheduler::new(active_sessions),
        ids: Ids::default(),
        under_way: Arc::new(Semaphore::new(REQUEST_PERMITS as usize)),
        common: tokio::sync::Mutex::default(),
    });
    let stop = CancellationToken::new();
    let config = StreamableHttpServerConfig::default()
        // The front has checked the host already.
        .disable_allowed_hosts()
        .with_json_response(true)
        .with_max_request_body_bytes(front.sockets().most())
        .with_cancellation_token(stop.clone());
    let ending = Arc::clone(front);
    let under_way = Arc::clone(&shared.under_way);
    tokio::spawn(async move {
        ending.stopping().await;
        // Pending requests get their replies first.
        let _ = tokio::time::timeout(WORKER_REPLY_TIMEOUT, under_way.acquire_many(REQUEST_PERMITS))
            .await;
        stop.cancel();
    });
    let relayed = Arc::clone(&shared);
    let factory = move || Ok(Relay::new(Arc::clone(&relayed)));
    let service = StreamableHttpService::new(factory, manager, config);
    Endpoint { service, shared, used: Instant::now() }
}
