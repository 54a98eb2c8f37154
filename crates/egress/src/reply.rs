//! The proxy's own replies.

use std::time::Duration;

use tokio::{net::TcpStream, time::timeout};

use crate::stream::{self, Scratch};

/// The reply to a tunnel that is open.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The fatal TLS alert `access_denied` (RFC 8446, 6), for programs that speak TLS and read no HTTP.
pub(crate) const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// The time for which a refused program may go on sending. What it sends is discarded: a socket
/// that is closed at once would lose the reply.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the last bytes to a program, then reads until it closes its side or `DRAIN_TIMEOUT` is
/// over.
pub(crate) async fn close_with(client: &TcpStream, last: &[u8], scratch: &Scratch) {
    let written = async {
        stream::write(client, last).await?;
        stream::end(client);
        while !scratch.read(client).await?.is_empty() {}
        std::io::Result::Ok(())
    };
    // A program that is gone does not need the reply.
    let _ = timeout(DRAIN_TIMEOUT, written).await;
}
