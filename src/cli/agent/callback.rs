//! Connections of the operator's browser to a login in the sandbox (`--callback`).
//!
//! A login often ends with a redirection of the browser to a port of this machine's loopback
//! interface, at which the login listens. In a sandbox that is another interface. So this process
//! listens at the same port outside, and connects a socket of the sandbox's network for each
//! connection. Bytes are copied, not parsed.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use crate::{
    app::failure::{Context as _, Exit, Failure},
    sandbox::{Network, UnconnectedSocket},
};

/// Maximum of connections to one login. A browser makes one for each page, and a few more.
pub(super) const MAX_CONNECTIONS: usize = 32;

/// A port of this machine's loopback interface that leads to a login.
pub(super) struct Callback {
    port: u16,
    listeners: Vec<TcpListener>,
}

impl Callback {
    /// Listens, before anything is started.
    ///
    /// # Errors
    /// If the port is taken, or the sandbox has the host's `network`.
    pub(super) fn listen(port: u16, network: &Network) -> Result<Self, Failure> {
        if *network != Network::None {
            return Err(Failure::new("`--callback` is for a login with a network of its own")
                .exit(Exit::Usage)
                .help("with `--agent-network`, name the port with `--agent-listen`"));
        }
        let taken = || format!("cannot listen at port {port} of the loopback interface");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).or_fail(taken())?;
        let mut listeners = vec![listener];
        // Browsers try this address first. Nobody else may answer there.
        match TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(error).or_fail(taken());
            }
            // This machine has no IPv6.
            Err(_) => {}
        }
        Ok(Self { port, listeners })
    }

    /// Returns the port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Connects browsers to the login, in threads that end with this process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn serve(self, sockets: Vec<UnconnectedSocket>) -> Result<(), Failure> {
        let Self { port, listeners } = self;
        let sockets = Arc::new(Mutex::new(sockets));
        for listener in listeners {
            let sockets = Arc::clone(&sockets);
            start(move || {
                for browser in listener.incoming().flatten() {
                    let socket = sockets.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some(socket) = socket else { break };
                    // If the login does not listen, the browser's connection ends.
                    let _ = socket.connect(port).and_then(|login| join(browser, login));
                }
            })
            .or_fail("cannot start a thread")?;
        }
        Ok(())
    }
}

/// Copies between two connections, each way until its end.
fn join(browser: TcpStream, login: TcpStream) -> io::Result<()> {
    let (browser_too, login_too) = (browser.try_clone()?, login.try_clone()?);
    start(move || copy(browser, login))?;
    start(move || copy(login_too, browser_too))
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // An error ends the copy, as the end of the input does.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn start(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(work).map(drop)
}
