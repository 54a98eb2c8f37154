//! HTTP/1.1 server in front of many workspaces.
//!
//! This is the only part of a service that reads the network. It checks token and
//! origin of each request, and copies bytes. It opens no file and no workspace: for
//! each session it asks the [`broker`](Broker), which alone knows the agents'
//! tokens, for a stream to the process that serves the workspace. It decides nothing
//! about files, and trusts no header beyond those it must read.

mod admission;
mod broker;
pub mod files;
mod guard;
mod mcp;
mod metrics;
mod peer;
mod readiness;
mod reply;
mod server;
mod slot_stream;
mod throttle;
mod tls;
mod token;
mod ws;

use portcullis_core as gateway;
use portcullis_policy::model;
use portcullis_rpc::{buffer, lock};

use std::{
    os::fd::OwnedFd,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use hyper::Response;
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
};

pub use broker::{BrokerNotice, BrokerReply, BrokerRequest, BrokerRequestKind, Caller, OpenError};
pub use guard::Guard;
pub use metrics::Exported;
pub use peer::Peer;
pub use server::{Listener, ServeError};
pub use tls::{TlsError, check_tls};
pub use token::TokenHash;
pub use ws::Bounds;

use crate::{gateway::GatewayMetrics, model::Transport};
use admission::Admission;
use metrics::MetricsBoard;
use readiness::Readiness;
use reply::Body;
use throttle::Throttle;
use tls::Acceptor;
use ws::Sockets;

/// Timeout for a reply of the broker.
const BROKER_TIMEOUT: Duration = Duration::from_secs(30);
/// Capacity of the queues to the broker.
const MAX_BROKER_QUEUE: usize = 1024;
/// Time in which workers must reply to pending requests when the service stops.
const WORKER_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The limits of a front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum of connections at once, of all kinds; those of one token are half of them at most.
    pub connections: usize,
    /// Timeout for the head of a request, and for a TLS handshake. An idle
    /// connection is closed after the same time.
    pub head: Duration,
    /// Maximum size of a request's head, in bytes.
    pub head_bytes: usize,
    /// Timeout for a request's body.
    pub body: Duration,
    /// Time without requests after which the shared session of MCP clients without
    /// sessions ends.
    pub idle: Duration,
    /// Time without messages after which an MCP session ends.
    pub session_idle: Duration,
    /// Maximum of wrong tokens from one address in a minute before it has to wait.
    pub failed_logins: u32,
    /// The limits of messages.
    pub sockets: Bounds,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            head: Duration::from_secs(10),
            head_bytes: 32 * 1024,
            body: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            session_idle: Duration::from_secs(30 * 60),
            failed_logins: 10,
            sockets: Bounds::default(),
        }
    }
}

/// The front of a service.
#[derive(Debug)]
pub struct Front {
    asks: mpsc::Sender<BrokerRequest>,
    told: mpsc::Sender<BrokerNotice>,
    guard: RwLock<Arc<Guard>>,
    throttle: Throttle,
    limits: Limits,
    admission: Arc<Admission>,
    stopping: watch::Sender<bool>,
    board: MetricsBoard,
    readiness: Readiness,
    tls: RwLock<Option<Acceptor>>,
    sockets: Sockets,
}

/// The receiving ends of a front's queues to the broker.
#[derive(Debug)]
pub struct Questions {
    /// Requests, which need a reply.
    pub asks: mpsc::Receiver<BrokerRequest>,
    /// Notifications, which need none.
    pub told: mpsc::Receiver<BrokerNotice>,
}

impl Front {
    /// Returns a front that accepts the hosts and origins of `guard`.
    pub fn new(guard: Guard, limits: Limits) -> (Arc<Self>, Questions) {
        let (asks, asked) = mpsc::channel(MAX_BROKER_QUEUE);
        let (told, heard) = mpsc::channel(MAX_BROKER_QUEUE);
        let front = Self {
            asks,
            told,
            guard: RwLock::new(Arc::new(guard)),
            throttle: Throttle::new(limits.failed_logins),
            limits,
            admission: Admission::new(limits.connections),
            stopping: watch::Sender::new(false),
            board: MetricsBoard::default(),
            readiness: Readiness::default(),
            tls: RwLock::default(),
            sockets: Sockets::new(limits.sockets),
        };
        (Arc::new(front), Questions { asks: asked, told: heard })
    }

    /// Replaces the hosts and origins, from the next request on.
    pub fn set_guard(&self, guard: Guard) {
        *self.guard.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(guard);
    }

    /// Requires TLS with this certificate over TCP, from the next connection on;
    /// both arguments are PEM.
    ///
    /// # Errors
    /// When they cannot be used; the former ones stay in use.
    pub fn set_tls(&self, certificate: &str, key: &str) -> Result<(), TlsError> {
        let acceptor = Acceptor::new(certificate, key)?;
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(acceptor);
        Ok(())
    }

