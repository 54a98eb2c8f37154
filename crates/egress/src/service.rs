//! The gateway process's part: each connection is decided on by the gateway, and its name is looked
//! up, its address connected to, and its socket passed on only as decided.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use portcullis_core::{
    Approver, Client, ConnectionAttempt, ConnectionEnd, EndReason, Error, Gateway, OpenConnection,
    Refusal,
};
use portcullis_policy::model::{Connect, Escaped, Host, Session};
use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};

use crate::{
    attempts::Attempts,
    credential::CredentialRoute,
    dialer::{DialError, Dialer},
    messages::{End, FromProxy, Id, MAX_HOST, Reason, ToProxy, beginning},
    packet,
    refused::Refused,
};

/// The number of threads that record ends.
const CLOSERS: usize = 4;
/// The interval at which open connections are decided on again, by the policy in force.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
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
    served: Mutex<Served>,
    /// The processes of credentials.
    credentials: Vec<Served>,
    ends: mpsc::Sender<Ended>,
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

/// An egress process that is served, and the thread that reads its messages.
#[derive(Debug)]
struct Served {
    proxy: Arc<Proxy>,
    thread: JoinHandle<()>,
}

struct Service {
    gateway: Arc<Gateway>,
    session: Session,
    notify: fn(&str),
    dialer: Mutex<Arc<Dialer>>,
    attempts: Arc<Attempts>,
    noted: Mutex<BTreeSet<String>>,
}

/// An egress process or a credential's process, with its open connections.
#[derive(Debug)]
struct Proxy {
    service: Arc<Service>,
    /// The only host to connect to, if the process has a credential.
    route: Option<CredentialRoute>,
    link: OwnedFd,
    open: Mutex<HashMap<Id, Opened>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

/// An open connection.
#[derive(Debug)]
struct Opened {
    connection: OpenConnection,
    to: Connect,
}

/// An end of a connection that is still to be recorded.
struct Ended {
    opened: Opened,
    bytes: (u64, u64),
    requests: Option<u64>,
    reason: Reason,
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
            dialer: Mutex::new(Arc::new(Dialer::new(links.connector))),
            attempts: Arc::new(Attempts::new(approver)),
            noted: Mutex::default(),
        });
        let (ends, ended) = mpsc::channel();
        let ended = Arc::new(Mutex::new(ended));
        let closer = |_| {
            let (service, ended) = (Arc::clone(&service), Arc::clone(&ended));
            spawn("connection-ends", move || service.record(&ended))
        };
        let closers = (0..CLOSERS).map(closer).collect::<io::Result<_>>()?;
        let served = Mutex::new(Served::start(&service, (links.proxy, None), &ends)?);
        Ok(Self { service, served, credentials: Vec::new(), ends, closers })
    }

    /// Serves the process of a credential, too. From now on programs reach its host by this process
    /// alone.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn add_credential(&mut self, route: CredentialRoute, link: OwnedFd) -> io::Result<()> {
        let CredentialRoute { id, to, url } = &route;
        self.service.gateway.reach_with_credential(&to.host, id, url);
        self.credentials.push(Served::start(&self.service, (link, Some(route)), &self.ends)?);
        Ok(())
    }

    /// Records that a process ended, and whether it was started again.
    ///
    /// # Errors
    /// When no record can be written: the session must not go on then.
    pub fn note(&self, process: &str, is_restarted: bool) -> Result<(), Error> {
        self.service.note_end(process, is_restarted)
    }

    /// Serves another egress process in place of one that ended.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn replace_proxy(&self, link: OwnedFd) -> io::Result<()> {
        let next = Served::start(&self.service, (link, None), &self.ends)?;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let Served { proxy, thread } = std::mem::replace(&mut *served, next);
        proxy.close();
        // A thread that panicked has dropped its connections, which records their ends.
        let _ = thread.join();
        Ok(())
    }

    /// Connects by way of another connector from now on.
    pub fn replace_connector(&self, links: Vec<OwnedFd>) {
        let mut dialer = self.service.dialer.lock().unwrap_or_else(PoisonError::into_inner);
        *dialer = Arc::new(Dialer::new(links));
    }

    /// Closes every connection and records its end; waits for the egress process's reports for at
    /// most `timeout`.
    pub fn stop(self, timeout: Duration) {
        let Self { service, served, credentials, ends, closers } = self;
        // Attempts end without waiting for an approval or an address, so that their last records
        // are written before the log is closed.
        service.attempts.stop();
        service.dialer().stop();
        // The threads that record end with the last of these.
        drop(ends);
        let served = served.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all = credentials.into_iter().chain([served]);
        let (proxies, heard): (Vec<_>, Vec<_>) =
            all.map(|Served { proxy, thread }| (proxy, thread)).unzip();
        for proxy in &proxies {
            proxy.send(&ToProxy::Stop, None);
        }
        let threads: Vec<_> = closers.into_iter().chain(heard).collect();
        let end = Instant::now() + timeout;
        service.attempts.wait(end);
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            thread::sleep(STOP_INTERVAL);
        }
        // This ends the threads that read messages, and with them the others.
        for proxy in proxies {
            proxy.close();
        }
        for thread in threads {
            // A thread that panicked has dropped its connections, which records their ends.
            let _ = thread.join();
        }
    }
}

