//! Connections and the routing of requests.
//!
//! Every slow step of a peer has a timeout, and every connection is counted
//! until its last byte is sent, also after an upgrade. When there are as many as may be, also
//! those for health checks, no connection is accepted; new ones wait in the kernel's queue.

use std::{convert::Infallible, io, os::fd::OwnedFd, pin::pin, sync::Arc, time::Duration};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
};

use super::{
    BrokerRequestKind, Caller, Front, Peer,
    admission::AdmissionGuard,
    guard::Guard,
    mcp::{self, Mcp},
    reply::{self, Body},
    slot_stream::SlotStream,
    token, ws,
};

/// The reply at a path that does not exist. It names no workspace.
const NOTHING_HERE: &str = "this is portcullis, which serves workspaces to agents; there is nothing at \
    this path: MCP is at /mcp and /workspaces/NAME/mcp, files are at /workspaces/NAME/ws, health at \
    /healthz and /readyz, numbers at /metrics";

/// Idle time after which TCP keepalive probes a peer.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failed accept, such as for lack of descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of reports to the broker about refusals.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(OwnedFd),
    /// A UNIX socket, for processes of the same machine.
    Unix(OwnedFd),
}

/// The front cannot take over its sockets.
#[derive(Debug, thiserror::Error)]
#[error("cannot take over a listening socket: {0}")]
pub struct ServeError(#[from] io::Error);

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A front with its MCP endpoints.
struct Server {
    front: Arc<Front>,
    mcp: Mcp,
}

impl Front {
    /// Serves at `listeners` until [`Front::stop`] is called and every
    /// connection has ended, or `grace` has passed after that.
    ///
    /// # Errors
    /// When a socket does not listen.
    pub async fn serve(
        self: &Arc<Self>,
        listeners: Vec<Listener>,
        grace: Duration,
    ) -> Result<(), ServeError> {
        let server = Arc::new(Server { front: Arc::clone(self), mcp: Mcp::default() });
        for listener in listeners {
            let socket = Socket::open(listener)?;
            tokio::spawn(Arc::clone(&server).accept(socket));
        }
        tokio::spawn(Arc::clone(self).report());
        tokio::spawn(server.tidy());
        self.stopping().await;
        // Remaining connections are dropped.
        let _ = tokio::time::timeout(grace, self.admission.all_ended()).await;
        Ok(())
    }

    /// Sends the notifications for the broker periodically.
    async fn report(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(REPORT_INTERVAL) => {}
                () = self.stopping() => {}
            }
            if self.is_stopping() {
                return;
            }
            for told in self.throttle.report() {
                // A full queue drops the notification.
                let _ = self.told.try_send(told);
            }
        }
    }
}

