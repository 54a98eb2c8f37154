//! The processes that stand between a sandbox and the network: the egress process, the connector,
//! and those of credentials.
//!
//! The broker starts them and hands them their ends; the gateway process gets the other ones. They
//! end with the broker, or when the gateway process closes its end. One that ends before is started
//! again, a few times: an agent may be able to make it end.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::{
    net::sockopt::{Timeout, set_socket_timeout},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    credentials::{self, Credentials, InUse},
    protocol::{CredentialRoute, EgressRole, GatewayOrder},
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        process::{self, Child},
    },
    egress::{Routes, run_connector, run_proxy},
    sandbox::{
        Channel, ResolverFiles, become_gateway, refuse_descriptors, restrict_connector,
        restrict_front, stop_signals,
    },
};

/// The hidden words on the command line that make this process one or the other.
const PROXY_COMMAND: &str = "egress-process";
const CONNECTOR_COMMAND: &str = "connector-process";

/// The longest time that each may take to start, and to start again, which stops all else. A busy machine
/// takes seconds for either.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const RESTART_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum of restarts of all processes together.
const MAX_RESTARTS: usize = 3;
/// The pause before a restart.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// The longest time that the gateway process waits for room in a link.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which the files of the resolver are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Orders that the connector carries out at once.
const CONNECTOR_LINKS: usize = 16;

/// The processes of a sandbox; they are killed when this is dropped.
pub(in crate::cli) struct Egress {
    processes: Vec<Process>,
    restarts: usize,
    /// The files that the connector may read.
    resolver: ResolverFiles,
    next_look: Instant,
}

/// One of them, which may be between its end and its next start.
struct Process {
    kind: Kind,
    /// The socket to which programs connect, while there is or will be a process that accepts.
    listener: Option<OwnedFd>,
    running: Option<RunningProcess>,
    /// The time at which it is started again.
    due: Option<Instant>,
}

/// The purpose of a process.
enum Kind {
    Proxy,
    Connector,
    Credential(Box<InUse>),
}

/// A process, and a descriptor that is readable once it has ended.
struct RunningProcess {
    process: Child,
    end: OwnedFd,
}

/// The gateway process's ends: that of the egress process, and then those of the connector.
pub(in crate::cli) type Links = Vec<OwnedFd>;

/// The ends of [`Links`], and those of the credentials' processes.
pub(in crate::cli) type AllLinks = (Links, CredentialLinks);

/// The gateway process's ends of the credentials' processes.
pub(in crate::cli) type CredentialLinks = Vec<(CredentialRoute, OwnedFd)>;

impl Egress {
    /// Starts all, to serve what connects to `listener`, and to those of the credentials.
    ///
    /// # Errors
    /// When one cannot be started or confined.
    pub(in crate::cli) fn start(
        listener: OwnedFd,
        credentials: Credentials,
        listeners: Vec<OwnedFd>,
    ) -> Result<(Self, AllLinks), Failure> {
        // One that changes meanwhile is seen at the first look.
        let resolver = ResolverFiles::look();
        let (proxy, mut links) = Process::start(Kind::Proxy, Some(listener))?;
        let (connector, more) = Process::start(Kind::Connector, None)?;
        links.extend(more);
        let mut processes = vec![proxy, connector];
        let mut routes = CredentialLinks::new();
        for (credential, listener) in credentials.into_iter().zip(listeners) {
            let route = credential.route();
            let (process, links) =
                Process::start(Kind::Credential(Box::new(credential)), Some(listener))?;
            processes.push(process);
            routes.extend(links.into_iter().map(|link| (route.clone(), link)));
        }
        let next_look = Instant::now() + CHECK_INTERVAL;
        Ok((Self { processes, restarts: 0, resolver, next_look }, (links, routes)))
    }

