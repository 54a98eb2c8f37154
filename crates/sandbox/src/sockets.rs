//! Sockets of a sandbox's network namespace that processes outside of it use.
//!
//! A socket stays in the network namespace in which it was made. The init makes these and hands
//! them out; none is left in the sandbox.

use std::{
    io,
    net::{Ipv4Addr, TcpStream},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketAddrV4, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use serde::{Deserialize, Serialize};

/// The port of a sandbox's proxy, that of other proxies.
pub(super) const PROXY_PORT: u16 = 3128;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// The sockets that a sandbox gets.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SocketOrder {
    /// True if it has a proxy.
    pub(super) proxy: bool,
    /// The ports of further sockets that listen.
    pub(super) listeners: Vec<u16>,
    /// The number of sockets that are not connected.
    pub(super) unconnected: usize,
}

impl SocketOrder {
    /// Makes them in this network namespace, in the order in which [`Self::split`] expects them.
    pub(super) fn make(&self) -> io::Result<Vec<OwnedFd>> {
        let ports = self.proxy.then_some(PROXY_PORT);
        let ports = ports.into_iter().chain(self.listeners.iter().copied());
        let unconnected = (0..self.unconnected).map(|_| tcp_socket());
        ports.map(listener).chain(unconnected).collect()
    }

    /// Splits them off from the end of `descriptors`.
    pub(super) fn split(&self, descriptors: &mut Vec<OwnedFd>) -> Sockets {
        let mut last = |count| descriptors.split_off(descriptors.len().saturating_sub(count));
        let unconnected = last(self.unconnected).into_iter().map(UnconnectedSocket).collect();
        let listeners = last(self.listeners.len());
        Sockets { proxy: last(self.proxy.into()).pop(), listeners, unconnected }
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
    /// Those that are not connected.
    pub unconnected: Vec<UnconnectedSocket>,
}

/// A TCP socket of the sandbox's network that is not connected yet.
#[derive(Debug)]
pub struct UnconnectedSocket(OwnedFd);

impl UnconnectedSocket {
    /// Connects to a program that listens at `port` of the sandbox's 127.0.0.1.
    ///
    /// # Errors
    /// If none listens.
    pub fn connect(self, port: u16) -> io::Result<TcpStream> {
        connect(&self.0, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        Ok(self.0.into())
    }
}

/// Listens at a port of the loopback address of this network namespace.
fn listener(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp_socket()?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn tcp_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
