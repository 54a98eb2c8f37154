//! HTTP/1.1 in front of many workspaces.
//!
//! This is the only part of a service that reads the network. It checks who
//! calls and from where, and pumps bytes; it reaches no file and no workspace:
//! for each session it asks the [`broker`](Broker), which alone knows the
//! agents' tokens, for a stream to the process that serves the workspace. It
//! decides nothing about files, and believes no header but those it must.

mod broker;
pub mod files;
mod guard;
mod held;
mod mcp;
mod metrics;
mod peer;
mod ready;
mod reply;
mod server;
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
    sync::{Semaphore, mpsc, watch},
};

pub use broker::{Answer, Ask, Caller, OpenError, Told, Want};
pub use guard::Guard;
pub use metrics::Exported;
pub use peer::Peer;
pub use server::{Listener, ServeError};
pub use tls::{TlsError, check_tls};
pub use token::TokenHash;
pub use ws::Bounds;

use crate::{gateway::Numbers, model::Door};
use metrics::Board;
use ready::Readiness;
use reply::Body;
use throttle::Throttle;
use tls::Acceptor;
use ws::Sockets;

/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Questions to the broker that wait to be put.
const QUESTIONS: usize = 1024;
/// How long workers may take over what they were asked when the service stops.
const ANSWERS: Duration = Duration::from_secs(5);

/// What bounds a front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, of whatever kind.
    pub connections: usize,
    /// How long the head of a request, or a TLS handshake, may take to arrive.
    /// An idle connection is kept as long.
    pub head: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// How long a request's body may take to arrive.
    pub body: Duration,
    /// How long the session of MCP clients without sessions goes on when they
    /// ask for nothing.
    pub idle: Duration,
    /// How long a session over MCP goes on in which nothing is said.
    pub session_idle: Duration,
    /// Wrong tokens from one address in a minute before it has to wait.
    pub failed_logins: u32,
    /// What bounds messages.
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
    asks: mpsc::Sender<Ask>,
    told: mpsc::Sender<Told>,
    guard: RwLock<Arc<Guard>>,
    throttle: Throttle,
    limits: Limits,
    places: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
    board: Board,
    readiness: Readiness,
    tls: RwLock<Option<Acceptor>>,
    sockets: Sockets,
}

/// What whoever connects front and broker gets: the questions to put.
#[derive(Debug)]
pub struct Questions {
    /// Each wants an answer.
    pub asks: mpsc::Receiver<Ask>,
    /// These do not.
    pub told: mpsc::Receiver<Told>,
}

impl Front {
    /// A front that lets in what `guard` does.
    pub fn new(guard: Guard, limits: Limits) -> (Arc<Self>, Questions) {
        let (asks, asked) = mpsc::channel(QUESTIONS);
        let (told, heard) = mpsc::channel(QUESTIONS);
        let front = Self {
            asks,
            told,
            guard: RwLock::new(Arc::new(guard)),
            throttle: Throttle::new(limits.failed_logins),
            limits,
            places: Arc::new(Semaphore::new(limits.connections)),
            stopping: watch::Sender::new(false),
            board: Board::default(),
            readiness: Readiness::default(),
            tls: RwLock::default(),
            sockets: Sockets::new(limits.sockets),
        };
        (Arc::new(front), Questions { asks: asked, told: heard })
    }

    /// Lets in what `guard` does, from the next request on.
    pub fn set_guard(&self, guard: Guard) {
        *self.guard.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(guard);
    }

    /// Speaks TLS with this certificate, and nothing else, over TCP from the
    /// next connection on; both are PEM.
    ///
    /// # Errors
    /// When they cannot be used; everything stays as it is.
    pub fn set_tls(&self, certificate: &str, key: &str) -> Result<(), TlsError> {
        let acceptor = Acceptor::new(certificate, key)?;
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(acceptor);
        Ok(())
    }

    fn tls(&self) -> Option<Acceptor> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes no connection any more, and tells those that are there.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// What a worker has counted so far.
    pub fn set_numbers(&self, workspace: String, numbers: Numbers) {
        self.board.worker(workspace, numbers);
    }

    /// How many spans were exported so far.
    pub fn set_exported(&self, exported: Exported) {
        self.board.exported(exported);
    }

    /// A worker has ended, by itself if it `died`; `forget`: its workspace is
    /// not served any more.
    pub fn worker_gone(&self, workspace: &str, died: bool, forget: bool) {
        self.board.gone(workspace, died, forget);
    }

    /// What the broker was not told yet when the service stopped.
    pub fn unreported(&self) -> Vec<Told> {
        self.throttle.report()
    }

    /// What bounds it.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Opens a session of `caller` with the workspace `workspace` through
    /// `door`: a stream to the process that serves it.
    ///
    /// # Errors
    /// As [`OpenError`] says; the caller learns no more.
    pub async fn open(
        &self,
        caller: &Caller,
        workspace: &str,
        door: Door,
    ) -> Result<UnixStream, OpenError> {
        let want = Want::Session { workspace: workspace.to_owned(), door };
        match self.ask(caller, want).await? {
            Answer::Stream(stream) => {
                self.board.session(door);
                connected(stream).map_err(|error| {
                    tracing::error!(%error, "a stream to a worker cannot be used");
                    OpenError::Unavailable
                })
            }
            _ => Err(OpenError::Unavailable),
        }
    }

    /// The workspaces that `caller` may use, by name.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn workspaces(&self, caller: &Caller) -> Result<Vec<String>, OpenError> {
        match self.ask(caller, Want::Workspaces).await? {
            Answer::Workspaces(names) => Ok(names),
            _ => Err(OpenError::Unavailable),
        }
    }

    /// Returns when the service is about to stop: a session should end then,
    /// and say so.
    pub async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this front.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// The reply to a request for `/readyz`.
    async fn ready(&self) -> Response<Body> {
        if self.is_stopping() {
            return ready::render(Err("the service is stopping".to_owned()));
        }
        self.readiness.reply(self.put(None, Want::Ready, ready::PATIENCE)).await
    }

    /// The page of numbers.
    fn numbers(&self) -> Response<Body> {
        let limit = self.limits.connections;
        self.board.page(limit.saturating_sub(self.places.available_permits()), limit)
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    fn guard(&self) -> Arc<Guard> {
        Arc::clone(&self.guard.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn ask(&self, caller: &Caller, want: Want) -> Result<Answer, OpenError> {
        let answered = match self.throttle.admit(caller) {
            Ok(()) => self.put(Some(caller.clone()), want, PATIENCE).await,
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
        want: Want,
        patience: Duration,
    ) -> Result<Answer, OpenError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let ask = Ask { caller, want, reply };
        // Not `Busy`, which the broker says of those whom it knows.
        self.asks.try_send(ask).map_err(|_| OpenError::Unavailable)?;
        match tokio::time::timeout(patience, answer).await {
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
            let mut ask = Ask { caller: None, want: Want::Ready, reply };
            while front.asks.try_send(ask).is_ok() {
                let (reply, _answer) = tokio::sync::oneshot::channel();
                ask = Ask { caller: None, want: Want::Ready, reply };
            }
            let peer = Peer::Address([0, 0, 0, 0, 0, 0, 0, 1].into());
            let caller = Caller { token: TokenHash::of("wrong"), peer };
            let answered = front.ask(&caller, Want::Workspaces).await;
            assert_eq!(answered.err(), Some(OpenError::Unavailable));
            let other = Caller { token: TokenHash::of("other"), ..caller.clone() };
            front.throttle.failed(&other);
            assert!(front.throttle.admit(&caller).is_err());
        });
    }
}
