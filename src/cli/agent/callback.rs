//! Connections of the operator's browser to a login in the sandbox (`--callback`).
//!
//! A login often ends with a redirection of the browser to a port of this machine's loopback
//! interface, at which the login listens. In a sandbox that is another interface. So this process
//! listens at the same port outside, and connects a socket of the sandbox's network for each
//! connection. Bytes are copied, not parsed. A port that nobody names beforehand is found in the
//! tables of that network.

use std::{
    collections::BTreeSet,
    fmt, io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream},
    os::fd::AsFd as _,
    str::FromStr,
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::protocol::GatewayOrder;
use crate::{
    app::failure::{Context as _, Exit, Failure},
    sandbox::{Channel, Network, SocketTables, UnconnectedSocket},
};

/// Maximum of connections to one login. A browser makes one for each page, and a few more.
pub(super) const MAX_CONNECTIONS: usize = 32;
/// Maximum of ports that are opened for one login, if they are not named.
const MAX_PORTS: usize = 4;
/// Interval at which the sandbox is looked at for ports.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of the record of a port.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

/// The port at which a login is called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum CallbackPort {
    /// The port that the operator names.
    Named(u16),
    /// The high ports at which the login listens.
    Auto,
}

impl CallbackPort {
    /// Returns the fact in the record of the start.
    pub(super) fn fact(self) -> Value {
        match self {
            Self::Named(port) => port.into(),
            Self::Auto => "auto".into(),
        }
    }
}

impl FromStr for CallbackPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            port => match port.parse() {
                Ok(0) | Err(_) => Err("expected a port from 1 to 65535, or `auto`"),
                Ok(port) => Ok(Self::Named(port)),
            },
        }
    }
}

impl fmt::Display for CallbackPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(port) => write!(f, "port {port} of the loopback interface"),
            Self::Auto => write!(
                f,
                "the ports of the loopback interface at which it listens, from 32768 to 60999 (at \
                 most {MAX_PORTS})"
            ),
        }
    }
}

/// The listeners on this machine's loopback interface that lead to a login.
pub(super) struct Callback {
    port: CallbackPort,
    listeners: Vec<(u16, TcpListener)>,
}

impl Callback {
    /// Listens at a named port, before anything is started.
    ///
    /// # Errors
    /// If the port is taken, or the sandbox has the host's `network`.
    pub(super) fn listen(port: CallbackPort, network: &Network) -> Result<Self, Failure> {
        if *network != Network::None {
            return Err(Failure::new("`--callback` is for a login with a network of its own")
                .exit(Exit::Usage)
                .help("with `--agent-network`, name the port with `--agent-listen`"));
        }
        let listeners = match port {
            CallbackPort::Named(port) => listen(port)
                .or_fail(format_args!("cannot listen at port {port} of the loopback interface"))?,
            CallbackPort::Auto => Vec::new(),
        };
        Ok(Self { port, listeners })
    }

    /// Connects browsers to the login, in threads that end with this process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn serve(
        self,
        (sockets, tables): (Vec<UnconnectedSocket>, Option<SocketTables>),
        gateway: &Channel,
    ) -> Result<(), Failure> {
        errln!(
            "portcullis: note: programs of this machine reach the login at {}, up to \
             {MAX_CONNECTIONS} times",
            self.port
        );
        let discovery = match self.port {
            CallbackPort::Named(_) => None,
            CallbackPort::Auto => {
                let tables =
                    tables.ok_or_else(|| Failure::new("the sandbox has no network of its own"))?;
                let gateway = gateway.try_clone().or_fail("cannot watch the login")?.into();
                Some(Discovery { tables, gateway, found: BTreeSet::new() })
            }
        };
        let server = Server { listeners: self.listeners, sockets, discovery, is_used_up: false };
        start(move || server.run()).or_fail("cannot start a thread")
    }
}

