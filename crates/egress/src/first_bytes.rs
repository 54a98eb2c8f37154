//! The first bytes of a program in a tunnel: they must be meant for the host that was asked for.

use std::fmt;

use portcullis_policy::model::{Host, Quoted};

use crate::{
    client_hello::{self, ClientHello, HANDSHAKE_RECORD},
    head::{self, HeadError, MAX_HEAD, Request},
    messages::without_user,
};

/// The longest name that is repeated, in bytes: that of the longest host. Half of a longer one could
/// be half a secret.
const MAX_NAME: usize = 253;

/// A tunnel's protocol.
#[derive(Debug)]
pub(crate) enum TunnelProtocol {
    /// TLS: bytes are copied as they come.
    Tls,
    /// HTTP without TLS: one request is passed on. The number is the length of its head in bytes.
    Http(Request, usize),
}

/// A tunnel that is cut off.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CutOffTunnel {
    pub(crate) reason: CutOffReason,
    /// The host that the program named instead, for the record.
    named: Option<String>,
}

impl From<CutOffReason> for CutOffTunnel {
    fn from(reason: CutOffReason) -> Self {
        Self { reason, named: None }
    }
}

impl fmt::Display for CutOffTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, named } = self;
        match named {
            Some(name) => write!(f, "{reason}; it names {:#}", Quoted(name)),
            None => reason.fmt(f),
        }
    }
}

/// The reason why a tunnel is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutOffReason {
    /// The name in TLS is that of another host.
    OtherName,
    /// There is no name in TLS.
    NoName,
    /// The name in TLS is encrypted.
    Encrypted,
    /// The TLS handshake has another form.
    Tls,
    /// The HTTP request is refused.
    Http(HeadError),
    /// The bytes are neither TLS nor HTTP.
    Unknown,
    /// Nothing came in time.
    Slow,
}

impl CutOffReason {
    /// True if the program speaks TLS.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::OtherName | Self::NoName | Self::Encrypted | Self::Tls)
    }
}

impl fmt::Display for CutOffReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherName => "the name in TLS (SNI) is not the requested host",
            Self::NoName => "there is no name in TLS (SNI), which must be the requested host",
            Self::Encrypted => {
                "the client hides the name of the host (ECH or its GREASE): turn that off in the client, \
                 such as `network.dns.echconfig.enabled` of Firefox, `EncryptedClientHelloEnabled` of \
                 Chromium, or `--ech false` of curl"
            }
            Self::Tls => "the TLS handshake has a form that is not known",
            Self::Http(wrong) => wrong,
            Self::Unknown => "only TLS and HTTP pass; `ssh` does not",
            Self::Slow => "nothing was sent in time: only TLS and HTTP pass, where the client begins",
        })
    }
}

/// Decides on the bytes so far; `None` if they are too few.
pub(crate) fn judge(
    bytes: &[u8],
    host: &Host,
    port: u16,
) -> Result<Option<TunnelProtocol>, CutOffTunnel> {
    let cut_off = |reason, name: Option<&str>| {
        let other = name.filter(|name| Host::parse(name).as_ref() != Ok(host)).map(without_user);
        let named = other.filter(|name| name.len() <= MAX_NAME).map(str::to_owned);
        CutOffTunnel { reason, named }
    };
    match bytes.first() {
        None => Ok(None),
        Some(&HANDSHAKE_RECORD) => match client_hello::parse(bytes) {
            Ok(client_hello::ParsedHello::Incomplete) if bytes.len() <= MAX_HEAD => Ok(None),
            Ok(client_hello::ParsedHello::Complete(hello)) => {
                let checked = check(&hello, host).map(|()| Some(TunnelProtocol::Tls));
                checked.map_err(|reason| cut_off(reason, hello.server_name.as_deref()))
            }
            Ok(client_hello::ParsedHello::Incomplete) | Err(client_hello::MalformedHello) => {
                Err(CutOffReason::Tls.into())
            }
        },
        Some(byte) if byte.is_ascii_uppercase() => {
            let parsed = head::in_tunnel(bytes, host, port).map_err(|wrong| match wrong {
                head::NO_HTTP => CutOffReason::Unknown.into(),
                wrong => cut_off(CutOffReason::Http(wrong), head::named_host(bytes).as_deref()),
            })?;
            Ok(parsed.map(|(request, length)| TunnelProtocol::Http(request, length)))
        }
        Some(_) => Err(CutOffReason::Unknown.into()),
    }
}

fn check(hello: &ClientHello, host: &Host) -> Result<(), CutOffReason> {
    if hello.is_encrypted {
        return Err(CutOffReason::Encrypted);
    }
    let is_same = match (&hello.server_name, host) {
        // An address has no name (RFC 6066, 3).
        (None, Host::Address(_)) => true,
        (None, Host::Name(_)) => return Err(CutOffReason::NoName),
        (Some(name), Host::Name(_)) => Host::parse(name).is_ok_and(|name| name == *host),
        _ => false,
    };
    if is_same { Ok(()) } else { Err(CutOffReason::OtherName) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_names_the_other_host() {
        let host = Host::parse("a.example").unwrap();
        let reason = |request: &str| judge(request.as_bytes(), &host, 80).unwrap_err().to_string();
        for (request, named) in [
            ("GET / HTTP/1.1\r\nHost: b.example:81\r\n\r\n", "b.example"),
            ("GET http://b.example/x?y HTTP/1.1\r\nHost: a.example\r\n\r\n", "b.example"),
            ("CONNECT b.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", "b.example"),
            ("GET / HTTP/1.1\r\nHost: b\" x\r\n\r\n", "b\\\" x"),
            // The password was in the record.
            ("GET / HTTP/1.1\r\nHost: user:password@b.example\r\n\r\n", "b.example"),
        ] {
            let message = reason(request);
            assert!(message.ends_with(&format!("; it names \"{named}\"")), "{message}");
        }
        let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "b".repeat(9000));
        assert!(!reason(&long).contains("names"));
        assert!(!reason("GET / HTTP/1.1\r\n\r\n").contains("names"));
    }
}
