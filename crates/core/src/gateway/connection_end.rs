//! Ends of connections, as records have them.

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionEnd<'a> {
    /// Bytes that came from the host.
    pub bytes_in: u64,
    /// Bytes that were sent to it.
    pub bytes_out: u64,
    /// The reason of the end.
    pub reason: EndReason,
    /// A text about the reason, for the record; may contain bytes that a peer sent.
    pub detail: Option<&'a str>,
    /// The number of requests that were sent, if they were counted.
    pub requests: Option<u64>,
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
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Ended => "ended",
            Self::Denied => "denied",
            Self::Abandoned => "abandoned",
        }
    }
}
