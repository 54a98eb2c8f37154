//! The egress process: the proxy to which programs in the sandbox connect.

use std::{io, os::fd::OwnedFd, rc::Rc, time::Duration};

use portcullis_policy::model::Host;
use rustix::process::{Resource, getrlimit};
use tokio::{net::TcpStream, select, sync::oneshot, time::timeout};

use crate::{
    accept,
    first_bytes::{self, CutOffReason, CutOffTunnel, TunnelProtocol},
    head::{self, Authority, ProxyRequest, Request},
    link::{Link, ServerConnection},
    messages::{End, Reason},
    refused::Refused,
    reply::{ACCESS_DENIED, ESTABLISHED, close_with},
    stream::{self, Scratch},
    tunnel::{Copying, NO_END},
};

/// The timeout of the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a program's first bytes in a tunnel.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum of connections at once, where there are descriptors for so many.
const MAX_CONNECTIONS: usize = 4096;
/// The descriptors of a connection: the program's and the server's.
const DESCRIPTORS: usize = 2;
/// The descriptors that the process needs besides.
const OTHER_DESCRIPTORS: usize = 64;

/// Serves the programs that connect to `listener`, and asks for each connection at `gateway`, until
/// that is closed or says to stop. The process must be confined already, and have no other thread.
///
/// # Errors
/// When a system call fails.
pub fn run_proxy(listener: OwnedFd, gateway: OwnedFd) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
    let max_connections =
        MAX_CONNECTIONS.min(limit.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS);
    accept::run(listener, gateway, max_connections, |link| {
        let proxy = Rc::new(Proxy { link, scratch: Scratch::new() });
        Ok(move |client| Rc::clone(&proxy).connection(client))
    })
}

/// The parts that the connections of programs share.
struct Proxy {
    link: Rc<Link>,
    scratch: Scratch,
}

impl Proxy {
    async fn connection(self: Rc<Self>, client: TcpStream) {
        let _entered = self.scratch.enter();
        if let Err(refused) = self.converse(&client).await {
            close_with(&client, &refused.bytes(), &self.scratch).await;
        }
    }

    /// Serves one connection; a program that is gone gets no reply.
    async fn converse(&self, client: &TcpStream) -> Result<(), Refused> {
        let mut received = Vec::new();
        let parsed = self.read_until(client, &mut received, head::to_proxy);
        let parsed = timeout(HEAD_TIMEOUT, parsed).await.map_err(|_| Refused::slow())?;
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(why) => return Err(self.link.refuse(head::refused(&received, why)).await),
        };
        let Some((wanted, length)) = parsed else { return Ok(()) };
        received.drain(..length.min(received.len()));
        match wanted {
            ProxyRequest::Tunnel(to) => {
                let (open, closing) = self.link.connect(&to, stream::closed(client)).await?;
                self.tunnel(client, open, closing, &to, received).await;
            }
            ProxyRequest::Forward(to, request) => {
                let (open, mut closing) = self.link.connect(&to, stream::closed(client)).await?;
                let reason = self.forward(client, &open, &mut closing, request, received).await;
                open.ended(reason).await;
            }
        }
        Ok(())
    }

    async fn tunnel(
        &self,
        client: &TcpStream,
        open: ServerConnection,
        mut closing: oneshot::Receiver<Reason>,
        to: &Authority,
        mut received: Vec<u8>,
    ) {
        let first = self.first_bytes(client, to, &mut received);
        let first = select! {
            first = first => first,
            reason = &mut closing => {
                return open.ended(reason.unwrap_or(Reason::new(End::Ended, ""))).await;
            }
        };
        let reason = match first {
            Ok(Some(TunnelProtocol::Tls)) => {
                let (open, closing, scratch) = (&open, &mut closing, &self.scratch);
                Copying { client, open, closing, scratch, received, framing: None }.run().await
            }
            Ok(Some(TunnelProtocol::Http(request, length))) => {
                received.drain(..length.min(received.len()));
                self.forward(client, &open, &mut closing, request, received).await
            }
            Ok(None) => Reason::new(End::Closed, "nothing was sent"),
            Err(cut) => {
                let end =
                    if cut.reason == CutOffReason::Slow { End::Timeout } else { End::Refused };
                // The server has got none of these bytes.
                open.ended(Reason::new(end, cut.to_string())).await;
                let last = match cut.reason.is_tls() {
                    true => ACCESS_DENIED.to_vec(),
                    false => Refused::new(403, "Forbidden", cut).bytes(),
                };
                return close_with(client, &last, &self.scratch).await;
            }
        };
        open.ended(reason).await;
    }

    /// Tells the program that its tunnel is open, and reads until its first bytes can be decided
    /// on.
    async fn first_bytes(
        &self,
        client: &TcpStream,
        to: &Authority,
        received: &mut Vec<u8>,
    ) -> Result<Option<TunnelProtocol>, CutOffTunnel> {
        // The gateway parsed it, too.
        let host = Host::parse(&to.host).map_err(|_| CutOffReason::Unknown)?;
        if stream::write(client, ESTABLISHED).await.is_err() {
            return Ok(None);
        }
        let judged =
            self.read_until(client, received, |bytes| first_bytes::judge(bytes, &host, to.port));
        timeout(FIRST_BYTES_TIMEOUT, judged).await.unwrap_or(Err(CutOffReason::Slow.into()))
    }

    /// Passes one request on, with the part of its body that was received already.
    async fn forward(
        &self,
        client: &TcpStream,
        open: &ServerConnection,
        closing: &mut oneshot::Receiver<Reason>,
        request: Request,
        mut received: Vec<u8>,
    ) -> Reason {
        let Request { head, mut framing } = request;
        let Ok(taken) = framing.take(&received) else {
            return Reason::new(End::Refused, NO_END);
        };
        received.truncate(taken);
        let received = [head, received].concat();
        let (scratch, framing) = (&self.scratch, Some(framing));
        Copying { client, open, closing, scratch, received, framing }.run().await
    }

    /// Reads until `parse` returns something; `None` if the program closes before.
    async fn read_until<T, E>(
        &self,
        client: &TcpStream,
        received: &mut Vec<u8>,
        parse: impl Fn(&[u8]) -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        loop {
            if let Some(found) = parse(received)? {
                return Ok(Some(found));
            }
            match self.scratch.read(client).await {
                Ok(more) if !more.is_empty() => received.extend_from_slice(&more),
                // The program sends no more.
                Ok(_) | Err(_) => return Ok(None),
            }
        }
    }
}