    fn tls(&self) -> Option<Acceptor> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops accepting connections, and notifies the open ones.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Sets the counters of a worker.
    pub fn set_numbers(&self, workspace: String, numbers: GatewayMetrics) {
        self.board.worker(workspace, numbers);
    }

    /// Sets the counters of exported spans.
    pub fn set_exported(&self, exported: Exported) {
        self.board.exported(exported);
    }

    /// Marks a worker as ended; `died` if it ended unexpectedly. With `forget` its
    /// workspace is not served any more.
    pub fn worker_gone(&self, workspace: &str, died: bool, forget: bool) {
        self.board.gone(workspace, died, forget);
    }

    /// Returns the notifications that the broker has not received when the service
    /// stops.
    pub fn unreported(&self) -> Vec<BrokerNotice> {
        self.throttle.report()
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Opens a session of `caller` with `workspace` over the transport `transport`.
    /// Returns a stream to the process that serves it.
    ///
    /// # Errors
    /// As [`OpenError`] says; the client learns no more.
    pub async fn open(
        &self,
        caller: &Caller,
        workspace: &str,
        transport: Transport,
    ) -> Result<UnixStream, OpenError> {
        let request = BrokerRequestKind::Session { workspace: workspace.to_owned(), transport };
        match self.ask(caller, request).await? {
            BrokerReply::Stream(stream) => {
                self.board.session(transport);
                connected(stream).map_err(|error| {
                    tracing::error!(%error, "a stream to a worker cannot be used");
                    OpenError::Unavailable
                })
            }
            _ => Err(OpenError::Unavailable),
        }
    }

    /// Returns the names of the workspaces that `caller` may use.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn workspaces(&self, caller: &Caller) -> Result<Vec<String>, OpenError> {
        match self.ask(caller, BrokerRequestKind::Workspaces).await? {
            BrokerReply::Workspaces(names) => Ok(names),
            _ => Err(OpenError::Unavailable),
        }
    }

    /// Waits until the service is about to stop: a session should end then, and say
    /// so.
    pub async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this front.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Returns the reply to a request for `/readyz`.
    async fn ready(&self) -> Response<Body> {
        if self.is_stopping() {
            return readiness::render(Err("the service is stopping".to_owned()));
        }
        self.readiness
            .reply(self.put(None, BrokerRequestKind::Ready, readiness::CHECK_TIMEOUT))
            .await
    }

    /// Returns the metrics page.
    fn numbers(&self) -> Response<Body> {
        self.board.page(self.admission.admitted(), self.limits.connections)
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    fn guard(&self) -> Arc<Guard> {
        Arc::clone(&self.guard.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn ask(
        &self,
        caller: &Caller,
        request: BrokerRequestKind,
    ) -> Result<BrokerReply, OpenError> {
        let answered = match self.throttle.admit(caller) {
            Ok(()) => self.put(Some(caller.clone()), request, BROKER_TIMEOUT).await,
            Err(wait) => Err(OpenError::Throttled(wait)),
        };
        if let Err(error) = &answered {
            self.board.refused(error);
        }
        match &answered {
            Err(OpenError::Unauthorised) => self.throttle.failed(caller),
            Ok(_) | Err(OpenError::UnknownWorkspace | OpenError::Busy) => {
                self.throttle.known(caller);
            }
            Err(_) => {}
        }
        answered
    }

    async fn put(
        &self,
        caller: Option<Caller>,
        request: BrokerRequestKind,
        max_wait: Duration,
    ) -> Result<BrokerReply, OpenError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let ask = BrokerRequest { caller, request, reply };
        // Not `Busy`, which only clients with a valid token get.
        self.asks.try_send(ask).map_err(|_| OpenError::Unavailable)?;
        match tokio::time::timeout(max_wait, answer).await {
            Ok(Ok(answer)) => answer,
            _ => Err(OpenError::Unavailable),
        }
    }
}

fn connected(stream: OwnedFd) -> std::io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_known_because_the_broker_could_not_be_asked() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let guard = Guard { hosts: Vec::new(), addresses: Vec::new(), origins: Vec::new() };
            let limits = Limits { failed_logins: 1, ..Limits::default() };
            let (front, _questions) = Front::new(guard, limits);
            let (reply, _answer) = tokio::sync::oneshot::channel();
            let mut ask = BrokerRequest { caller: None, request: BrokerRequestKind::Ready, reply };
            while front.asks.try_send(ask).is_ok() {
                let (reply, _answer) = tokio::sync::oneshot::channel();
                ask = BrokerRequest { caller: None, request: BrokerRequestKind::Ready, reply };
            }
            let peer = Peer::Address([0, 0, 0, 0, 0, 0, 0, 1].into());
            let caller = Caller { token: TokenHash::of("wrong"), peer };
            let answered = front.ask(&caller, BrokerRequestKind::Workspaces).await;
            assert_eq!(answered.err(), Some(OpenError::Unavailable));
            let other = Caller { token: TokenHash::of("other"), ..caller.clone() };
            front.throttle.failed(&other);
            assert!(front.throttle.admit(&caller).is_err());
        });
    }
}
