//! Hosts and ports of connections, each in one canonical form.
//!
//! Programs disagree on hosts: some take `0x7f.1` for an address, some look up the text before an
//! `@`. A text that two of them could understand differently is refused here.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

/// Maximum length of a name in bytes, without a dot at its end (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;
/// Maximum length of a label in bytes.
const MAX_LABEL: usize = 63;
/// Maximum length of a text that is parsed: a name, a colon and a port.
const MAX_TEXT: usize = MAX_NAME + 6;

/// A host: a name in lower case, or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The name.
    Name(HostName),
    /// The address; IPv4 is never written as IPv6.
    Address(IpAddr),
}

/// The name of a host: labels of ASCII letters, digits and hyphens in lower case, the last of which
/// is not a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Box<str>);

/// Reasons why a text is not a host, or not a host and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The text is empty.
    #[error("the host is empty")]
    Empty,
    /// The name or one of its labels is too long.
    #[error("a name has at most 253 characters, and 63 between two dots")]
    TooLong,
    /// The name has an invalid character.
    #[error("a name has letters, digits and hyphens, and dots between them")]
    Character,
    /// The name is not ASCII.
    #[error("the name is not ASCII: write its `xn--` form")]
    NotAscii,
    /// A label is empty: a dot at an end, or two in a row.
    #[error("a dot stands at an end of the name, or two stand in a row")]
    EmptyLabel,
    /// A label begins or ends with a hyphen.
    #[error("a part of the name begins or ends with a hyphen")]
    Hyphen,
    /// A label with `xn--` cannot be decoded.
    #[error("a part of the name begins with `xn--` and cannot be decoded")]
    ALabel,
    /// Some programs take the number for an IPv4 address.
    #[error("an IPv4 address has four decimal numbers without zeros in front")]
    Ipv4,
    /// The text begins like an IPv6 address.
    #[error("this is not an IPv6 address; a zone (`%`) cannot be named")]
    Ipv6,
    /// An IPv4 address is written as IPv6.
    #[error("this is an IPv4 address written as IPv6: write the IPv4 address")]
    Mapped,
    /// The port is missing or invalid.
    #[error("expected HOST:PORT with a port from 1 to 65535, and brackets around an IPv6 address")]
    Port,
}

impl Host {
    /// Parses a name, an IPv4 address, or an IPv6 address without brackets.
    ///
    /// # Errors
    /// If the text is not exactly one of them.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.contains(':') {
            let address = text.parse::<Ipv6Addr>().map_err(|_| HostError::Ipv6)?;
            return match address.to_ipv4_mapped() {
                Some(_) => Err(HostError::Mapped),
                None => Ok(Self::Address(address.into())),
            };
        }
        if ends_in_number(text) {
            return match text.parse::<Ipv4Addr>() {
                Ok(address) => Ok(Self::Address(address.into())),
                Err(_) => Err(HostError::Ipv4),
            };
        }
        HostName::parse(text).map(Self::Name)
    }

    /// Returns the name, if it is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name.as_str()),
            Self::Address(_) => None,
        }
    }
}

