//! A process that asks for connections: the egress process, or a credential's process.
//!
//! It parses what an agent sends, so what it says is trusted no more than the agent.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use portcullis_core::OpenConnection;
use portcullis_policy::model::Connect;
use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};

use crate::{
    attempts::Running,
    credential::CredentialRoute,
    messages::{End, FromProxy, Id, NamedRequest, Reason, ToProxy},
    packet,
    refused::Refused,
    service::{Service, spawn},
};

/// The interval at which open connections are decided on again, by the policy in force.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An egress process or a credential's process, with its open connections.
#[derive(Debug)]
pub(crate) struct Peer {
    service: Arc<Service>,
    /// The only host to connect to, if the process has a credential.
    pub(crate) route: Option<Arc<CredentialRoute>>,
    link: OwnedFd,
    open: Mutex<HashMap<Id, Opened>>,
    /// The connections that are being opened.
    attempts: Mutex<HashMap<Id, Weak<Running>>>,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Dropped before the connection, at whose end a read goes on that waited for it.
    pub(crate) socket: ServerSocket,
    pub(crate) connection: OpenConnection,
    pub(crate) to: Connect,
    /// The id of the credential with which it was opened.
    pub(crate) credential: Option<String>,
}

/// The gateway process's copy of the socket of a connection. Its drop shuts the socket down: a
/// process with a fault may report an end and keep its own copy.
#[derive(Debug)]
pub(crate) struct ServerSocket(Arc<OwnedFd>);

/// An end of a connection that is still to be recorded.
pub(crate) struct UnrecordedEnd {
    pub(crate) opened: Opened,
    /// The number of bytes from the server, if the process reported it.
    pub(crate) bytes_in: Option<u64>,
    pub(crate) requests: Option<u64>,
    pub(crate) request: NamedRequest,
    pub(crate) reason: Reason,
}

impl ServerSocket {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Arc::new(socket))
    }
}

impl Drop for ServerSocket {
    fn drop(&mut self) {
        // The server may have closed it already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

impl Peer {
    pub(crate) fn new(
        service: Arc<Service>,
        route: Option<Arc<CredentialRoute>>,
        link: OwnedFd,
    ) -> Self {
        Self { service, route, link, open: Mutex::default(), attempts: Mutex::default() }
    }

    /// Returns the id of the process's credential, if it has one.
    pub(crate) fn credential(&self) -> Option<&str> {
        self.route.as_ref().map(|route| &*route.id)
    }

    /// Handles the messages of the process until it is gone.
    pub(crate) fn serve(self: &Arc<Self>, ends: &mpsc::Sender<UnrecordedEnd>) {
        let (alive, gone) = mpsc::channel::<()>();
        let looking = Arc::clone(self);
        // Without this thread a reload ends a connection only when that sends something.
        let looks = spawn("connection-looks", move || looking.look(&gone));
        loop {
            match packet::receive(&self.link, RecvFlags::empty()) {
                Ok(Some((message, _))) => self.hear(message, ends),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "a process of egress sent an invalid message");
                    break;
                }
            }
        }
        drop(alive);
        // A process that is still running ends by this.
        self.close();
        let (end, detail) = match self.service.attempts.is_stopping() {
            true => (End::Ended, ""),
            false if self.route.is_some() => (End::Reset, "the credential's process ended"),
            false => (End::Reset, "the egress process ended"),
        };
        for (_, opened) in self.open().drain() {
            let (reason, request) = (Reason::new(end, detail), NamedRequest::default());
            let end = UnrecordedEnd { opened, bytes_in: None, requests: None, request, reason };
            // The threads that record live until `ends` is dropped.
            let _ = ends.send(end);
        }
        let _ = looks.map(JoinHandle::join);
    }