    /// Returns the descriptors to wait for: readable once a process has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes
            .iter()
            .flat_map(|process| &process.running)
            .map(|running| running.end.as_fd())
    }

    /// Returns the time of the next check.
    pub(super) fn next_look(&self) -> Instant {
        let due = self.processes.iter().filter_map(|process| process.due);
        due.fold(self.next_look, Instant::min)
    }

    /// Starts those again that have ended, and a connector that may not read the files of now.
    pub(super) fn look(&mut self, gateway: &Channel) {
        let now = Instant::now();
        for process in &mut self.processes {
            process.look(now, &mut self.restarts, gateway);
        }
        if now < self.next_look {
            return;
        }
        self.next_look = now + CHECK_INTERVAL;
        let resolver = ResolverFiles::look();
        if resolver == self.resolver {
            return;
        }
        self.resolver = resolver;
        let is_connector = |process: &&mut Process| {
            matches!(process.kind, Kind::Connector) && process.running.is_some()
        };
        if let Some(connector) = self.processes.iter_mut().find(is_connector)
            && let Err(error) = connector.replace(gateway)
        {
            errln!(
                "portcullis: warning: the connector continues with the resolver's files as they \
                 were at the start: {}",
                error.message()
            );
        }
    }
}

impl Process {
    fn start(kind: Kind, listener: Option<OwnedFd>) -> Result<(Self, Links), Failure> {
        let mut process = Self { kind, listener, running: None, due: None };
        let (running, links) = process.spawn(START_TIMEOUT)?;
        process.running = Some(running);
        Ok((process, links))
    }

    fn role(&self) -> EgressRole {
        match &self.kind {
            Kind::Proxy => EgressRole::Proxy,
            Kind::Connector => EgressRole::Connector,
            Kind::Credential(credential) => {
                EgressRole::Credential { id: credential.id().to_owned() }
            }
        }
    }

    /// Notices the end of the process, and starts it again when that is due.
    fn look(&mut self, now: Instant, restarts: &mut usize, gateway: &Channel) {
        if self.running.as_mut().is_some_and(|running| running.process.ended().is_some()) {
            self.running = None;
            self.ended(restarts, gateway);
        }
        if self.due.take_if(|due| *due <= now).is_some()
            && let Err(error) = self.replace(gateway)
        {
            errln!("portcullis: warning: {}", error.message());
            self.ended(restarts, gateway);
        }
    }

    /// Decides what becomes of a process that is gone.
    fn ended(&mut self, restarts: &mut usize, gateway: &Channel) {
        let role = self.role();
        if *restarts < MAX_RESTARTS {
            *restarts += 1;
            self.due = Some(Instant::now() + RESTART_DELAY);
            errln!(
                "portcullis: warning: the {role} ended, and is started again ({restarts} of \
                 {MAX_RESTARTS} times)"
            );
            return;
        }
        // Programs are refused at once.
        self.listener = None;
        let hosts = match self.kind {
            Kind::Credential(_) => "do not reach its host",
            Kind::Proxy | Kind::Connector => "reach no further host",
        };
        errln!(
            "portcullis: warning: the {role} ended, and is not started again: programs in the sandbox \
             {hosts} in this session; start a new one for that"
        );
        tell(gateway, role, false, &[]);
    }

    /// Starts another process in place of this one, which goes on if that fails.
    fn replace(&mut self, gateway: &Channel) -> Result<(), Failure> {
        let (running, links) = self.spawn(RESTART_TIMEOUT)?;
        // The gateway process knows the new one before the last one is gone.
        tell(gateway, self.role(), true, &links);
        self.running = Some(running);
        Ok(())
    }