impl Server {
    async fn accept(self: Arc<Self>, socket: Socket) {
        let accepting = async {
            loop {
                let admitted = self.front.admission.admit().await;
                match socket.accept().await {
                    Ok(AcceptedStream::Tcp(stream, peer)) => {
                        let held = SlotStream::new(stream, Arc::clone(&admitted));
                        tokio::spawn(Arc::clone(&self).tcp(held, peer, admitted));
                    }
                    Ok(AcceptedStream::Unix(stream, peer)) => {
                        let held = SlotStream::new(stream, Arc::clone(&admitted));
                        tokio::spawn(Arc::clone(&self).connection(held, peer, admitted));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a connection was not taken");
                        tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = self.front.stopping() => {}
        }
    }

    /// Handles a TCP connection: with TLS, if there is a certificate.
    async fn tcp(
        self: Arc<Self>,
        stream: SlotStream<TcpStream>,
        peer: Peer,
        admitted: Arc<AdmissionGuard>,
    ) {
        let Some(acceptor) = self.front.tls() else {
            return self.connection(stream, peer, admitted).await;
        };
        match tokio::time::timeout(self.front.limits.head, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.connection(stream, peer, admitted).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS"),
            Err(_) => tracing::debug!(%peer, "a handshake took too long"),
        }
    }

    async fn connection<S>(self: Arc<Self>, stream: S, peer: Peer, admitted: Arc<AdmissionGuard>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|request| {
            let (server, peer, admitted) = (Arc::clone(&self), peer.clone(), Arc::clone(&admitted));
            async move { Ok::<_, Infallible>(server.reply(peer, &admitted, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.front.limits.head)
            .max_buf_size(self.front.limits.head_bytes)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.front.stopping() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a connection broke off");
        }
    }

    async fn reply(
        self: Arc<Self>,
        peer: Peer,
        admitted: &AdmissionGuard,
        request: Request<Incoming>,
    ) -> Response<Body> {
        if head_bytes(&request) > self.front.limits.head_bytes {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            self.front.board.replied(status);
            return reply::text(status, "the head of the request is too large");
        }
        let guard = self.front.guard();
        if let Err(refused) = guard.check(&peer, &request) {
            self.front.board.replied(refused.status());
            return *refused;
        }
        let origin = guard.origin(request.headers());
        let mut reply = match guard.preflight(&request) {
            Some(reply) => reply,
            None => Arc::clone(&self).route(peer, admitted, request).await,
        };
        Guard::mark(origin, &mut reply);
        self.front.board.replied(reply.status());
        reply
    }

    async fn route(
        self: Arc<Self>,
        peer: Peer,
        admitted: &AdmissionGuard,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let mut parts = path.split('/').skip(1);
        let parts = (parts.next(), parts.next(), parts.next(), parts.next());
        let looks = matches!(*request.method(), Method::GET | Method::HEAD);
        let is_about_health = matches!(parts, (Some("healthz" | "readyz"), None, ..));
        if !is_about_health && !admitted.is_for_all() {
            let reason = "there are as many connections as there may be; try again later";
            return reply::not_admitted(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        let caller = |socket| caller(peer, admitted, &request, socket);
        match parts {
            (Some("healthz" | "readyz" | "metrics"), None, ..) if !looks => {
                reply::not_so("GET, HEAD")
            }
            (Some("healthz"), None, ..) => reply::text(StatusCode::OK, "ok"),
            (Some("readyz"), None, ..) => self.front.ready().await,
            (Some("metrics"), None, ..) => match caller(false) {
                Ok(caller) => match self.front.ask(&caller, BrokerRequestKind::Metrics).await {
                    Ok(_) => self.front.numbers(),
                    // To an agent without permission the page does not exist.
                    Err(error) => reply::refused(&error),
                },
                Err(refused) => *refused,
            },
            (Some("workspaces"), Some(name), Some("mcp"), None) => match caller(false) {
                Ok(caller) => {
                    mcp::handle(&self.front, &self.mcp, caller, Some(name), request).await
                }
                Err(refused) => *refused,
            },
            (Some("mcp"), None, ..) => match caller(false) {
                Ok(caller) => mcp::handle(&self.front, &self.mcp, caller, None, request).await,
                Err(refused) => *refused,
            },
            (Some("workspaces"), Some(name), Some("ws"), None) => match caller(true) {
                Ok(caller) => ws::handle(Arc::clone(&self.front), caller, name, request).await,
                Err(refused) => *refused,
            },
            _ => reply::text(StatusCode::NOT_FOUND, NOTHING_HERE),
        }
    }

    /// Removes unused state.
    async fn tidy(self: Arc<Self>) {
        tokio::select! {
            () = self.mcp.tidy(self.front.limits.idle) => {}
            () = self.front.stopping() => {}
        }
    }
}

/// Returns the sender of a request; one without a token gets 401, and one with too many connections
/// 429.
fn caller<B>(
    peer: Peer,
    admitted: &AdmissionGuard,
    request: &Request<B>,
    socket: bool,
) -> Result<Caller, Box<Response<Body>>> {
    let Some(token) = token::of(request, socket) else {
        return Err(Box::new(reply::unauthorised(reply::TOKEN_MISSING)));
    };
    if !admitted.count_for(token) {
        let reason =
            "there are as many connections with this token as there may be; try again later";
        return Err(Box::new(reply::not_admitted(StatusCode::TOO_MANY_REQUESTS, reason)));
    }
    Ok(Caller { token, peer })
}

enum AcceptedStream {
    Tcp(TcpStream, Peer),
    Unix(tokio::net::UnixStream, Peer),
}

impl Socket {
    fn open(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(socket) => {
                let socket = std::net::TcpListener::from(socket);
                socket.set_nonblocking(true)?;
                Self::Tcp(TcpListener::from_std(socket)?)
            }
            Listener::Unix(socket) => {
                let socket = std::os::unix::net::UnixListener::from(socket);
                socket.set_nonblocking(true)?;
                Self::Unix(UnixListener::from_std(socket)?)
            }
        })
    }

    async fn accept(&self) -> io::Result<AcceptedStream> {
        match self {
            Self::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                stream.set_nodelay(true)?;
                // Keepalive ends half-open connections.
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, SILENCE_TIMEOUT)?;
                sockopt::set_tcp_keepintvl(&stream, SILENCE_TIMEOUT / 4)?;
                sockopt::set_tcp_keepcnt(&stream, 4)?;
                Ok(AcceptedStream::Tcp(stream, Peer::Address(address.ip().to_canonical())))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok(AcceptedStream::Unix(stream, Peer::User(uid)))
            }
        }
    }
}

/// Returns a lower bound of the size of a request's head. A head that arrives at once
/// may exceed the buffer that bounds one that arrives in pieces.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.path().len() + uri.query().map_or(0, str::len);
    let field = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 2;
    request.headers().iter().map(field).sum::<usize>() + target
}
