//! Copies bytes between a program and a server.

use std::{io, pin::pin, time::Duration};

use tokio::{net::TcpStream, select, sync::oneshot, time::sleep};

use crate::{
    body::Framing,
    link::ServerConnection,
    messages::{End, Reason},
    stream::{self, Scratch},
};

/// The detail of an end because of a body that is malformed.
pub(crate) const NO_END: &str = "the body of the request has no end";

/// The silence of a server that ends a connection once the program has begun another request on it.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to copy.
pub(crate) struct Copying<'a> {
    pub(crate) client: &'a TcpStream,
    pub(crate) open: &'a ServerConnection,
    /// Gets the reason when the connection must be closed.
    pub(crate) closing: &'a mut oneshot::Receiver<Reason>,
    pub(crate) scratch: &'a Scratch,
    /// The bytes that the program sent already.
    pub(crate) received: Vec<u8>,
    /// The framing of the one request whose body follows `received`; without it all bytes are
    /// copied.
    pub(crate) framing: Option<Framing>,
}

impl Copying<'_> {
    /// Copies to the end, and returns why it ended.
    pub(crate) async fn run(self) -> Reason {
        let Self { client, open, closing, scratch, received, framing } = self;
        let is_one_request = framing.is_some();
        let mut outward = pin!(outward(client, open, scratch, received, framing));
        let mut inward = pin!(inward(client, open, scratch));
        let both = async {
            select! {
                sent = &mut outward => {
                    sent?;
                    inward.await
                }
                received = &mut inward => {
                    received?;
                    if is_one_request { Ok(()) } else { outward.await }
                }
            }
        };
        select! {
            ended = both => match ended {
                Ok(()) => Reason::new(End::Closed, ""),
                Err(reason) => reason,
            },
            reason = closing => reason.unwrap_or(Reason::new(End::Ended, "")),
        }
    }
}

/// Copies from the program to the server.
async fn outward(
    client: &TcpStream,
    open: &ServerConnection,
    scratch: &Scratch,
    received: Vec<u8>,
    mut framing: Option<Framing>,
) -> Result<(), Reason> {
    let mut next = received;
    loop {
        send(open, next).await?;
        next = scratch.read(client).await.map_err(|error| lost("program", &error))?;
        if next.is_empty() {
            stream::end(&open.server);
            return Ok(());
        }
        if let Some(framing) = &mut framing {
            let taken = framing.take(&next).map_err(|_| Reason::new(End::Refused, NO_END))?;
            if taken == 0 {
                // Another request is not passed on: the program sends it again on another
                // connection.
                return silence(open).await;
            }
            next.truncate(taken);
        }
    }
}

/// Sends bytes to the server, and frees them: a tunnel that waits keeps none.
async fn send(open: &ServerConnection, bytes: Vec<u8>) -> Result<(), Reason> {
    open.sending(bytes.len()).await;
    stream::write(&open.server, &bytes).await.map_err(|error| lost("server", &error))
}

/// Waits until nothing comes from the server any more.
async fn silence(open: &ServerConnection) -> Result<(), Reason> {
    loop {
        let before = open.bytes_in();
        sleep(SILENCE_TIMEOUT).await;
        if open.bytes_in() == before {
            return Err(Reason::new(End::Closed, "another request came on the same connection"));
        }
    }
}

/// Copies from the server to the program.
async fn inward(
    client: &TcpStream,
    open: &ServerConnection,
    scratch: &Scratch,
) -> Result<(), Reason> {
    loop {
        match scratch.pass(&open.server, client).await {
            Ok(0) => {
                stream::end(client);
                return Ok(());
            }
            Ok(bytes) => open.received(bytes),
            Err(error) => return Err(lost("server or program", &error)),
        }
    }
}

fn lost(whom: &str, error: &io::Error) -> Reason {
    Reason::new(End::Reset, format!("the {whom} is gone: {error}"))
}
