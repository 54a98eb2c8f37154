//! The messages between the processes. Plain data.

use std::net::{IpAddr, SocketAddr};

use portcullis_core::EndReason;
use portcullis_policy::model::complete_words;
use serde::{Deserialize, Serialize};

use crate::refused::Refused;

/// A connection's number, which the egress process chooses.
pub(crate) type Id = u64;

/// The longest host, in bytes: that of a name in DNS (RFC 1035, 2.3.4).
pub(crate) const MAX_HOST: usize = 255;

/// The longest text about an end or a refusal, in bytes: a packet has room for it, also where each
/// of its characters is escaped.
pub(crate) const MAX_DETAIL: usize = 1000;

/// Returns an authority without its user information, which may be a password.
pub(crate) fn without_user(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or_default()
}

/// Returns the beginning of a text: `most` bytes, or a few less so that no character is cut.
pub(crate) fn beginning(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

/// A message of the egress process to the gateway process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromProxy {
    /// A program asks for a connection.
    Connect {
        id: Id,
        /// The host as the program wrote it. One that is longer than [`MAX_HOST`] is cut to one
        /// byte more than that, with which it is no host.
        host: String,
        port: u16,
    },
    /// The program is gone that asked for a connection, which has no reply yet.
    Withdraw { id: Id },
    /// Bytes are about to be sent to the server; [`ToProxy::Counted`] is the reply.
    Sending { id: Id, bytes: u64 },
    /// An open connection is closed on both sides.
    Closed {
        id: Id,
        /// The number of bytes from the server. The gateway process has counted those to it.
        bytes_in: u64,
        /// The number of requests that were sent, if they were counted.
        requests: Option<u64>,
        /// The request without a complete reply, if requests are parsed.
        request: NamedRequest,
        reason: Reason,
    },
    /// A program sent a request that is not passed on; [`ToProxy::Refused`] is the reply, once that
    /// is recorded.
    Refuse { id: Id, request: RefusedRequest },
}

/// A request that is not passed on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RefusedRequest {
    /// The status of the reply.
    pub(crate) status: u16,
    /// The reason; has [`MAX_DETAIL`] bytes at most.
    pub(crate) reason: String,
    /// The host and port as the program wrote them; at most [`MAX_HOST`] bytes. A credential's
    /// process names none.
    pub(crate) target: String,
    /// True if the request is for that host, and names another one besides.
    pub(crate) has_other_host: bool,
    /// Its method and path, as far as they are known.
    pub(crate) named: NamedRequest,
}

/// The names of a request in records: its method, and its path without the query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedRequest {
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
}

impl NamedRequest {
    /// Returns the names of a request; each has [`MAX_DETAIL`] bytes at most, which is more than its
    /// record: the gateway process searches it for secrets before it is cut.
    #[cfg(feature = "tls")]
    pub(crate) fn new(method: &str, path: &str) -> Self {
        let shown = |text| Some(complete_words(text, MAX_DETAIL)).filter(|text| !text.is_empty());
        let [method, path] = [method, path].map(|text| shown(text).map(str::to_owned));
        Self { method, path }
    }
}

/// The reason why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reason {
    pub(crate) end: End,
    /// A text about the end; may be empty, and has [`MAX_DETAIL`] bytes at most.
    pub(crate) detail: String,
}

/// The kind of an end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// A side closed the connection in order.
    Closed,
    /// The connection was cut off for what a side sent, such as the name of another host.
    Refused,
    /// The server cannot be used: it is not the one that its certificate is to prove.
    Failed,
    /// A side sent nothing in time.
    Timeout,
    /// A side broke the connection off.
    Reset,
    /// The session ended.
    Ended,
    /// The gateway process sent [`ToProxy::Close`].
    Denied,
}

impl From<End> for EndReason {
    fn from(end: End) -> Self {
        match end {
            End::Closed => Self::Closed,
            End::Refused => Self::Refused,
            End::Failed => Self::Failed,
            End::Timeout => Self::Timeout,
            End::Reset => Self::Reset,
            End::Ended => Self::Ended,
            End::Denied => Self::Denied,
        }
    }
}

impl Reason {
    pub(crate) fn new(end: End, detail: impl AsRef<str>) -> Self {
        Self { end, detail: complete_words(detail.as_ref(), MAX_DETAIL).to_owned() }
    }
}

/// A message of the gateway process to the egress process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToProxy {
    /// The connection is open; its socket is attached.
    Opened { id: Id },
    /// No connection is opened.
    Refused { id: Id, refused: Refused },
    /// The bytes are counted, and may be sent.
    Counted { id: Id },
    /// An open connection must be closed at once: it may not go on.
    Close { id: Id },
    /// Every connection must be closed; then the process ends.
    Stop,
}

/// A message of the gateway process to the connector.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToConnector {
    /// Look up the addresses of a host, which is a name or an address.
    Resolve { host: String },
    /// Connect to an address.
    Dial { address: SocketAddr },
}

/// A message of the connector to the gateway process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromConnector {
    /// The addresses of a host.
    Resolved { addresses: Vec<Candidate> },
    /// A connection is established; its socket is attached.
    Dialed,
    /// The order failed, with the system's message.
    Failed { reason: String },
}

/// An address of a host.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) address: IpAddr,
    /// True if this machine, or a network that it is on, has the address.
    pub(crate) is_local: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of a secret with a slash remained, which no rule finds.
    #[cfg(feature = "tls")]
    #[test]
    fn a_path_was_cut_before_it_was_searched_for_secrets() {
        let path = format!("{}/secret/secret/x", "/ab".repeat(82));
        assert_eq!(NamedRequest::new("GET", &path).path, Some(path));
    }

    /// No rule finds half a secret.
    #[test]
    fn a_long_text_is_cut_between_words() {
        let text = |before: usize| format!("{} {}", "é ".repeat(before), "secret".repeat(20));
        for before in 290..350 {
            let Reason { detail, .. } = Reason::new(End::Refused, text(before));
            assert!(detail.len() <= MAX_DETAIL && text(before).starts_with(&detail), "{detail}");
            assert!(!detail.contains('s') || detail == text(before), "{detail}");
        }
    }
}
