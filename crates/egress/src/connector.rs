//! The connector: resolves names and connects to addresses, as the gateway process says.
//!
//! It decides nothing and parses nothing that a program sent.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use crate::{
    messages::{Candidate, FromConnector, ToConnector},
    packet,
    routes::Routes,
};

/// The timeout of one connection attempt.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum of addresses that a look-up returns.
const MAX_ADDRESSES: usize = 16;

/// Runs the connector until the gateway process closes `links`. Each link has a thread of its own,
/// because the system's resolver blocks.
///
/// # Errors
/// When a thread cannot be started, or a link fails.
pub fn run_connector(links: Vec<OwnedFd>, routes: Routes) -> io::Result<()> {
    let routes = Arc::new(routes);
    let serve = |link: OwnedFd| {
        let routes = Arc::clone(&routes);
        thread::Builder::new().name("connect".to_owned()).spawn(move || serve(&link, &routes))
    };
    let threads = links.into_iter().map(serve).collect::<io::Result<Vec<_>>>()?;
    for thread in threads {
        thread.join().map_err(|_| io::ErrorKind::Other)??;
    }
    Ok(())
}

/// Carries out the orders of one link, one after the other.
fn serve(link: &OwnedFd, routes: &Routes) -> io::Result<()> {
    while let Some((order, _)) = packet::receive(link, RecvFlags::empty())? {
        let (reply, socket) = obey(&order, routes);
        packet::send(link, &reply, socket.as_ref().map(TcpStream::as_fd), SendFlags::empty())?;
    }
    Ok(())
}

fn obey(order: &ToConnector, routes: &Routes) -> (FromConnector, Option<TcpStream>) {
    let done = match order {
        ToConnector::Resolve { host } => {
            resolve(host, routes).map(|addresses| (FromConnector::Resolved { addresses }, None))
        }
        ToConnector::Dial { address } => {
            dial(*address).map(|stream| (FromConnector::Dialed, Some(stream)))
        }
    };
    done.unwrap_or_else(|error| (FromConnector::Failed { reason: error.to_string() }, None))
}

fn resolve(host: &str, routes: &Routes) -> io::Result<Vec<Candidate>> {
    let found: Vec<_> = match host.parse() {
        Ok(address) => vec![address],
        Err(_) => (host, 0).to_socket_addrs()?.map(|found| found.ip()).collect(),
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
            addresses.push(address);
        }
    }
    let candidate =
        |(address, is_on_link)| Ok(Candidate { address, is_local: is_on_link || is_own(address)? });
    let on_link = routes.are_on_link(&addresses)?;
    addresses.into_iter().zip(on_link).map(candidate).collect()
}

/// Returns true if this machine has the address. A connected datagram socket sends nothing, but the
/// kernel gives it the address from which it would send.
///
/// # Errors
/// When the kernel does not say.
fn is_own(address: IpAddr) -> io::Result<bool> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Any port but 0 will do.
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    match source {
        Ok(source) => Ok(source.ip() == address),
        Err(error) if is_without_route(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the error says that this machine has no way to an address, so that it is not its
/// own. Another one, such as that of a process without descriptors, says nothing of the address.
fn is_without_route(error: &io::Error) -> bool {
    use Errno as E;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(E::ACCESS | E::ADDRNOTAVAIL | E::AFNOSUPPORT | E::INVAL | E::PERM))
        || matches!(errno, Some(E::HOSTUNREACH | E::NETUNREACH))
}

fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, DIAL_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of this machine that could not be looked at counted as one of another machine.
    #[test]
    fn an_address_that_cannot_be_looked_at_is_an_error() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()).unwrap());
        assert!(!is_own(Ipv4Addr::BROADCAST.into()).unwrap());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(!is_without_route(&errno.into()), "{errno}");
        }
    }
}
