//! Patterns of hosts in rules: `example.com`, `*.example.com`, `10.0.0.0/8`, `*`.

use core::net::IpAddr;
use std::fmt;

use ipnet::IpNet;

use super::special;
use crate::model::{Host, HostError, HostName};

/// The shortest prefix of a network that names addresses: that of the largest networks for private
/// use, 10.0.0.0/8 and fc00::/7.
const NAMING_IPV4: u8 = 8;
const NAMING_IPV6: u8 = 7;

/// A pattern of hosts in a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// `*`: all names and all addresses.
    Any,
    /// `*.NAME`: all names beneath it, at any depth.
    Beneath(HostName),
    /// One name.
    Name(HostName),
    /// One address, or a network of them.
    Network(IpNet),
}

/// The reason why a text is no pattern of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    /// The text is no host.
    #[error("{0}")]
    Host(#[from] HostError),
    /// A `*` stands elsewhere than in front of a name.
    #[error("a `*` stands alone or in front of a name, as in `*.example.com`")]
    Wildcard,
    /// The text is no network.
    #[error("a network is an address, a slash and the bits of its prefix, as in `10.0.0.0/8`")]
    Network,
    /// The address of a network has bits beyond its prefix.
    #[error("the address has bits beyond the prefix of its network")]
    HostBits,
    /// The text has a port.
    #[error("ports are named in `ports`")]
    Port,
}

impl HostPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// When the text is no pattern.
    pub fn parse(text: &str) -> Result<Self, HostPatternError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(above) = text.strip_prefix("*.")
            && !above.contains('*')
        {
            return Ok(Self::Beneath(HostName::parse(above)?));
        }
        if text.contains('*') {
            return Err(HostPatternError::Wildcard);
        }
        if let Some((address, prefix)) = text.split_once('/') {
            return network(address, prefix);
        }
        if text.bytes().filter(|byte| *byte == b':').count() == 1 {
            return Err(HostPatternError::Port);
        }
        Ok(match Host::parse(text)? {
            Host::Name(name) => Self::Name(name),
            Host::Address(address) => Self::Network(address.into()),
        })
    }

    /// True if the pattern matches the host.
    pub fn holds(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Beneath(above), Host::Name(name)) => name.is_beneath(above),
            (Self::Name(own), Host::Name(name)) => own == name,
            (Self::Network(network), Host::Address(address)) => network.contains(address),
            (Self::Beneath(_) | Self::Name(_), Host::Address(_))
            | (Self::Network(_), Host::Name(_)) => false,
        }
    }

    /// True if the pattern is a network that contains the address.
    pub fn holds_address(&self, address: IpAddr) -> bool {
        matches!(self, Self::Network(network) if network.contains(&address))
    }

    /// True if the pattern is a network that contains the address and is small enough to name it.
    pub fn names_address(&self, address: IpAddr) -> bool {
        let is_small = |network: &IpNet| match network {
            IpNet::V4(network) => network.prefix_len() >= NAMING_IPV4,
            IpNet::V6(network) => network.prefix_len() >= NAMING_IPV6,
        };
        matches!(self, Self::Network(network) if is_small(network) && network.contains(&address))
    }

    /// Returns the address, if the pattern is a single one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                Some(network.addr())
            }
            _ => None,
        }
    }

    /// Returns the kind of the addresses that the pattern names, if they are not globally routable.
    pub fn special(&self) -> Option<&'static str> {
        match self {
            Self::Network(network) if self.names_address(network.addr()) => {
                special::kind(network.addr())
            }
            _ => None,
        }
    }

    /// True if the pattern matches every host that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Beneath(above), Self::Beneath(name)) => name == above || name.is_beneath(above),
            (Self::Beneath(above), Self::Name(name)) => name.is_beneath(above),
            (Self::Name(own), Self::Name(name)) => own == name,
            (Self::Network(own), Self::Network(network)) => own.contains(network),
            _ => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.pad("*"),
            Self::Beneath(above) => write!(f, "*.{}", above.as_str()),
            Self::Name(name) => f.pad(name.as_str()),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            Self::Network(network) => network.fmt(f),
        }
    }
}

fn network(address: &str, prefix: &str) -> Result<HostPattern, HostPatternError> {
    let Host::Address(address) = Host::parse(address)? else {
        return Err(HostPatternError::Network);
    };
    let is_decimal = prefix == "0" || !prefix.starts_with(['0', '+']);
    let prefix = prefix.parse().ok().filter(|_| is_decimal).ok_or(HostPatternError::Network)?;
    let network = IpNet::new(address, prefix).map_err(|_| HostPatternError::Network)?;
    if network.trunc() != network {
        return Err(HostPatternError::HostBits);
    }
    Ok(HostPattern::Network(network))
}
