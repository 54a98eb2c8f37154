//! The gateway process's part: each connection is decided on by the gateway, and its name is looked
//! up, its address connected to, and its socket passed on only as decided.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use portcullis_core::{
    Approver, Client, ConnectionAttempt, ConnectionEnd, EndReason, Error, ErrorKind, Gateway,
    OpenConnection, Refusal,
};
use portcullis_policy::{
    Effect,
    model::{Connect, Escaped, Host, QuotedName, Session},
};

use crate::{
    attempts::Attempts,
    credential::CredentialRoute,
    dialer::{DialError, Dialer},
    messages::{End, MAX_HOST, Reason, RefusedRequest, ToProxy, without_user},
    operator_output::{DeniedConnection, OperatorOutput, RuleKind},
    peer::{Opened, Peer, ServerSocket, UnrecordedEnd},
    refused::Refused,
};

/// The number of threads that record ends.
const RECORDING_THREADS: usize = 4;
/// The interval at which the ends of the threads are looked for.
const STOP_INTERVAL: Duration = Duration::from_millis(2);
/// The target in records of requests whose target cannot be read.
const UNREADABLE: &str = "(unreadable)";
/// The operation in records of the processes.
const NOTE: &str = "egress";

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
    dialer: Mutex<Arc<Dialer>>,
    pub(crate) attempts: Arc<Attempts>,
    output: Box<dyn OperatorOutput>,
    /// True once the connector has ended for good.
    has_no_connector: AtomicBool,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Egress {
    /// Serves an egress process with a connector, for one session. `approver` gets the requests for
    /// approval.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        gateway: Arc<Gateway>,
        session: Session,
        links: Links,
        approver: Box<dyn Approver + Send>,
        output: Box<dyn OperatorOutput>,
    ) -> io::Result<Self> {
        let service = Arc::new(Service {
            gateway,
            session,
            dialer: Mutex::new(Arc::new(Dialer::new(links.connector)?)),
            attempts: Arc::new(Attempts::new(approver)),
            output,
            has_no_connector: AtomicBool::new(false),
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

    /// Refuses connections from now on: the connector is not started again.
    pub fn lose_connector(&self) {
        self.service.has_no_connector.store(true, Ordering::Relaxed);
    }

    /// Returns true if a connection or request that was denied, cut off or failed was reported to
    /// the operator.
    pub fn has_reported(&self) -> bool {
        self.service.output.has_reported()
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
        (host, port): (&str, u16),
        approver: &dyn Approver,
    ) -> Result<Opened, Refused> {
        self.pause();
        let to = match (route, Host::parse(host)) {
            // A credential's process does not choose its host.
            (Some(route), _) => route.to.clone(),
            (None, Ok(host)) => Connect { host, port },
            (None, Err(error)) => {
                let target = match without_user(host) {
                    // It was cut, and half of it could be half a secret.
                    _ if host.len() > MAX_HOST => String::new(),
                    address if address.contains(':') => format!("[{address}]:{port}"),
                    name => format!("{name}:{port}"),
                };
                let reason = error.to_string();
                self.refuse_malformed(&target, &reason);
                return Err(Refused::no_host(&reason));
            }
        };
        let client = Client::asking(approver);
        let credential = route.map(|route| &*route.id);
        let attempt = self.gateway.connect_with(&self.session, &to, credential, client);
        let denied = |error: Error, address| self.denied(&error, &to, (address, credential));
        let attempt = attempt.map_err(|error| denied(error, None))?;
        let dialer = self.dialer();
        let failed = |error: DialError| {
            if !matches!(error, DialError::Ended) {
                self.warn(&format!("a connection to `{to}` failed"), &error.to_string());
            }
            match self.has_no_connector.load(Ordering::Relaxed) {
                true => Refused::no_connector(),
                false => error.refused(&to),
            }
        };
        let candidates = dialer.resolve(&to.host.to_string()).map_err(|error| {
            let error = self.cause(error);
            self.note_unreachable(&attempt, &error.to_string());
            failed(error)
        })?;
        // The errors of the last address that was tried, and of the last one that was denied.
        let (mut failure, mut denial) = (None, None);
        for candidate in candidates {
            if candidate.is_local {
                self.gateway.add_local_address(candidate.address);
            }
            let connection = match attempt.open(candidate.address, client) {
                Ok(connection) => connection,
                Err(error) if error.kind() == ErrorKind::Denied => {
                    denial = Some((error, candidate.address));
                    continue;
                }
                // No other address is tried where nobody decides any more.
                Err(error) => return Err(denied(error, Some(candidate.address))),
            };
            match self.dial(&dialer, &attempt, connection) {
                Ok((connection, socket)) => {
                    let credential = credential.map(str::to_owned);
                    let socket = ServerSocket::new(socket);
                    return Ok(Opened { socket, connection, to, credential });
                }
                Err(error) => failure = Some(error),
            }
        }
        // Where an address is connected to, nobody is told of those that are denied.
        let denial =
            denial.map(|(error, address)| (error.to_string(), denied(error, Some(address))));
        // A connection that was tried has a record of its own.
        if let Some(error) = failure {
            return Err(failed(error));
        }
        let (reason, refused) = denial.unwrap_or_else(|| {
            let error = DialError::Failed("it has no address".to_owned());
            (error.to_string(), failed(error))
        });
        self.note_unreachable(&attempt, &reason);
        Err(refused)
    }

    /// Records that no connection came of an attempt.
    fn note_unreachable(&self, attempt: &ConnectionAttempt, reason: &str) {
        if let Err(error) = attempt.unreachable(reason) {
            // The log refuses all records then, also that of the next connection.
            tracing::error!(%error, "cannot record that a host was not reached");
        }
    }

    /// Returns the error of an order to the connector by its cause: the end of a session ends the
    /// connector.
    fn cause(&self, error: DialError) -> DialError {
        match error {
            DialError::Gone if self.attempts.is_stopping() => DialError::Ended,
            error => error,
        }
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
                let error = self.cause(error);
                let detail = error.to_string();
                let reason = match error {
                    DialError::Ended => EndReason::Ended,
                    DialError::Gone | DialError::Failed(_) => EndReason::Unreachable,
                };
                let end = ConnectionEnd::of(reason);
                self.close(connection, ConnectionEnd { detail: Some(&*detail), ..end });
                Err(error)
            }
        }
    }

    /// Records ends of connections until the channel is closed.
    fn record(&self, ended: &Mutex<mpsc::Receiver<UnrecordedEnd>>) {
        loop {
            let next = ended.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(UnrecordedEnd { opened, bytes_in, requests, request, reason }) = next else {
                return;
            };
            let Opened { socket, connection, to, credential } = opened;
            drop(socket);
            if let Some(error) = connection.denial() {
                let _ =
                    self.denied(&error, &to, (Some(connection.address()), credential.as_deref()));
            }
            let Reason { end, detail } = reason;
            let what = match end {
                End::Refused => Some("was cut off"),
                End::Failed => Some("failed"),
                _ => None,
            };
            if let Some(what) = what {
                self.warn(&format!("a connection to `{to}` {what}"), &detail);
            }
            let reason = end.into();
            let detail = Some(&*detail).filter(|detail| !detail.is_empty());
            let (method, path) = (request.method.as_deref(), request.path.as_deref());
            let end = ConnectionEnd { bytes_in, reason, detail, requests, method, path };
            self.close(connection, end);
        }
    }

    fn close(&self, connection: OpenConnection, end: ConnectionEnd<'_>) {
        if let Err(error) = connection.close(end) {
            // The log refuses all records then, also that of the next connection.
            tracing::error!(%error, "cannot record the end of a connection");
        }
    }

    /// Refuses a request that was not passed on, and records that.
    pub(crate) fn refuse(
        &self,
        route: Option<&CredentialRoute>,
        request: &RefusedRequest,
    ) -> Refused {
        let RefusedRequest { status, reason, target, has_other_host, named } = request;
        let to = match route {
            Some(route) => Ok(route.to.clone()),
            None => Connect::parse(target),
        };
        match to {
            Ok(to) if route.is_some() || *has_other_host => {
                let credential = route.map(|route| &*route.id);
                let refused = portcullis_core::RefusedRequest {
                    to: &to,
                    credential,
                    status: *status,
                    method: named.method.as_deref(),
                    path: named.path.as_deref(),
                    reason,
                };
                let error = self.gateway.refuse_request(&self.session, &refused);
                if error.kind() != ErrorKind::Denied {
                    return Refused::undecided(&error, &to);
                }
                self.warn(&format!("a request to `{to}` was refused with status {status}"), reason);
            }
            _ => self.refuse_malformed(target, reason),
        }
        Refused::not_passed_on(*status, reason)
    }

    /// Records the refusal of a request that names no host, or has two readings.
    fn refuse_malformed(&self, target: &str, reason: &str) {
        let target = if target.is_empty() { UNREADABLE } else { target };
        let refusal = Refusal::Parameters(reason.to_owned());
        self.gateway.refuse(&self.session, "connect", Some(target), &refusal);
        self.warn(
            "a request to the proxy was refused",
            &format!("{reason} ({})", QuotedName(target)),
        );
    }

    /// Warns the operator, once for each `what`: a program that speaks TLS gets no reason, and most
    /// programs do not show the one they get.
    fn warn(&self, what: &str, reason: &str) {
        let [what, reason] = [what, reason].map(|text| Escaped(&self.shown(text)).to_string());
        self.output.warn(&what, &reason);
    }

    /// Returns a text that may have parts of a program as the operator may see it.
    fn shown(&self, text: &str) -> String {
        self.gateway.redact_text(text).unwrap_or_else(|| "(not searched for secrets)".to_owned())
    }

    /// Returns the refusal for an error of the gateway, and reports a denial to the operator.
    fn denied(
        &self,
        error: &Error,
        to: &Connect,
        (address, credential): (Option<IpAddr>, Option<&str>),
    ) -> Refused {
        if error.kind() != ErrorKind::Denied {
            return Refused::undecided(error, to);
        }
        let rule = error.rule().unwrap_or("default");
        let stated = self.gateway.host_rule(&self.session, rule);
        let host = self.shown(&to.to_string());
        let address = address.map(|address| address.to_string());
        let denied = DeniedConnection {
            to: &host,
            address: address.as_deref(),
            rule,
            kind: match &stated {
                Some(rule) if rule.when_read => RuleKind::WhenRead(rule.read.as_deref()),
                Some(rule) if rule.effect == Effect::Ask => RuleKind::Ask,
                _ => RuleKind::Deny,
            },
            has_credential: credential.is_some(),
            status: None,
        };
        let why = error.reason().map(|why| format!(": {why}")).unwrap_or_default();
        let help = self.output.denied(&denied, &Escaped(&self.shown(&why)).to_string());
        Refused::denied(to, rule, &why, &help)
    }

    /// Returns the links with the current connector.
    fn dialer(&self) -> Arc<Dialer> {
        Arc::clone(&self.dialer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