    fn hear(self: &Arc<Self>, message: FromProxy, ends: &mpsc::Sender<UnrecordedEnd>) {
        match message {
            FromProxy::Connect { id, host, port } => {
                let connect = move |peer: &Arc<Self>, running: &Running| {
                    peer.connect(id, (&host, port), running);
                };
                let Some(running) = self.begin(connect) else {
                    return self.refuse(id, Refused::busy());
                };
                let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
                attempts.retain(|_, running| running.strong_count() > 0);
                attempts.insert(id, running);
            }
            FromProxy::Withdraw { id } => {
                let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
                let running = attempts.get(&id).and_then(Weak::upgrade);
                drop(attempts);
                if let Some(running) = running {
                    running.withdraw();
                }
            }
            FromProxy::Refuse { id, request } => {
                let request = Arc::new(request);
                let refuse = move |peer: &Arc<Self>| {
                    peer.service.pause();
                    let refused = peer.service.refuse(peer.route.as_deref(), &request);
                    peer.refuse(id, refused);
                };
                // It is recorded in any case. The process waits meanwhile.
                let begun = refuse.clone();
                if self.begin(move |peer, _| begun(peer)).is_none() {
                    refuse(self);
                }
            }
            FromProxy::Sending { id, bytes } => {
                let open = self.open();
                let opened = open.get(&id);
                let is_counted = opened.is_some_and(|o| o.connection.account(bytes).is_ok());
                let socket = opened.map(|opened| Arc::clone(&opened.socket.0));
                drop(open);
                if is_counted {
                    self.send(&ToProxy::Counted { id }, None);
                } else {
                    self.cut_off(id, socket.as_deref());
                }
            }
            FromProxy::Closed { id, bytes_in, requests, request, reason } => {
                if let Some(opened) = self.open().remove(&id) {
                    let bytes_in = Some(bytes_in);
                    let end = UnrecordedEnd { opened, bytes_in, requests, request, reason };
                    let _ = ends.send(end);
                }
            }
        }
    }

    /// Handles a message that may take time in a thread of its own; `None` if there are too many.
    fn begin(
        self: &Arc<Self>,
        handle: impl FnOnce(&Arc<Self>, &Running) + Send + 'static,
    ) -> Option<Weak<Running>> {
        let (peer, running) = (Arc::clone(self), self.service.attempts.begin()?);
        let begun = Arc::downgrade(&running);
        let run = move || {
            handle(&peer, &running);
            drop((peer, running));
        };
        spawn("connection", run).ok().map(|_| begun)
    }

    /// Closes the connections that the policy in force denies.
    fn look(&self, gone: &mpsc::Receiver<()>) {
        while gone.recv_timeout(CHECK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            let open = self.open();
            let denied = open.iter().filter(|(_, opened)| opened.connection.account(0).is_err());
            let denied = denied.map(|(id, opened)| (*id, Arc::clone(&opened.socket.0)));
            let denied: Vec<_> = denied.collect();
            drop(open);
            for (id, socket) in denied {
                self.cut_off(id, Some(&socket));
            }
        }
    }

    /// Closes a connection, also of a process that does not do as it is told.
    fn cut_off(&self, id: Id, socket: Option<&OwnedFd>) {
        self.send(&ToProxy::Close { id }, None);
        // The server may have closed it already.
        let _ = socket.map(|socket| shutdown(socket, Shutdown::Both));
    }

    fn connect(self: &Arc<Self>, id: Id, to: (&str, u16), running: &Running) {
        let opened = match self.service.attempt(self.route.as_deref(), to, running) {
            Ok(opened) => opened,
            Err(refused) => return self.refuse(id, refused),
        };
        let socket = Arc::clone(&opened.socket.0);
        let close = self.closer(id, &socket);
        // A process with a fault may use a number twice, which ends its earlier connection.
        let earlier = self.open().insert(id, opened);
        drop(earlier);
        if !self.send(&ToProxy::Opened { id }, Some(&socket)) {
            // No process reports its end.
            self.open().remove(&id);
        }
        // The process has been told of the connection first. A message that is sent here, under the
        // lock, takes no longer than the timeout of the link.
        if let Some(opened) = self.open().get(&id) {
            opened.connection.closed_by(close);
        }
    }

    fn refuse(&self, id: Id, refused: Refused) {
        self.send(&ToProxy::Refused { id, refused }, None);
    }

    /// Sends the process a message. A process that takes none within the timeout of the link is
    /// given up, as one that is gone: `serve` notices it. Returns false then.
    pub(crate) fn send(&self, message: &ToProxy, socket: Option<&OwnedFd>) -> bool {
        let socket = socket.map(OwnedFd::as_fd);
        let is_sent = packet::send(&self.link, message, socket, SendFlags::empty()).is_ok();
        if !is_sent {
            self.close();
        }
        is_sent
    }

    pub(crate) fn close(&self) {
        // The link may be closed already.
        let _ = shutdown(&self.link, Shutdown::Both);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Id, Opened>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a function that closes an open connection at once: no process that has its socket
    /// can send by it any more, and the egress process is notified.
    fn closer(
        self: &Arc<Self>,
        id: Id,
        socket: &Arc<OwnedFd>,
    ) -> impl Fn() + Send + Sync + 'static {
        let (peer, socket) = (Arc::downgrade(self), Arc::clone(socket));
        move || {
            let _ = shutdown(&socket, Shutdown::Both);
            if let Some(peer) = peer.upgrade() {
                peer.send(&ToProxy::Close { id }, None);
            }
        }
    }
}
