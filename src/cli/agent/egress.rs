//! The egress process and the connector, which stand between a sandbox and the network.
//!
//! The broker starts both and hands them their ends; the gateway process gets the other ones. Both
//! end with the broker, or when the gateway process closes its end. One that ends before is started
//! again, a few times: an agent may be able to make it end.

use std::{
    mem,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    credentials::{self, Credentials},
    protocol::{CredentialRoute, EgressRole, Order},
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        process::{self, Child},
    },
    egress::{run_connector, run_proxy},
    sandbox::{
        Channel, ResolverFiles, become_gate, refuse_descriptors, restrict_connector,
        restrict_front, stop_signals,
    },
};

/// The hidden words on the command line that make this process one or the other.
const PROXY_COMMAND: &str = "egress-process";
const CONNECTOR_COMMAND: &str = "connector-process";

/// The longest time that each may take to start, and to start again, which stops all else.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const RESTART_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum of restarts of both processes together.
const MAX_RESTARTS: usize = 3;
/// The pause before a restart.
const RESTART_PAUSE: Duration = Duration::from_millis(250);
/// The interval at which the files of the resolver are checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Orders that the connector carries out at once.
const CONNECTOR_LINKS: usize = 16;

/// The two processes of a sandbox; they are killed when this is dropped.
#[derive(Debug)]
pub(in crate::cli) struct Egress {
    /// The socket to which programs connect, while there is or will be an egress process.
    listener: Option<OwnedFd>,
    proxy: Option<Running>,
    connector: Option<Running>,
    /// The processes of credentials, which are not started again.
    credentials: Vec<Child>,
    /// Those that are to be started again, and when.
    due: Vec<(EgressRole, Instant)>,
    restarts: usize,
    /// The files that the connector may read.
    resolver: ResolverFiles,
    next_look: Instant,
}

/// A process, and a descriptor that is readable once it has ended.
#[derive(Debug)]
struct Running {
    process: Child,
    end: OwnedFd,
}

/// The gateway process's ends: that of the egress process, and then those of the connector.
pub(in crate::cli) type Links = Vec<OwnedFd>;

/// Those ends, and those of the credentials' processes.
pub(in crate::cli) type AllLinks = (Links, CredentialLinks);

/// The gateway process's ends of the credentials' processes.
pub(in crate::cli) type CredentialLinks = Vec<(CredentialRoute, OwnedFd)>;

impl Egress {
    /// Starts both, to serve what connects to `listener`.
    ///
    /// # Errors
    /// When one cannot be started or confined.
    pub(in crate::cli) fn start(listener: OwnedFd) -> Result<(Self, Links), Failure> {
        // One that changes meanwhile is seen at the first look.
        let resolver = ResolverFiles::look();
        let (proxy, mut links) = start(EgressRole::Proxy, Some(&listener), START_TIMEOUT)?;
        let (connector, more) = start(EgressRole::Connector, None, START_TIMEOUT)?;
        links.extend(more);
        let egress = Self {
            listener: Some(listener),
            proxy: Some(proxy),
            connector: Some(connector),
            credentials: Vec::new(),
            due: Vec::new(),
            restarts: 0,
            resolver,
            next_look: Instant::now() + LOOK_INTERVAL,
        };
        Ok((egress, links))
    }

    /// Starts the processes of credentials, to serve what connects to `listeners`.
    ///
    /// # Errors
    /// When one cannot be started or confined.
    pub(super) fn add(
        &mut self,
        credentials: &Credentials,
        listeners: &[OwnedFd],
    ) -> Result<CredentialLinks, Failure> {
        let mut links = CredentialLinks::new();
        for (credential, listener) in credentials.iter().zip(listeners) {
            let (process, link) = credential.start(listener)?;
            self.credentials.push(process);
            links.push((credential.route(), link));
        }
        Ok(links)
    }

    /// Returns the descriptors to wait for: readable once a process has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.proxy.iter().chain(&self.connector).map(|running| running.end.as_fd())
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Instant {
        self.due.iter().map(|(_, then)| *then).fold(self.next_look, Instant::min)
    }

    /// Starts those again that have ended, and a connector that may not read the files of now.
    pub(super) fn look(&mut self, gate: &Channel) {
        for role in [EgressRole::Proxy, EgressRole::Connector] {
            let running = self.process(role);
            if running.as_mut().is_some_and(|running| running.process.ended().is_some()) {
                *running = None;
                self.ended(role, gate);
            }
        }
        let now = Instant::now();
        let is_due = |(_, then): &(EgressRole, Instant)| *then <= now;
        let (due, later): (Vec<_>, _) = mem::take(&mut self.due).into_iter().partition(is_due);
        self.due = later;
        for (role, _) in due {
            self.restart(role, gate);
        }
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_INTERVAL;
        if self.connector.is_some() && ResolverFiles::look() != self.resolver {
            self.restart(EgressRole::Connector, gate);
        }
    }

