//! The origin of a connection.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Over TCP, from this address.
    Address(IpAddr),
    /// Over a UNIX socket, from a process of this user.
    User(u32),
}

impl Peer {
    /// Returns the peer whose failures are counted together: an IPv6 network of 64 bits
    /// belongs to one party.
    pub(super) fn network(&self) -> Self {
        match self {
            Self::Address(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
                Some(address) => Self::Address(address.into()),
                None => {
                    let network = address.to_bits() >> 64 << 64;
                    Self::Address(Ipv6Addr::from_bits(network).into())
                }
            },
            other => other.clone(),
        }
    }

    /// Returns the wider network counted when the table has no room for
    /// [`network`](Self::network): 48 bits in IPv6 and 16 in IPv4.
    pub(super) fn wider_network(&self) -> Self {
        let network: IpAddr = match self.network() {
            Self::Address(IpAddr::V6(address)) => {
                Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into()
            }
            Self::Address(IpAddr::V4(address)) => {
                Ipv4Addr::from_bits(address.to_bits() >> 16 << 16).into()
            }
            user @ Self::User(_) => return user,
        };
        Self::Address(network)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(uid) => write!(f, "user {uid}"),
        }
    }
}