impl Served {
    fn start(
        service: &Arc<Service>,
        (link, route): (OwnedFd, Option<CredentialRoute>),
        ends: &mpsc::Sender<Ended>,
    ) -> io::Result<Self> {
        let (service, open, ends) = (Arc::clone(service), Mutex::default(), ends.clone());
        let proxy = Arc::new(Proxy { service, route, link, open });
        let served = Arc::clone(&proxy);
        Ok(Self { proxy, thread: spawn("egress", move || served.serve(&ends))? })
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

impl Proxy {
    /// Handles the egress process's messages until it is gone.
    fn serve(self: &Arc<Self>, ends: &mpsc::Sender<Ended>) {
        let (alive, gone) = mpsc::channel::<()>();
        let looking = Arc::clone(self);
        // Without this thread a reload ends a connection only when that sends something.
        let looks = spawn("connection-looks", move || looking.look(&gone));
        loop {
            match packet::receive(&self.link, RecvFlags::empty()) {
                Ok(Some((message, _))) => self.hear(message, ends),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the egress process says what nobody understands");
                    break;
                }
            }
        }
        drop(alive);
        // A process that is still running ends by this.
        self.close();
        let (end, detail) = match self.service.attempts.is_stopping() {
            true => (End::Ended, ""),
            false => (End::Reset, self.gone()),
        };
        for (_, opened) in self.open().drain() {
            let reason = Reason::new(end, detail);
            // The threads that record live until `ends` is dropped.
            let _ = ends.send(Ended { opened, bytes: (0, 0), requests: None, reason });
        }
        let _ = looks.map(JoinHandle::join);
    }

    /// Returns why the connections of the process end. Warns of the end of a credential's process,
    /// and records it: it is not started again, for that would need the key.
    fn gone(&self) -> &'static str {
        let Some(CredentialRoute { id, to, .. }) = &self.route else {
            return "the egress process ended";
        };
        (self.service.notify)(&format!(
            "portcullis: warning: the process of the credential `{id}` ended: programs in the sandbox do \
             not reach `{to}` any more until the session is started again"
        ));
        if let Err(error) = self.service.note_end(&format!("credential {id}"), false) {
            tracing::error!(%error, "cannot record the end of a credential's process");
        }
        "the credential's process ended"
    }

