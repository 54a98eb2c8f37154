//! Sockets on which the broker listens that the self-test tries to reach and must
//! not.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    os::fd::OwnedFd,
    path::PathBuf,
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use super::{messages::SelfTestTargets, random::random_hex, spec::Network};

/// Open sockets, closed on drop.
#[derive(Debug)]
pub(super) struct TargetSockets {
    self_test_targets: SelfTestTargets,
    _listening: (OwnedFd, OwnedFd, Option<TcpListener>),
}

impl TargetSockets {
    /// Opens a UNIX socket, an abstract one, and a TCP port that `network`
    /// does not name.
    pub(super) fn set(network: &Network) -> io::Result<Self> {
        let name = format!("portcullis-{}", random_hex()?);
        // A long path does not fit a socket address.
        let socket = PathBuf::from("/tmp").join(format!(".{name}"));
        let path = unix()?;
        bind(&path, &SocketAddrUnix::new(&socket)?)?;
        listen(&path, 8)?;
        // The user that root's agent becomes may connect; nobody accepts.
        let _ = rustix::fs::chmod(&socket, rustix::fs::Mode::from_raw_mode(0o666));
        let abstract_one = unix()?;
        bind(&abstract_one, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&abstract_one, 8)?;
        let tcp = port(network)?;
        let port = tcp.local_addr()?.port();
        let broker = rustix::process::getpid().as_raw_nonzero().get();
        Ok(Self {
            self_test_targets: SelfTestTargets { broker, socket, abstract_name: name, port },
            _listening: (path, abstract_one, Some(tcp)),
        })
    }

    pub(super) fn self_test_targets(&self) -> SelfTestTargets {
        self.self_test_targets.clone()
    }
}

impl Drop for TargetSockets {
    fn drop(&mut self) {
        // Otherwise an empty file stays in `/tmp`.
        let _ = rustix::fs::unlink(&self.self_test_targets.socket);
    }
}

fn port(network: &Network) -> io::Result<TcpListener> {
    // The kernel picks another port each time.
    for _ in 0..16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let named = matches!(network, Network::Connect { ports, listen, .. }
            if ports.contains(&port) || listen.contains(&port));
        if !named {
            return Ok(listener);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

fn unix() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
