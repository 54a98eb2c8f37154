//! The gateway process's part: each connection is decided on by the gateway, and its name is looked
//! up, its address connected to, and its socket passed on only as decided.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use portcullis_core::{
    Approver, Client, ConnectionAttempt, ConnectionEnd, EndReason, Error, Gateway, OpenConnection,
    Refusal,
};
use portcullis_policy::model::{Connect, Escaped, Host, Session};

use crate::{
    attempts::Attempts,
    credential::CredentialRoute,
    dialer::{DialError, Dialer},
    messages::{End, MAX_HOST, Reason, ToProxy, beginning},
    peer::{Opened, Peer, UnrecordedEnd},
    refused::Refused,
};

/// The number of threads that record ends.
const RECORDING_THREADS: usize = 4;
/// The interval at which the ends of the threads are looked for.
const STOP_INTERVAL: Duration = Duration::from_millis(2);
/// The operation in records of the processes.
const NOTE: &str = "egress";
/// The maximum of different warnings about connections that were cut off.
const MAX_NOTES: usize = 32;

/// The proxy of one sandbox and the processes of its credentials, served until
/// [`stop`](Self::stop).
#[derive(Debug)]
pub struct Egress {
    service: Arc<Service>,
    /// The egress process and the processes of credentials.
    served: Mutex<Vec<ServedPeer>>,
    ends: mpsc::Sender<UnrecordedEnd>,
    closers: Vec<JoinHandle<()>>,
}

/// The gateway process's ends of the links.
#[derive(Debug)]
pub struct Links {
    /// The link with the egress process.
    pub proxy: OwnedFd,
    /// The links with the connector.
    pub connector: Vec<OwnedFd>,
}

/// A process that is served, and the thread that reads its messages.
#[derive(Debug)]
struct ServedPeer {
    peer: Arc<Peer>,
    thread: JoinHandle<()>,
}

pub(crate) struct Service {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) session: Session,
    notify: fn(&str),
    dialer: Mutex<Arc<Dialer>>,
    pub(crate) attempts: Arc<Attempts>,
    noted: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Egress {
    /// Serves an egress process with a connector, for one session. `approver` gets the requests for
    /// approval, and `notify` the warnings for the operator.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        gateway: Arc<Gateway>,
        session: Session,
        links: Links,
        approver: Box<dyn Approver + Send>,
        notify: fn(&str),
    ) -> io::Result<Self> {
        let service = Arc::new(Service {
            gateway,
            session,
            notify,
            dialer: Mutex::new(Arc::new(Dialer::new(links.connector)?)),
            attempts: Arc::new(Attempts::new(approver)),
            noted: Mutex::default(),
        });
        let (ends, ended) = mpsc::channel();
        let ended = Arc::new(Mutex::new(ended));
        let closer = |_| {
            let (service, ended) = (Arc::clone(&service), Arc::clone(&ended));
            spawn("connection-ends", move || service.record(&ended))
        };
        let closers = (0..RECORDING_THREADS).map(closer).collect::<io::Result<_>>()?;
        let served = Mutex::new(vec![ServedPeer::start(&service, (links.proxy, None), &ends)?]);
        Ok(Self { service, served, ends, closers })
    }

    /// Serves the process of a credential, too. From now on programs reach its host by this process
    /// alone.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn add_credential(&self, route: CredentialRoute, link: OwnedFd) -> io::Result<()> {
        let CredentialRoute { id, to, url } = &route;
        self.service.gateway.reach_with_credential(&to.host, id, url);
        let served = ServedPeer::start(&self.service, (link, Some(Arc::new(route))), &self.ends)?;
        self.served().push(served);
        Ok(())
    }

    /// Records that a process ended, and whether it was started again.
    ///
    /// # Errors
    /// When no record can be written: the session must not go on then.
    pub fn note(&self, process: &str, is_restarted: bool) -> Result<(), Error> {
        let facts = [("process", process.into()), ("restarted", is_restarted.into())];
        let facts = facts.map(|(name, value)| (name.to_owned(), value)).into();
        self.service.gateway.note(&self.service.session, NOTE, facts).map(drop)
    }

    /// Serves another process in place of one that ended: the process of that credential, or the
    /// egress process.
    ///
    /// # Errors
    /// When there is no such process, or no thread can be started.
    pub fn replace(&self, credential: Option<&str>, link: OwnedFd) -> io::Result<()> {
        let mut all = self.served();
        let served = all.iter_mut().find(|served| served.peer.credential() == credential);
        let served = served.ok_or(io::ErrorKind::NotFound)?;
        let route = served.peer.route.clone();
        let next = ServedPeer::start(&self.service, (link, route), &self.ends)?;
        let ServedPeer { peer, thread } = std::mem::replace(served, next);
        drop(all);
        peer.close();
        // A thread that panicked has dropped its connections, which records their ends.
        let _ = thread.join();
        Ok(())
    }

    /// Connects by way of another connector from now on.
    ///
    /// # Errors
    /// When its links are no sockets.
    pub fn replace_connector(&self, links: Vec<OwnedFd>) -> io::Result<()> {
        let next = Arc::new(Dialer::new(links)?);
        *self.service.dialer.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn served(&self) -> MutexGuard<'_, Vec<ServedPeer>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes every connection and records its end; waits for the egress process's reports for at
    /// most `timeout`.
    pub fn stop(self, timeout: Duration) {
        let Self { service, served, ends, closers } = self;
        // Attempts end without waiting for an approval or an address, so that their last records
        // are written before the log is closed.
        service.attempts.stop();
        service.dialer().stop();
        // The threads that record end with the last of these.
        drop(ends);
        let served = served.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (peers, heard): (Vec<_>, Vec<_>) =
            served.into_iter().map(|ServedPeer { peer, thread }| (peer, thread)).unzip();
        for peer in &peers {
            peer.send(&ToProxy::Stop, None);
        }
        let threads: Vec<_> = closers.into_iter().chain(heard).collect();
        let end = Instant::now() + timeout;
        service.attempts.wait(end);
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            thread::sleep(STOP_INTERVAL);
        }
        // This ends the threads that read messages, and with them the others.
        for peer in peers {
            peer.close();
        }
        for thread in threads {
            // A thread that panicked has dropped its connections, which records their ends.
            let _ = thread.join();
        }
    }
}