impl HostName {
    /// Parses a name.
    ///
    /// # Errors
    /// If the text is not a valid name.
    pub(crate) fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if !text.is_ascii() {
            return Err(HostError::NotAscii);
        }
        if text.len() > MAX_NAME {
            return Err(HostError::TooLong);
        }
        let name = text.to_ascii_lowercase();
        name.split('.').try_for_each(check_label)?;
        if ends_in_number(&name) { Err(HostError::Ipv4) } else { Ok(Self(name.into())) }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the name is beneath the domain `above`, at any depth.
    pub(crate) fn is_beneath(&self, above: &Self) -> bool {
        self.0.strip_suffix(&*above.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

fn check_label(label: &str) -> Result<(), HostError> {
    if label.is_empty() {
        return Err(HostError::EmptyLabel);
    }
    if label.len() > MAX_LABEL {
        return Err(HostError::TooLong);
    }
    if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(HostError::Character);
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(if label.starts_with("xn--") { HostError::ALabel } else { HostError::Hyphen });
    }
    Ok(())
}

/// True if a resolver may take the text for an IPv4 address: its last part is a number, as
/// `inet_aton(3)` and the URL standard parse it.
fn ends_in_number(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or_default();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    (!last.is_empty() && digits(last))
        || hexadecimal.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.pad(name.as_str()),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A request to connect to a port of a host over TCP.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Connect {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

impl Connect {
    /// Parses `HOST:PORT`; an IPv6 address is in brackets.
    ///
    /// # Errors
    /// If the text is not exactly that.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.len() > MAX_TEXT {
            return Err(HostError::TooLong);
        }
        let (host, port) = text.rsplit_once(':').ok_or(HostError::Port)?;
        let is_decimal = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
        let port = port.parse().ok().filter(|_| is_decimal).ok_or(HostError::Port)?;
        let inner = host.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        let host = match inner {
            Some(inner) => match Host::parse(inner.ok_or(HostError::Ipv6)?)? {
                host @ Host::Address(IpAddr::V6(_)) => host,
                _ => return Err(HostError::Ipv6),
            },
            None if host.contains(':') => return Err(HostError::Port),
            None => Host::parse(host)?,
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_has_one_form() {
        for (text, shown) in [
            ("Example.COM", "example.com"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("r3---sn-4g5e.example", "r3---sn-4g5e.example"),
            ("1e100.net", "1e100.net"),
            ("127.0.0.1", "127.0.0.1"),
            ("2001:DB8:0::1", "2001:db8::1"),
            ("0:0:0:0:0:0:0:1", "::1"),
        ] {
            assert_eq!(Host::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn whatever_programs_read_differently_is_no_host() {
        use HostError as E;
        let long_label = "a".repeat(64);
        let long_name = ["a"; 128].join(".");
        for (text, reason) in [
            ("", E::Empty),
            ("example.com.", E::EmptyLabel),
            (".example.com", E::EmptyLabel),
            ("a..b", E::EmptyLabel),
            ("user@example.com", E::Character),
            ("example.com%00.evil", E::Character),
            ("exa mple.com", E::Character),
            ("a_b.example", E::Character),
            ("*.example.com", E::Character),
            ("[::1]", E::Ipv6),
            ("bücher.example", E::NotAscii),
            ("example。com", E::NotAscii),
            ("-a.example", E::Hyphen),
            ("a-.example", E::Hyphen),
            ("xn--.example", E::ALabel),
            ("xn--a-.example", E::ALabel),
            (&long_label, E::TooLong),
            (&long_name, E::TooLong),
            ("fe80::1%eth0", E::Ipv6),
            ("fe80::1%25eth0", E::Ipv6),
            ("1::2::3", E::Ipv6),
            ("::ffff:127.0.0.1", E::Mapped),
            ("::ffff:7f00:1", E::Mapped),
        ] {
            assert_eq!(Host::parse(text), Err(reason), "{text:?}");
        }
        for text in [
            "2130706433",
            "0x7f000001",
            "0X7F000001",
            "0x",
            "017700000001",
            "127.1",
            "127.0.1",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "127.0.0.01",
            "127.0.0.1.",
            "127.0.0.0x1",
            "256.1.1.1",
            "1.2.3.4.5",
            "example.1",
            "example.0x1f",
            "00000000.0.0.0",
        ] {
            assert_eq!(Host::parse(text), Err(E::Ipv4), "{text:?}");
        }
    }

    #[test]
    fn a_port_follows_the_host_and_brackets_are_for_ipv6_alone() {
        for text in ["example.com:443", "127.0.0.1:1", "[::1]:65535", "[2001:db8::1]:22"] {
            assert_eq!(Connect::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:+1",
            "example.com:0443",
            "example.com:443:443",
            "::1:443",
            "[::1]",
            "[::1]443",
            "[::1:443",
            "::1]:443",
            "[127.0.0.1]:443",
            "[example.com]:443",
            "[::ffff:127.0.0.1]:443",
            "host:443@evil.example",
            "user:443@evil.example:443",
            " a:1",
            "a:1 ",
            "a :1",
            "[]:1",
        ] {
            assert!(Connect::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_parsed_is_parsed_again_to_the_same(text in "[0-9a-fA-FxX:.%@\\[\\]-]{1,24}(:[0-9]{1,5})?") {
            if let Ok(connect) = Connect::parse(&text) {
                prop_assert_eq!(Connect::parse(&connect.to_string()), Ok(connect.clone()));
            }
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
        }
    }
}