    fn process(&mut self, role: EgressRole) -> &mut Option<Running> {
        match role {
            EgressRole::Proxy => &mut self.proxy,
            EgressRole::Connector => &mut self.connector,
        }
    }

    /// Decides what becomes of a process that is gone.
    fn ended(&mut self, role: EgressRole, gate: &Channel) {
        let name = role.name();
        if self.restarts < MAX_RESTARTS {
            self.restarts += 1;
            self.due.push((role, Instant::now() + RESTART_PAUSE));
            errln!(
                "portcullis: warning: the {name} ended, and is started again ({} of {MAX_RESTARTS} \
                 times)",
                self.restarts
            );
            return;
        }
        if role == EgressRole::Proxy {
            // Programs are refused at once.
            self.listener = None;
        }
        errln!(
            "portcullis: warning: the {name} ended, and is not started again: programs in the sandbox \
             reach no further host until the session is"
        );
        tell(gate, role, false, &[]);
    }

    fn restart(&mut self, role: EgressRole, gate: &Channel) {
        let listener = self.listener.as_ref().filter(|_| role == EgressRole::Proxy);
        if role == EgressRole::Connector {
            self.resolver = ResolverFiles::look();
        }
        match start(role, listener, RESTART_TIMEOUT) {
            Ok((running, links)) => {
                // The gateway process knows the new one before the last one is gone.
                tell(gate, role, true, &links);
                *self.process(role) = Some(running);
            }
            Err(error) => {
                errln!("portcullis: warning: {}", error.message());
                self.ended(role, gate);
            }
        }
    }
}

fn tell(gate: &Channel, role: EgressRole, is_restarted: bool, links: &[OwnedFd]) {
    let links: Vec<_> = links.iter().map(OwnedFd::as_fd).collect();
    let order = Order::Egress { role, is_restarted };
    // A gate that is gone is noticed by the supervisor.
    let _ = gate.send(&order, &links);
}

fn start(
    role: EgressRole,
    listener: Option<&OwnedFd>,
    timeout: Duration,
) -> Result<(Running, Links), Failure> {
    let doing = format!("cannot start the {}", role.name());
    let (command, count) = match role {
        EgressRole::Proxy => (PROXY_COMMAND, 1),
        EgressRole::Connector => (CONNECTOR_COMMAND, CONNECTOR_LINKS),
    };
    let (mut links, mut theirs) = (Links::new(), Links::new());
    for _ in 0..count {
        let (ours, other) = Channel::pair().or_fail(&doing)?;
        links.push(ours.into());
        theirs.push(other.into());
    }
    let descriptors: Vec<_> = theirs.iter().chain(listener).map(OwnedFd::as_fd).collect();
    let process = spawn(command, &doing, &(), &descriptors, timeout)?;
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    let end = pid.ok_or(rustix::io::Errno::SRCH);
    let end = end.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())).or_fail(&doing)?;
    if role == EgressRole::Proxy {
        // A process that parses what an agent sends may pass no descriptors on.
        links.iter().try_for_each(refuse_descriptors).or_fail(&doing)?;
    }
    Ok((Running { process, end }, links))
}

/// Starts the process of a credential with an `order`, and returns the gateway process's end of its link.
pub(super) fn start_credential(
    order: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(Child, OwnedFd), Failure> {
    const DOING: &str = "cannot start the process of a credential";
    let (link, theirs) = Channel::pair().or_fail(DOING)?;
    let descriptors = [&[theirs.as_fd()], descriptors].concat();
    let process = spawn(credentials::COMMAND, DOING, order, &descriptors, START_TIMEOUT)?;
    let link = OwnedFd::from(link);
    // A process that parses what an agent and a server send may pass no descriptors on.
    refuse_descriptors(&link).or_fail(DOING)?;
    Ok((process, link))
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
    confined.map_err(|why| Failure::new(format_args!("{doing}: {why}")))?;
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
    let ((), links) = begin(parent, |()| Ok(restrict_connector().map(drop)?))?;
    run_connector(links).or_fail("the connector failed")
}

/// Takes what the broker hands over, and confines this process, which makes something of its order.
pub(super) fn begin<O: DeserializeOwned, T>(
    parent: u32,
    confine: impl FnOnce(O) -> Result<T, Box<dyn std::error::Error>>,
) -> Result<(T, Vec<OwnedFd>), Failure> {
    let control = become_gate(parent).or_fail("cannot start")?;
    // The broker and the gateway process say when to stop.
    let _signals = stop_signals().or_fail("cannot block signals")?;
    let (order, descriptors) = control.receive().or_fail("cannot start")?;
    let made = confine(order).map_err(|error| error.to_string());
    let confined = made.as_ref().map(drop).map_err(String::clone);
    control.send(&confined, &[]).or_fail("cannot answer the broker")?;
    Ok((made.map_err(Failure::new)?, descriptors))
}
