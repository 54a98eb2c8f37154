//! The ends of connections, as records have them.

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionEnd<'a> {
    /// Bytes that came from the host.
    pub bytes_in: u64,
    /// Bytes that were sent to it.
    pub bytes_out: u64,
    /// Why it ended.
    pub reason: EndReason,
    /// More about that, for the record; may hold what a peer sent.
    pub detail: Option<&'a str>,
    /// Requests that were sent, where somebody counted them.
    pub requests: Option<u64>,
}

/// The reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// Both sides had said all.
    Closed,
    /// No connection could be made.
    Unreachable,
    /// A request or a TLS name was for another host than the one asked for.
    Refused,
    /// A side sent nothing for too long.
    Timeout,
    /// The connection broke.
    Reset,
    /// The agent's session ended.
    Ended,
    /// [`OpenConnection::account`](super::OpenConnection::account) said no.
    Denied,
    /// Nobody said why.
    Abandoned,
}

impl EndReason {
    /// The word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "ok",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Ended => "ended",
            Self::Denied => "denied",
            Self::Abandoned => "abandoned",
        }
    }
}