    fn hear(self: &Arc<Self>, message: FromProxy, ends: &mpsc::Sender<Ended>) {
        match message {
            FromProxy::Connect { id, host, port } => {
                let proxy = Arc::clone(self);
                let started = self.service.attempts.begin().map(|running| {
                    spawn("connection", move || {
                        proxy.connect(id, &host, port);
                        drop((proxy, running));
                    })
                });
                if !matches!(started, Some(Ok(_))) {
                    self.refuse(id, Refused::busy());
                }
            }
            FromProxy::Sending { id, bytes } => {
                let counted = self.open().get(&id).map(|opened| opened.connection.account(bytes));
                let reply = match counted {
                    Some(Ok(())) => ToProxy::Counted { id },
                    Some(Err(_)) | None => ToProxy::Close { id },
                };
                self.send(&reply, None);
            }
            FromProxy::Closed { id, bytes_in, bytes_out, requests, reason } => {
                if let Some(opened) = self.open().remove(&id) {
                    let bytes = (bytes_in, bytes_out);
                    let _ = ends.send(Ended { opened, bytes, requests, reason });
                }
            }
            FromProxy::Refused { why } => {
                let to = self.route.as_ref().map(|route| route.to.to_string());
                let (service, refusal) = (&self.service, Refusal::Parameters(why));
                service.pause();
                service.gateway.refuse(&service.session, "connect", to.as_deref(), &refusal);
            }
        }
    }

    /// Closes the connections that the policy in force denies.
    fn look(&self, gone: &mpsc::Receiver<()>) {
        while gone.recv_timeout(LOOK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
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
        let (opened, socket) = match self.service.attempt(self.route.as_ref(), host, port) {
            Ok(opened) => opened,
            Err(refused) => return self.refuse(id, refused),
        };
        let Ok(close) = self.closer(id, &socket) else { return self.refuse(id, Refused::busy()) };
        self.open().insert(id, opened);
        if !self.send(&ToProxy::Opened { id }, Some(&socket)) {
            // No process reports its end.
            self.open().remove(&id);
        }
        // The egress process has been told of the connection first.
        if let Some(opened) = self.open().get(&id) {
            opened.connection.closed_by(close);
        }
    }

    fn refuse(&self, id: Id, refused: Refused) {
        self.send(&ToProxy::Refused { id, refused }, None);
    }

    /// Sends the egress process a message; false if the process is gone, which `serve` notices.
    fn send(&self, message: &ToProxy, socket: Option<&OwnedFd>) -> bool {
        let socket = socket.map(OwnedFd::as_fd);
        packet::send(&self.link, message, socket, SendFlags::empty()).is_ok()
    }

    fn close(&self) {
        // The link may be closed already.
        let _ = shutdown(&self.link, Shutdown::Both);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Id, Opened>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a function that closes an open connection at once: no process that has its socket
    /// can send by it any more, and the egress process is told.
    fn closer(
        self: &Arc<Self>,
        id: Id,
        socket: &OwnedFd,
    ) -> io::Result<impl Fn() + Send + Sync + 'static> {
        let (proxy, socket) = (Arc::downgrade(self), socket.try_clone()?);
        Ok(move || {
            let _ = shutdown(&socket, Shutdown::Both);
            if let Some(proxy) = proxy.upgrade() {
                proxy.send(&ToProxy::Close { id }, None);
            }
        })
    }
}

impl Service {
    /// Waits if the session was refused too often: each refusal costs a record.
    fn pause(&self) {
        self.attempts.pause(self.gateway.pause(&self.session));
    }

    /// Decides on the name, looks it up, decides on its addresses, and connects.
    fn attempt(
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
        let candidates = candidates.map_err(|error| Refused::unreachable(&error, &to))?;
        let mut refused =
            Refused::unreachable(&DialError::Failed("it has no address".to_owned()), &to);
        for candidate in candidates {
            if candidate.is_own {
                self.gateway.know_own_address(candidate.address);
            }
            match attempt.open(candidate.address, client) {
                Ok(connection) => match self.dial(&dialer, &attempt, connection) {
                    Ok((connection, socket)) => return Ok((Opened { connection, to }, socket)),
                    Err(error) => refused = Refused::unreachable(&error, &to),
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
    fn record(&self, ended: &Mutex<mpsc::Receiver<Ended>>) {
        loop {
            let next = ended.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Ended { opened, bytes, requests, reason }) = next else { return };
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

    /// Records that a process ended.
    fn note_end(&self, process: &str, is_restarted: bool) -> Result<(), Error> {
        let facts = [("process", process.into()), ("restarted", is_restarted.into())];
        let facts = facts.map(|(name, value)| (name.to_owned(), value)).into();
        self.gateway.note(&self.session, NOTE, facts).map(drop)
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
