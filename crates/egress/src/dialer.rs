//! The gateway process's end of its link with the connector.

use std::{
    collections::HashMap,
    fmt, io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustix::net::{RecvFlags, SendFlags};

use crate::{
    messages::{Candidate, FromConnector, Id, ToConnector},
    packet,
};

/// More than a resolver and an address take that do not answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why an order was not carried out.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The connector is gone.
    Gone,
    /// The system says no, in its words.
    Failed(String),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the connector is gone"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

type DialReply = (FromConnector, Option<OwnedFd>);

/// The link.
#[derive(Debug)]
pub(crate) struct Dialer {
    socket: OwnedFd,
    next: AtomicU64,
    /// The orders that wait for a reply; `None` once the connector is gone.
    waiting: Mutex<Option<HashMap<Id, mpsc::Sender<DialReply>>>>,
}

impl Dialer {
    /// Hears the connector at `socket`, in a thread of its own, which calls `gone` at the end.
    pub(crate) fn start(
        socket: OwnedFd,
        gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let waiting = Mutex::new(Some(HashMap::new()));
        let dialer = Arc::new(Self { socket, next: AtomicU64::new(0), waiting });
        let heard = Arc::clone(&dialer);
        thread::Builder::new().name("connector".to_owned()).spawn(move || {
            heard.hear();
            *heard.waiting() = None;
            gone();
        })?;
        Ok(dialer)
    }

    /// Looks up a host's addresses.
    pub(crate) fn resolve(&self, host: &str) -> Result<Vec<Candidate>, DialError> {
        match self.order(|id| ToConnector::Resolve { id, host: host.to_owned() })? {
            (FromConnector::Resolved { addresses, .. }, _) => Ok(addresses),
            _ => Err(DialError::Gone),
        }
    }

    /// Connects to an address.
    pub(crate) fn dial(&self, address: SocketAddr) -> Result<OwnedFd, DialError> {
        match self.order(|id| ToConnector::Dial { id, address })? {
            (FromConnector::Dialed { .. }, Some(socket)) => Ok(socket),
            _ => Err(DialError::Gone),
        }
    }

    /// Tells the connector to end: nothing is ordered any more.
    pub(crate) fn stop(&self) {
        // One that is gone need not hear it.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn order(&self, order: impl FnOnce(Id) -> ToConnector) -> Result<DialReply, DialError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, replied) = mpsc::channel();
        self.waiting().as_mut().ok_or(DialError::Gone)?.insert(id, reply);
        let sent = packet::send(&self.socket, &order(id), None, SendFlags::empty());
        let reply = sent.ok().and_then(|()| replied.recv_timeout(REPLY_TIMEOUT).ok());
        if let Some(waiting) = &mut *self.waiting() {
            waiting.remove(&id);
        }
        match reply.ok_or(DialError::Gone)? {
            (FromConnector::Failed { why, .. }, _) => Err(DialError::Failed(why)),
            reply => Ok(reply),
        }
    }

    fn hear(&self) {
        while let Ok(Some(reply)) = packet::receive(&self.socket, RecvFlags::empty()) {
            let (FromConnector::Resolved { id, .. }
            | FromConnector::Dialed { id }
            | FromConnector::Failed { id, .. }) = reply.0;
            let waiting = self.waiting().as_mut().and_then(|waiting| waiting.remove(&id));
            if let Some(waiting) = waiting {
                // One that waits no longer closes the socket.
                let _ = waiting.send(reply);
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<Id, mpsc::Sender<DialReply>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
