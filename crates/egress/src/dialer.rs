//! The gateway process's end of its links with the connector.
//!
//! A thread of the connector serves each link. The sender of an order takes a link that is idle and
//! waits at it for the reply, so an order wakes one thread, and its reply one more.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use portcullis_policy::model::Connect;
use rustix::net::{
    RecvFlags, SendFlags, Shutdown, shutdown,
    sockopt::{Timeout, set_socket_timeout},
};

use crate::{
    messages::{Candidate, FromConnector, ToConnector},
    packet,
    refused::Refused,
};

/// The timeout for an idle link, and for a reply: more than a resolver and an address take that do
/// not answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why an order was not carried out.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The connector is gone.
    Gone,
    /// The session ended, and the connector with it.
    Ended,
    /// The order failed, with the system's message.
    Failed(String),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the connector is gone"),
            Self::Ended => f.write_str("the session ended"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl DialError {
    /// Returns the refusal of a connection for this reason.
    pub(crate) fn refused(&self, to: &Connect) -> Refused {
        match self {
            Self::Gone => {
                let text = "the connector ended, and is being started again: try again";
                Refused::new(502, "Connector is gone", text)
            }
            Self::Ended => Refused::gone(),
            Self::Failed(reason) => Refused::new(
                502,
                "Cannot connect",
                format_args!("cannot connect to `{to}`: {reason}"),
            ),
        }
    }
}

/// The links with one connector.
#[derive(Debug)]
pub(crate) struct Dialer {
    links: Vec<OwnedFd>,
    /// The indices of the links that are idle.
    idle: Mutex<Vec<usize>>,
    returned: Condvar,
}

impl Dialer {
    pub(crate) fn new(links: Vec<OwnedFd>) -> io::Result<Self> {
        for link in &links {
            set_socket_timeout(link, Timeout::Recv, Some(REPLY_TIMEOUT))?;
        }
        let idle = Mutex::new((0..links.len()).collect());
        Ok(Self { links, idle, returned: Condvar::new() })
    }

    /// Looks up a host's addresses.
    pub(crate) fn resolve(&self, host: &str) -> Result<Vec<Candidate>, DialError> {
        match self.order(&ToConnector::Resolve { host: host.to_owned() })? {
            (FromConnector::Resolved { addresses }, _) => Ok(addresses),
            _ => Err(DialError::Gone),
        }
    }

    /// Connects to an address.
    pub(crate) fn dial(&self, address: SocketAddr) -> Result<OwnedFd, DialError> {
        match self.order(&ToConnector::Dial { address })? {
            (FromConnector::Dialed, Some(socket)) => Ok(socket),
            _ => Err(DialError::Gone),
        }
    }

    /// Shuts the links down, by which the connector ends.
    pub(crate) fn stop(&self) {
        for link in &self.links {
            // The link may be closed already.
            let _ = shutdown(link, Shutdown::Both);
        }
    }

    fn order(&self, order: &ToConnector) -> Result<(FromConnector, Option<OwnedFd>), DialError> {
        const BUSY: &str = "too many connections are being opened at once";
        let number = self.take().ok_or_else(|| DialError::Failed(BUSY.to_owned()))?;
        let reply = self.links.get(number).and_then(|link| exchange(link, order).ok().flatten());
        if reply.is_none() {
            // A connector that does not reply in time counts as gone. A late reply would be taken
            // for that to the next order.
            self.stop();
        }
        self.idle().push(number);
        self.returned.notify_one();
        match reply.ok_or(DialError::Gone)? {
            (FromConnector::Failed { reason }, _) => Err(DialError::Failed(reason)),
            reply => Ok(reply),
        }
    }

    /// Waits for an idle link and takes it; `None` if there is none in time.
    fn take(&self) -> Option<usize> {
        let none = |idle: &mut Vec<usize>| idle.is_empty();
        let waited = self.returned.wait_timeout_while(self.idle(), REPLY_TIMEOUT, none);
        waited.unwrap_or_else(PoisonError::into_inner).0.pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<usize>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends an order, and waits for the reply, at most for the timeout of the link; `None` when the
/// connector is gone.
fn exchange(
    link: &OwnedFd,
    order: &ToConnector,
) -> io::Result<Option<(FromConnector, Option<OwnedFd>)>> {
    packet::send(link, order, None, SendFlags::empty())?;
    packet::receive(link, RecvFlags::empty())
}
