//! The connector: resolves names and connects to addresses, as the gateway process says.
//!
//! It decides nothing and parses nothing that a program sent. Each order has a thread, for the
//! system's resolver blocks; the gateway process bounds how many there are.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::net::{RecvFlags, SendFlags};

use crate::{
    messages::{Candidate, FromConnector, Id, ToConnector},
    packet,
};

/// The longest time that one address may take to answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;

/// Runs the connector until the gateway process closes `gateway`.
///
/// # Errors
/// As the system says.
pub fn run_connector(gateway: OwnedFd) -> io::Result<()> {
    let gateway = Arc::new(gateway);
    while let Some((order, _)) = packet::receive(&*gateway, RecvFlags::empty())? {
        let to = Arc::clone(&gateway);
        let id = number(&order);
        let thread = thread::Builder::new().name("connect".to_owned());
        let started = thread.spawn(move || {
            let (reply, socket) = obey(order);
            let socket = socket.as_ref().map(TcpStream::as_fd);
            // A gateway process that is gone is noticed above.
            let _ = packet::send(&*to, &reply, socket, SendFlags::empty());
        });
        if let Err(error) = started {
            let reply = FromConnector::Failed { id, why: error.to_string() };
            packet::send(&*gateway, &reply, None, SendFlags::empty())?;
        }
    }
    Ok(())
}

fn number(order: &ToConnector) -> Id {
    let (ToConnector::Resolve { id, .. } | ToConnector::Dial { id, .. }) = order;
    *id
}

fn obey(order: ToConnector) -> (FromConnector, Option<TcpStream>) {
    let id = number(&order);
    let failed = |error: io::Error| (FromConnector::Failed { id, why: error.to_string() }, None);
    match order {
        ToConnector::Resolve { host, .. } => match resolve(&host) {
            Ok(addresses) => (FromConnector::Resolved { id, addresses }, None),
            Err(error) => failed(error),
        },
        ToConnector::Dial { address, .. } => match dial(address) {
            Ok(stream) => (FromConnector::Dialed { id }, Some(stream)),
            Err(error) => failed(error),
        },
    }
}

fn resolve(host: &str) -> io::Result<Vec<Candidate>> {
    let found: Vec<_> = match host.parse() {
        Ok(address) => vec![address],
        Err(_) => (host, 0).to_socket_addrs()?.map(|found| found.ip()).collect(),
    };
    let mut addresses: Vec<Candidate> = Vec::new();
    for address in found {
        let is_new = addresses.iter().all(|known| known.address != address);
        if is_new && addresses.len() < MAX_ADDRESSES {
            addresses.push(Candidate { address, is_own: is_own(address) });
        }
    }
    Ok(addresses)
}

/// True if this machine has the address. The kernel answers it: a datagram socket that is connected
/// sends nothing, and gets the address from which it would send.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Any port but 0 will do.
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, DIAL_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