impl ServedPeer {
    fn start(
        service: &Arc<Service>,
        (link, route): (OwnedFd, Option<Arc<CredentialRoute>>),
        ends: &mpsc::Sender<UnrecordedEnd>,
    ) -> io::Result<Self> {
        let (peer, ends) = (Arc::new(Peer::new(Arc::clone(service), route, link)), ends.clone());
        let served = Arc::clone(&peer);
        Ok(Self { peer, thread: spawn("egress", move || served.serve(&ends))? })
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

impl Service {
    /// Waits if the session was refused too often: each refusal costs a record.
    pub(crate) fn pause(&self) {
        self.attempts.pause(self.gateway.pause(&self.session));
    }

    /// Decides on the name, looks it up, decides on its addresses, and connects.
    pub(crate) fn attempt(
        &self,
        route: Option<&CredentialRoute>,
        host: &str,
        port: u16,
    ) -> Result<(Opened, OwnedFd), Refused> {
        self.pause();
        let to = match (route, Host::parse(host)) {
            // A credential's process does not choose its host.
            (Some(route), _) => route.to.clone(),
            (None, Ok(host)) => Connect { host, port },
            (None, Err(error)) => {
                let shown = format!("{}:{port}", beginning(host, MAX_HOST));
                let refusal = Refusal::Parameters(error.to_string());
                self.gateway.refuse(&self.session, "connect", Some(&shown), &refusal);
                return Err(Refused::no_host(&error.to_string()));
            }
        };
        let client = Client::asking(&*self.attempts);
        let credential = route.map(|route| &*route.id);
        let attempt = self.gateway.connect_with(&self.session, &to, credential, client);
        let attempt = attempt.map_err(|error| Refused::because(&error, &to))?;
        let dialer = self.dialer();
        let candidates = dialer.resolve(&to.host.to_string());
        let candidates = candidates.map_err(|error| error.refused(&to))?;
        let mut refused = DialError::Failed("it has no address".to_owned()).refused(&to);
        for candidate in candidates {
            if candidate.is_own {
                self.gateway.know_own_address(candidate.address);
            }
            match attempt.open(candidate.address, client) {
                Ok(connection) => match self.dial(&dialer, &attempt, connection) {
                    Ok((connection, socket)) => return Ok((Opened { connection, to }, socket)),
                    Err(error) => refused = error.refused(&to),
                },
                Err(error) => refused = Refused::because(&error, &to),
            }
        }
        Err(refused)
    }

    /// Connects to the address that was decided on.
    fn dial(
        &self,
        dialer: &Dialer,
        attempt: &ConnectionAttempt,
        connection: OpenConnection,
    ) -> Result<(OpenConnection, OwnedFd), DialError> {
        let address = SocketAddr::new(connection.address(), attempt.target().port);
        match dialer.dial(address) {
            Ok(socket) => Ok((connection, socket)),
            Err(error) => {
                let detail = error.to_string();
                let reason = EndReason::Unreachable;
                let detail = Some(&*detail);
                let end =
                    ConnectionEnd { bytes_in: 0, bytes_out: 0, reason, detail, requests: None };
                self.close(connection, end);
                Err(error)
            }
        }
    }

    /// Records ends of connections until the channel is closed.
    fn record(&self, ended: &Mutex<mpsc::Receiver<UnrecordedEnd>>) {
        loop {
            let next = ended.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(UnrecordedEnd { opened, bytes, requests, reason }) = next else { return };
            let (bytes_in, bytes_out) = bytes;
            let Opened { connection, to } = opened;
            let Reason { end, detail } = reason;
            if end == End::Refused {
                self.note(&to, &detail);
            }
            let reason = end.into();
            let detail = Some(&*detail).filter(|detail| !detail.is_empty());
            self.close(connection, ConnectionEnd { bytes_in, bytes_out, reason, detail, requests });
        }
    }

    fn close(&self, connection: OpenConnection, end: ConnectionEnd<'_>) {
        if let Err(error) = connection.close(end) {
            // The log refuses all records then, also that of the next connection.
            tracing::error!(%error, "cannot record the end of a connection");
        }
    }

    /// Warns the operator why a connection was cut off: a program that speaks TLS is not told.
    fn note(&self, to: &Connect, detail: &str) {
        let detail = Escaped(detail);
        let note = format!("portcullis: warning: a connection to `{to}` was cut off: {detail}");
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < MAX_NOTES && noted.insert(note.clone()) {
            (self.notify)(&note);
        }
    }

    /// Returns the links with the current connector.
    fn dialer(&self) -> Arc<Dialer> {
        Arc::clone(&self.dialer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