    fn spawn(&self, timeout: Duration) -> Result<(RunningProcess, Links), Failure> {
        let doing = format!("cannot start the {}", self.role());
        let count = match self.kind {
            Kind::Connector => CONNECTOR_LINKS,
            Kind::Proxy | Kind::Credential(_) => 1,
        };
        let (mut links, mut theirs) = (Links::new(), Links::new());
        for _ in 0..count {
            let (ours, other) = Channel::pair().or_fail(&doing)?;
            links.push(ours.into());
            theirs.push(other.into());
        }
        let mut descriptors: Vec<_> =
            theirs.iter().chain(&self.listener).map(OwnedFd::as_fd).collect();
        let process = match &self.kind {
            Kind::Proxy => spawn(PROXY_COMMAND, &doing, &(), &descriptors, timeout)?,
            Kind::Connector => spawn(CONNECTOR_COMMAND, &doing, &(), &descriptors, timeout)?,
            Kind::Credential(credential) => {
                let (order, key) = credential.order()?;
                descriptors.push(key.as_fd());
                spawn(credentials::COMMAND, &doing, &order, &descriptors, timeout)?
            }
        };
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let end = pid.ok_or(rustix::io::Errno::SRCH);
        let end = end.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())).or_fail(&doing)?;
        links.iter().try_for_each(|link| self.distrust(link)).or_fail(&doing)?;
        Ok((RunningProcess { process, end }, links))
    }

    /// Bounds what a process can do to the gateway process by its link: one that parses what an
    /// agent or a server sends may pass no descriptors on, and none may keep a sender waiting.
    fn distrust(&self, link: &OwnedFd) -> io::Result<()> {
        if !matches!(self.kind, Kind::Connector) {
            refuse_descriptors(link)?;
        }
        Ok(set_socket_timeout(link, Timeout::Send, Some(SEND_TIMEOUT))?)
    }
}

fn tell(gateway: &Channel, role: EgressRole, is_restarted: bool, links: &[OwnedFd]) {
    let links: Vec<_> = links.iter().map(OwnedFd::as_fd).collect();
    let order = GatewayOrder::Egress { role, is_restarted };
    // A gateway process that is gone is noticed by the supervisor.
    let _ = gateway.send(&order, &links);
}

/// Starts a process with an order and descriptors, and waits until it is confined.
fn spawn(
    command: &str,
    doing: &str,
    order: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<Child, Failure> {
    let (process, control) = process::spawn_apart(command)?;
    control.send(order, descriptors).or_fail(doing)?;
    let (confined, _) = control.receive_within::<Result<(), String>>(timeout).or_fail(doing)?;
    confined.map_err(|reason| Failure::new(format_args!("{doing}: {reason}")))?;
    Ok(process)
}

/// Runs one of the processes, if this one was started as it.
pub(crate) fn run_if_egress() -> Option<ExitCode> {
    process::run_if(PROXY_COMMAND, proxy)
        .or_else(|| process::run_if(CONNECTOR_COMMAND, connector))
        .or_else(|| process::run_if(credentials::COMMAND, credentials::run))
}

fn proxy(parent: u32) -> Result<(), Failure> {
    const WRONG: &str = "the broker sent other descriptors";
    let ((), descriptors) = begin(parent, |()| Ok(restrict_front().map(drop)?))?;
    let [gateway, listener] = descriptors.try_into().map_err(|_| Failure::new(WRONG))?;
    run_proxy(listener, gateway).or_fail("the egress process failed")
}

fn connector(parent: u32) -> Result<(), Failure> {
    let confine = |()| {
        let routes = Routes::open()?;
        let _report = restrict_connector()?;
        Ok(routes)
    };
    let (routes, links) = begin(parent, confine)?;
    run_connector(links, routes).or_fail("the connector failed")
}

/// Takes what the broker hands over, and confines this process, which makes something of its order.
pub(super) fn begin<O: DeserializeOwned, T>(
    parent: u32,
    confine: impl FnOnce(O) -> Result<T, Box<dyn std::error::Error>>,
) -> Result<(T, Vec<OwnedFd>), Failure> {
    let control = become_gateway(parent).or_fail("cannot start")?;
    // The broker and the gateway process say when to stop.
    let _signals = stop_signals().or_fail("cannot block signals")?;
    let (order, descriptors) = control.receive().or_fail("cannot start")?;
    let made = confine(order).map_err(|error| error.to_string());
    let confined = made.as_ref().map(drop).map_err(String::clone);
    control.send(&confined, &[]).or_fail("cannot answer the broker")?;
    Ok((made.map_err(Failure::new)?, descriptors))
}