/// Listens on the loopback interface without waiting in accept(2).
fn listen(port: u16) -> io::Result<Vec<(u16, TcpListener)>> {
    let at = |address: IpAddr| -> io::Result<_> {
        let listener = TcpListener::bind((address, port))?;
        listener.set_nonblocking(true)?;
        Ok((port, listener))
    };
    let mut listeners = vec![at(Ipv4Addr::LOCALHOST.into())?];
    // Browsers try this address first. Nobody else may answer there.
    match at(Ipv6Addr::LOCALHOST.into()) {
        Ok(listener) => listeners.push(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
        // This machine has no IPv6.
        Err(_) => {}
    }
    Ok(listeners)
}

/// The state of the thread that accepts connections.
struct Server {
    listeners: Vec<(u16, TcpListener)>,
    sockets: Vec<UnconnectedSocket>,
    discovery: Option<Discovery>,
    /// True once a connection found no socket.
    is_used_up: bool,
}

impl Server {
    /// Serves until it is not known any more where the login listens. The ports of a login whose
    /// sockets are used up stay taken: another user's program would get what the browser is told.
    fn run(mut self) {
        loop {
            if let Some(discovery) = &mut self.discovery
                && discovery.update(&mut self.listeners).is_err()
            {
                return;
            }
            let listeners = self.listeners.iter();
            let mut waiting: Vec<_> = listeners
                .map(|(_, listener)| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN))
                .collect();
            let interval = Timespec { tv_sec: 0, tv_nsec: LOOK_INTERVAL.subsec_nanos().into() };
            if poll(&mut waiting, self.discovery.as_ref().map(|_| &interval)).is_err() {
                thread::sleep(LOOK_INTERVAL);
            }
            self.accept();
        }
    }

    /// Connects one browser of each listener.
    fn accept(&mut self) {
        for (port, listener) in &self.listeners {
            match listener.accept() {
                Ok((browser, _)) => {
                    let Some(socket) = self.sockets.pop() else {
                        if !mem::replace(&mut self.is_used_up, true) {
                            errln!(
                                "portcullis: warning: the login was reached {MAX_CONNECTIONS} times; \
                                 no program reaches it any more: start it again"
                            );
                        }
                        continue;
                    };
                    let port = *port;
                    // If the login does not listen, the browser's connection ends.
                    let _ = start(move || {
                        let _ = socket.connect(port).and_then(|login| join(browser, login));
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // There may be too few descriptors, and the connection still waits.
                Err(_) => thread::sleep(LOOK_INTERVAL),
            }
        }
    }
}

/// The discovery of the ports at which a login listens.
struct Discovery {
    tables: SocketTables,
    gateway: Channel,
    /// The ports that were found so far, and one more than are opened.
    found: BTreeSet<u16>,
}

impl Discovery {
    /// Opens the ports at which the login began to listen. They stay taken until it ends: another user's
    /// program would get what the browser is told.
    ///
    /// # Errors
    /// If the tables cannot be read, as when the sandbox has ended: nothing is open from then on.
    fn update(&mut self, listeners: &mut Vec<(u16, TcpListener)>) -> io::Result<()> {
        let ports = self.tables.ephemeral_listeners()?;
        for port in ports {
            if self.found.len() > MAX_PORTS || !self.found.insert(port) {
                continue;
            }
            if self.found.len() > MAX_PORTS {
                errln!(
                    "portcullis: warning: the login listens at more than {MAX_PORTS} ports; no \
                     further one is opened"
                );
                break;
            }
            match self.open(port) {
                Ok(opened) => {
                    errln!(
                        "portcullis: note: port {port} of the loopback interface led to the login"
                    );
                    listeners.extend(opened);
                }
                Err(error) => errln!(
                    "portcullis: warning: the browser could not reach the login at port {port}: {}",
                    error.message()
                ),
            }
        }
        Ok(())
    }

    /// Listens at the port, and has that recorded before anything is accepted.
    fn open(&self, port: u16) -> Result<Vec<(u16, TcpListener)>, Failure> {
        const DOING: &str = "cannot record it";
        let listeners = listen(port).or_fail("cannot listen there on this machine")?;
        let (answer, theirs) = Channel::pair().or_fail(DOING)?;
        self.gateway.send(&GatewayOrder::Callback { port }, &[theirs.as_fd()]).or_fail(DOING)?;
        drop(theirs);
        let ((), _) = answer.receive_within(RECORD_TIMEOUT).or_fail(DOING)?;
        Ok(listeners)
    }
}

/// Copies between two connections, each way until its end.
fn join(browser: TcpStream, login: TcpStream) -> io::Result<()> {
    let (browser_too, login_too) = (browser.try_clone()?, login.try_clone()?);
    start(move || copy(browser, login))?;
    copy(login_too, browser_too);
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // An error ends the copy, as the end of the input does.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn start(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(work).map(drop)
}
