//! A process that asks for connections: the egress process, or a credential's process.
//!
//! It parses what an agent sends, so what it says is trusted no more than the agent.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use portcullis_core::OpenConnection;
use portcullis_policy::model::Connect;
use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};

use crate::{
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
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) connection: OpenConnection,
    pub(crate) to: Connect,
    /// The id of the credential with which it was opened.
    pub(crate) credential: Option<String>,
}

/// An end of a connection that is still to be recorded.
pub(crate) struct UnrecordedEnd {
    pub(crate) opened: Opened,
    pub(crate) bytes: (u64, u64),
    pub(crate) requests: Option<u64>,
    pub(crate) request: NamedRequest,
    pub(crate) reason: Reason,
}

impl Peer {
    pub(crate) fn new(
        service: Arc<Service>,
        route: Option<Arc<CredentialRoute>>,
        link: OwnedFd,
    ) -> Self {
        Self { service, route, link, open: Mutex::default() }
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
            let bytes = (0, 0);
            // The threads that record live until `ends` is dropped.
            let _ = ends.send(UnrecordedEnd { opened, bytes, requests: None, request, reason });
        }
        let _ = looks.map(JoinHandle::join);
    }

    fn hear(self: &Arc<Self>, message: FromProxy, ends: &mpsc::Sender<UnrecordedEnd>) {
        match message {
            FromProxy::Connect { id, host, port } => {
                self.begin(id, move |peer| peer.connect(id, &host, port));
            }
            FromProxy::Refuse { id, request } => self.begin(id, move |peer| {
                let refused = peer.service.refuse(peer.route.as_deref(), &request);
                peer.refuse(id, refused);
            }),
            FromProxy::Sending { id, bytes } => {
                let counted = self.open().get(&id).map(|opened| opened.connection.account(bytes));
                let reply = match counted {
                    Some(Ok(())) => ToProxy::Counted { id },
                    Some(Err(_)) | None => ToProxy::Close { id },
                };
                self.send(&reply, None);
            }
            FromProxy::Closed { id, bytes_in, bytes_out, requests, request, reason } => {
                if let Some(opened) = self.open().remove(&id) {
                    let bytes = (bytes_in, bytes_out);
                    let _ = ends.send(UnrecordedEnd { opened, bytes, requests, request, reason });
                }
            }
        }
    }

    /// Handles a message that may take time in a thread of its own, if there are not too many.
    fn begin(self: &Arc<Self>, id: Id, handle: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let peer = Arc::clone(self);
        let started = self.service.attempts.begin().map(|running| {
            spawn("connection", move || {
                handle(&peer);
                drop((peer, running));
            })
        });
        if !matches!(started, Some(Ok(_))) {
            self.refuse(id, Refused::busy());
        }
    }

    /// Closes the connections that the policy in force denies.
    fn look(&self, gone: &mpsc::Receiver<()>) {
        while gone.recv_timeout(CHECK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            let open = self.open();
            let denied = open.iter().filter(|(_, opened)| opened.connection.account(0).is_err());
            let denied: Vec<_> = denied.map(|(id, _)| *id).collect();
            drop(open);
            for id in denied {
                self.send(&ToProxy::Close { id }, None);
            }
        }
    }

    fn connect(self: &Arc<Self>, id: Id, host: &str, port: u16) {
        let (opened, socket) = match self.service.attempt(self.route.as_deref(), host, port) {
            Ok(opened) => opened,
            Err(refused) => return self.refuse(id, refused),
        };
        let Ok(close) = self.closer(id, &socket) else { return self.refuse(id, Refused::busy()) };
        self.open().insert(id, opened);
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
        socket: &OwnedFd,
    ) -> io::Result<impl Fn() + Send + Sync + 'static> {
        let (peer, socket) = (Arc::downgrade(self), socket.try_clone()?);
        Ok(move || {
            let _ = shutdown(&socket, Shutdown::Both);
            if let Some(peer) = peer.upgrade() {
                peer.send(&ToProxy::Close { id }, None);
            }
        })
    }
}
