//! The first bytes of a program in a tunnel: they must be meant for the host that was asked for.

use std::fmt;

use portcullis_policy::model::Host;

use crate::{
    client_hello::{self, ClientHello, HANDSHAKE_RECORD},
    head::{self, MAX_HEAD, Request, Wrong},
};

/// A tunnel's protocol.
#[derive(Debug)]
pub(crate) enum First {
    /// TLS: bytes are copied as they come.
    Tls,
    /// HTTP in the clear: one request is passed on, whose head had so many bytes.
    Http(Request, usize),
}

/// The reason why a tunnel is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The name in TLS is that of another host, or missing.
    OtherName,
    /// The name in TLS is encrypted.
    Encrypted,
    /// The TLS handshake has another form.
    Tls,
    /// The HTTP request is refused.
    Http(Wrong),
    /// It is neither of them.
    Unknown,
    /// Nothing came in time.
    Slow,
}

impl Cut {
    /// True if the program speaks TLS.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::OtherName | Self::Encrypted | Self::Tls)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherName => "the name in TLS (SNI) is not the host that was asked for",
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

/// Judges what came so far; `None` if that is too little.
pub(crate) fn judge(bytes: &[u8], host: &Host, port: u16) -> Result<Option<First>, Cut> {
    match bytes.first() {
        None => Ok(None),
        Some(&HANDSHAKE_RECORD) => match client_hello::parse(bytes) {
            Ok(client_hello::Parsed::Incomplete) if bytes.len() <= MAX_HEAD => Ok(None),
            Ok(client_hello::Parsed::Complete(hello)) => {
                check(&hello, host).map(|()| Some(First::Tls))
            }
            Ok(client_hello::Parsed::Incomplete) | Err(client_hello::Malformed) => Err(Cut::Tls),
        },
        Some(byte) if byte.is_ascii_uppercase() => {
            let parsed = head::in_tunnel(bytes, host, port).map_err(|wrong| match wrong {
                head::NO_HTTP => Cut::Unknown,
                wrong => Cut::Http(wrong),
            })?;
            Ok(parsed.map(|(request, length)| First::Http(request, length)))
        }
        Some(_) => Err(Cut::Unknown),
    }
}

fn check(hello: &ClientHello, host: &Host) -> Result<(), Cut> {
    if hello.is_encrypted {
        return Err(Cut::Encrypted);
    }
    let is_same = match (&hello.server_name, host) {
        // An address has no name (RFC 6066, 3).
        (None, Host::Address(_)) => true,
        (Some(name), Host::Name(_)) => Host::parse(name).is_ok_and(|name| name == *host),
        _ => false,
    };
    if is_same { Ok(()) } else { Err(Cut::OtherName) }
}
