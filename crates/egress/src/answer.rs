//! The proxy's own replies.

use std::time::Duration;

use tokio::{net::TcpStream, time::timeout};

use crate::{
    head::Wrong,
    stream::{self, Scratch},
};

/// The reply to a tunnel that is open.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The fatal TLS alert `access_denied` (RFC 8446, 6), for programs that speak TLS and read no HTTP.
pub(crate) const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// The time for which a refused program may go on sending. What it sends is discarded: a socket
/// that is closed at once would lose the reply.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A refusal of a request: status, reason phrase and body of the reply.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) phrase: String,
    pub(crate) text: String,
}

impl Refusal {
    /// The refusal of a malformed request.
    pub(crate) fn malformed(why: Wrong) -> Self {
        Self { status: 400, phrase: "Bad Request".to_owned(), text: format!("portcullis: {why}\n") }
    }

    /// The refusal of a request that did not come in time.
    pub(crate) fn slow() -> Self {
        let text = "portcullis: the request did not come in time\n".to_owned();
        Self { status: 408, phrase: "Request Timeout".to_owned(), text }
    }

    /// The refusal of a connection above the maximum.
    pub(crate) fn full() -> Self {
        let text = "portcullis: there are too many connections at once\n".to_owned();
        Self { status: 503, phrase: "Too many connections".to_owned(), text }
    }

    /// The refusal of a request when the gateway process is gone.
    pub(crate) fn gone() -> Self {
        let text = "portcullis: the gateway is gone\n".to_owned();
        Self { status: 503, phrase: "Gateway is gone".to_owned(), text }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { status, phrase, text } = self;
        let phrase: String = phrase.chars().filter(|c| matches!(c, ' '..='~')).collect();
        let length = text.len();
        format!(
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
        )
        .into_bytes()
    }
}

/// Writes the last bytes to a program, then reads until it closes its side or `DRAIN_TIMEOUT` is
/// over.
pub(crate) async fn close_with(client: &TcpStream, last: &[u8], scratch: &Scratch) {
    let said = async {
        stream::write(client, last).await?;
        stream::end(client);
        while !scratch.read(client).await?.is_empty() {}
        std::io::Result::Ok(())
    };
    // A program that is gone does not need the reply.
    let _ = timeout(DRAIN_TIMEOUT, said).await;
}
