//! Sockets of a sandbox's network namespace that processes outside of it use.
//!
//! A socket stays in the network namespace in which it was made. The init makes these and hands
//! them out; none is left in the sandbox.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    ops::RangeInclusive,
    os::fd::OwnedFd,
};

use rustix::{
    fs::{Mode, OFlags, open, openat},
    net::{
        AddressFamily, SocketAddrV4, SocketFlags, SocketType, bind, connect, listen, socket_with,
        sockopt,
    },
};
use serde::{Deserialize, Serialize};

/// The port of a sandbox's proxy, that of other proxies.
pub(super) const PROXY_PORT: u16 = 3128;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// The ports from which the kernel picks one for a program that names none. Every network namespace
/// begins with these, and no program of the sandbox can change that.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;
/// Longest part of a table of sockets that is read, in bytes. Those that listen come first.
const MAX_TABLE: u64 = 256 * 1024;
/// The state of a socket that listens, in such a table (`TCP_LISTEN`).
const LISTENING: &str = "0A";

/// The sockets that a sandbox gets.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SocketOrder {
    /// True if it has a proxy.
    pub(super) proxy: bool,
    /// The ports of further sockets that listen.
    pub(super) listeners: Vec<u16>,
    /// The number of sockets that are not connected.
    pub(super) unconnected: usize,
    /// True if the tables of its sockets are handed out.
    pub(super) tables: bool,
}

impl SocketOrder {
    /// Makes them in this network namespace, in the order in which [`Self::split`] expects them.
    pub(super) fn make(&self) -> io::Result<Vec<OwnedFd>> {
        let ports = self.proxy.then_some(PROXY_PORT);
        let ports = ports.into_iter().chain(self.listeners.iter().copied());
        let unconnected = (0..self.unconnected).map(|_| unconnected());
        let tables = self.tables.then(|| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(open("/proc/self/net", flags, Mode::empty())?)
        });
        ports.map(listener).chain(unconnected).chain(tables).collect()
    }

    /// Splits them off from the end of `descriptors`.
    pub(super) fn split(&self, descriptors: &mut Vec<OwnedFd>) -> Sockets {
        let mut last = |count| descriptors.split_off(descriptors.len().saturating_sub(count));
        let tables = last(self.tables.into()).pop().map(SocketTables);
        let unconnected = last(self.unconnected).into_iter().map(UnconnectedSocket).collect();
        let listeners = last(self.listeners.len());
        Sockets { proxy: last(self.proxy.into()).pop(), listeners, unconnected, tables }
    }
}

/// The sockets of a sandbox, to be taken and used.
#[derive(Debug, Default)]
pub struct Sockets {
    /// The listening socket of its proxy, if it has one. If it is not taken, connections are
    /// refused.
    pub proxy: Option<OwnedFd>,
    /// Its further listening sockets, in their order, likewise.
    pub listeners: Vec<OwnedFd>,
    /// Its sockets that are not connected.
    pub unconnected: Vec<UnconnectedSocket>,
    /// The tables of all its sockets.
    pub tables: Option<SocketTables>,
}

/// A TCP socket of the sandbox's network that is not connected yet.
#[derive(Debug)]
pub struct UnconnectedSocket(OwnedFd);

impl UnconnectedSocket {
    /// Connects to a program that listens at `port` of the sandbox's loopback interface.
    ///
    /// # Errors
    /// If none listens.
    pub fn connect(self, port: u16) -> io::Result<TcpStream> {
        let to = |address| connect(&self.0, &SocketAddr::new(address, port));
        if sockopt::socket_domain(&self.0)? == AddressFamily::INET6 {
            to(Ipv6Addr::LOCALHOST.into())
                .or_else(|_| to(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()))?;
        } else {
            to(Ipv4Addr::LOCALHOST.into())?;
        }
        Ok(self.0.into())
    }
}

/// The kernel's tables of the TCP sockets in the sandbox's network (proc_net(5)), as long as its
/// init lives.
#[derive(Debug)]
pub struct SocketTables(OwnedFd);

impl SocketTables {
    /// Returns the ports at which programs listen, of those from which the kernel picks.
    ///
    /// # Errors
    /// If the tables cannot be read, as when the sandbox has ended.
    pub fn ephemeral_listeners(&self) -> io::Result<BTreeSet<u16>> {
        let mut ports: BTreeSet<_> = listening(&self.read("tcp")?).collect();
        match self.read("tcp6") {
            Ok(table) => ports.extend(listening(&table)),
            // This kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        ports.retain(|port| EPHEMERAL.contains(port));
        Ok(ports)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let table = openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        File::from(table).take(MAX_TABLE).read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Returns the ports at which the sockets of a table listen.
fn listening(table: &str) -> impl Iterator<Item = u16> {
    // The number of the line, the local and the remote address, the state.
    let port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (_, port) = fields.next()?.rsplit_once(':')?;
        let is_listening = fields.nth(1)? == LISTENING;
        u16::from_str_radix(port, 16).ok().filter(|_| is_listening)
    };
    table.lines().filter_map(port)
}

/// Listens at a port of the loopback address of this network namespace.
fn listener(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp_socket(AddressFamily::INET)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Makes a socket that connects to addresses of both families, where the kernel has IPv6.
fn unconnected() -> io::Result<OwnedFd> {
    match tcp_socket(AddressFamily::INET6) {
        Ok(socket) => {
            sockopt::set_ipv6_v6only(&socket, false)?;
            Ok(socket)
        }
        Err(_) => tcp_socket(AddressFamily::INET),
    }
}

fn tcp_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_told_from_others() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
            0: 0100007F:A0C3 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n   \
            1: 0100007F:A0C4 0100007F:A0C3 01 00000000:00000000 00:00000000 00000000\n   \
            2: 00000000000000000000000001000000:0C38 00000000000000000000000000000000:0000 0A\n   \
            3: 0100007F:A0";
        assert_eq!(listening(table).collect::<Vec<_>>(), [0xa0c3, 3128]);
    }
}
