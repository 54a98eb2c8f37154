//! Ends of connections, as records have them.

use portcullis_audit::Draft;

use super::Gateway;

/// The maximum of characters of an end's detail in a record.
const MAX_DETAIL: usize = 500;

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionEnd<'a> {
    /// Bytes that came from the host, if their number is known.
    pub bytes_in: Option<u64>,
    /// The reason of the end.
    pub reason: EndReason,
    /// A text about the reason, for the record; may contain bytes that a peer sent.
    pub detail: Option<&'a str>,
    /// The number of requests that were sent, if they were counted.
    pub requests: Option<u64>,
    /// The method of the request without a complete reply, if requests are parsed.
    pub method: Option<&'a str>,
    /// Its path, without the query.
    pub path: Option<&'a str>,
}

impl ConnectionEnd<'_> {
    /// Returns the end of a connection that carried nothing.
    pub fn of(reason: EndReason) -> Self {
        Self { bytes_in: Some(0), reason, detail: None, requests: None, method: None, path: None }
    }

    /// Returns the draft of its record, with the bytes that were sent to the host and the time that
    /// the connection took.
    pub(super) fn draft(&self, gateway: &Gateway, bytes_out: u64, milliseconds: u64) -> Draft {
        let counts = [
            ("bytesIn", self.bytes_in),
            ("bytesOut", Some(bytes_out)),
            ("milliseconds", Some(milliseconds)),
            ("requests", self.requests),
        ];
        let counts = counts.into_iter().filter_map(|(name, count)| Some((name, count?)));
        Draft {
            counts: Some(counts.map(|(name, count)| (name.to_owned(), count)).collect()),
            result: Some(self.reason.as_str().to_owned()),
            reason: self.detail.and_then(|detail| recorded(gateway, detail)),
            ..Draft::default()
        }
    }
}

/// Returns the beginning of a text about an end as a record has it; `None` if the rules did not search
/// all of it for secrets.
pub(super) fn recorded(gateway: &Gateway, detail: &str) -> Option<String> {
    Some(gateway.redact_text(detail)?.chars().take(MAX_DETAIL).collect())
}

/// The reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// A side closed the connection in order.
    Closed,
    /// No connection could be made.
    Unreachable,
    /// The connection was cut off for what a side sent, such as the name of another host.
    Refused,
    /// The server cannot be used: it is not the one that its certificate is to prove.
    Failed,
    /// A side sent nothing for too long.
    Timeout,
    /// The connection broke.
    Reset,
    /// The agent's session ended.
    Ended,
    /// [`OpenConnection::account`](super::OpenConnection::account) refused it.
    Denied,
    /// The connection was dropped without a reason.
    Abandoned,
}

impl EndReason {
    /// Returns the word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "ok",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Ended => "ended",
            Self::Denied => "denied",
            Self::Abandoned => "abandoned",
        }
    }
}
