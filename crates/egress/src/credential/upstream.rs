//! Connections to a credential's host: TLS, and HTTP/2 or HTTP/1.1 in it.
//!
//! Each connection of a program has at most one connection to the host, which ends with it: a
//! request that a program gives up is given up at the server, too.

use std::{
    cell::RefCell, io, pin::Pin, rc::Rc, sync::Arc, task::Context, task::Poll, time::Duration,
};

use bytes::Bytes;
use hyper::{
    Response,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::{http1, http2},
    http::Version,
    rt::Executor,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    select,
    sync::oneshot,
    task::{JoinSet, spawn_local},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName},
    },
};

use super::{
    CredentialOrder,
    filter::{Filter, FilteredRequest},
    wire::Wire,
};
use crate::{
    head::Authority,
    link::{Link, ServerConnection},
    messages::{End, Reason},
    refused::Refused,
    stream,
};

/// The timeout of the TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of one body that a server may send before they are read (HTTP/2).
const STREAM_WINDOW: u32 = 1 << 20;
/// The bytes that a server may send on one connection before they are read (HTTP/2).
const CONNECTION_WINDOW: u32 = 2 << 20;
/// The longest head of a reply, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// The host of a credential, and the way to it.
pub(super) struct Target {
    pub(super) link: Rc<Link>,
    pub(super) filter: Filter,
    to: Authority,
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Target {
    /// Returns the host of an order; `None` if TLS cannot be set up for it.
    pub(super) fn new(order: &CredentialOrder, filter: Filter, link: Rc<Link>) -> Option<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(order.roots.iter().cloned().map(CertificateDer::from));
        let mut config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(order.host.clone()).ok()?;
        let to = Authority { host: order.host.clone(), port: order.port };
        Some(Self { link, filter, to, tls: TlsConnector::from(Arc::new(config)), name })
    }

    /// Opens one connection, speaks on it, and reports its end.
    async fn carry(
        self: Rc<Self>,
        mut made: oneshot::Sender<UpstreamResult>,
        cut: oneshot::Receiver<Reason>,
    ) {
        let (open, closing) = match self.link.connect(&self.to, made.closed()).await {
            Ok((open, closing)) => (Rc::new(open), closing),
            Err(refused) => {
                // A program that is gone does not need the reply.
                let _ = made.send(Err(refused));
                return;
            }
        };
        let tasks = Tasks::default();
        let reason = select! {
            // A connection that is cut off ends by itself, too: the reason of the cut comes first.
            biased;
            reason = closing => reason.unwrap_or(Reason::new(End::Ended, "")),
            reason = cut => reason.unwrap_or(Reason::new(End::Closed, "")),
            reason = self.converse(&open, made, &tasks) => reason,
        };
        tasks.end().await;
        open.ended(reason).await;
    }

    /// Speaks with the server until one side ends the connection.
    async fn converse(
        &self,
        open: &Rc<ServerConnection>,
        made: oneshot::Sender<UpstreamResult>,
        tasks: &Tasks,
    ) -> Reason {
        let wire = Wire::new(Rc::clone(open));
        let stream = timeout(TLS_TIMEOUT, self.tls.connect(self.name.clone(), wire)).await;
        let (end, why) = match stream {
            Ok(Ok(stream)) => return converse_in(stream, open, made, tasks).await,
            Ok(Err(error)) => (End::Failed, untrusted(&error)),
            Err(_) => (End::Timeout, "it takes too long".to_owned()),
        };
        let why = format!("no TLS with `{}`: {why}", self.to.host);
        let _ = made.send(Err(Refused::unusable(&why)));
        Reason::new(end, why)
    }
}

/// Returns why there is no TLS, with advice where the certificate is the reason.
fn untrusted(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => format!(
            "{error}; `ca` in `[[credentials]]` of the configuration names the certificates to trust \
             in place of the system's"
        ),
        _ => error.to_string(),
    }
}

/// Speaks HTTP in an established TLS connection.
async fn converse_in(
    stream: tokio_rustls::client::TlsStream<Wire>,
    open: &Rc<ServerConnection>,
    made: oneshot::Sender<UpstreamResult>,
    tasks: &Tasks,
) -> Reason {
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    let ready = |sender| {
        let _ = made.send(Ok((sender, Rc::clone(open))));
    };
    let ended = if is_http2 {
        let mut builder = http2::Builder::new(tasks.clone());
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX));
        match builder.handshake(io).await {
            Ok((sender, connection)) => {
                ready(Sender::Http2(sender));
                connection.await
            }
            Err(error) => Err(error),
        }
    } else {
        match http1::Builder::new().max_buf_size(MAX_HEAD).handshake(io).await {
            Ok((sender, connection)) => {
                ready(Sender::Http1(sender));
                connection.await
            }
            Err(error) => Err(error),
        }
    };
    match ended {
        Ok(()) => Reason::new(End::Closed, ""),
        Err(error) => Reason::new(End::Reset, format!("the server is gone: {error}")),
    }
}

type UpstreamResult = Result<(Sender, Rc<ServerConnection>), Refused>;

enum Sender {
    Http1(http1::SendRequest<ForwardedBody>),
    Http2(http2::SendRequest<ForwardedBody>),
}

impl Sender {
    fn version(&self) -> Version {
        match self {
            Self::Http1(_) => Version::HTTP_11,
            Self::Http2(_) => Version::HTTP_2,
        }
    }

    async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(
        &mut self,
        request: hyper::Request<ForwardedBody>,
    ) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await,
            Self::Http2(sender) => sender.send_request(request).await,
        }
    }
}

/// The connection to the host that belongs to one connection of a program.
pub(super) struct Upstream {
    target: Rc<Target>,
    /// The program's connection.
    program: TcpStream,
    live: RefCell<Option<IdleConnection>>,
}

/// A connection to the host that may be used again.
struct IdleConnection {
    sender: Sender,
    cut: ConnectionCloser,
}

/// The means to end a request: to cut its connection off, or to note its complete reply. Once all
/// clones are dropped, the connection is closed.
#[derive(Clone)]
pub(super) struct ConnectionCloser {
    open: Rc<ServerConnection>,
    cut: Rc<RefCell<Option<oneshot::Sender<Reason>>>>,
}

impl ConnectionCloser {
    /// Cuts the connection off, and reports the reason to the operator.
    pub(super) fn cut_off(&self, why: &str) {
        if let Some(cut) = self.cut.take() {
            // The connection may have ended already.
            let _ = cut.send(Reason::new(End::Refused, why));
        }
    }

    /// Notes that the request has a complete reply.
    pub(super) fn answered(&self) {
        self.open.answered();
    }
}

impl Upstream {
    pub(super) fn new(target: &Rc<Target>, program: TcpStream) -> Self {
        Self { target: Rc::clone(target), program, live: RefCell::default() }
    }

    /// Sends a request; returns the reply, and the `ConnectionCloser` of its connection.
    pub(super) async fn send(
        &self,
        admitted: &FilteredRequest,
        body: Incoming,
    ) -> Result<(Response<Incoming>, ConnectionCloser), Refused> {
        let mut live = self.ready().await?;
        let request = admitted.onward(&self.target.filter, live.sender.version());
        let request = request
            .body(ForwardedBody(body))
            .map_err(|error| Refused::unusable(&error.to_string()))?;
        live.cut.open.requested(admitted.named());
        let cut = live.cut.clone();
        let reply = live.sender.send(request).await;
        let reply =
            reply.map_err(|error| Refused::unusable(&format!("the server is gone: {error}")))?;
        *self.live.borrow_mut() = Some(live);
        Ok((reply, cut))
    }

    async fn ready(&self) -> Result<IdleConnection, Refused> {
        let live = self.live.take();
        if let Some(mut live) = live
            && live.sender.is_ready().await
        {
            return Ok(live);
        }
        let (made, making) = oneshot::channel();
        let (cut, cutting) = oneshot::channel();
        // The task goes on if the program gives up meanwhile, to report the end of the connection.
        spawn_local(Rc::clone(&self.target).carry(made, cutting));
        let made = select! {
            biased;
            // The task notices it, too, and withdraws the question.
            () = stream::closed(&self.program) => return Err(Refused::unusable("the program is gone")),
            made = making => made,
        };
        let (sender, open) = made.map_err(|_| Refused::unusable("the connection was closed"))??;
        let cut = Rc::new(RefCell::new(Some(cut)));
        Ok(IdleConnection { sender, cut: ConnectionCloser { open, cut } })
    }
}

/// The body of a request without trailers: they could be headers that were not checked.
struct ForwardedBody(Incoming);

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.0).poll_frame(cx)) {
                Some(Ok(frame)) if !frame.is_data() => {}
                frame => return Poll::Ready(frame),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// The tasks of one connection.
#[derive(Clone, Default)]
struct Tasks(Rc<RefCell<JoinSet<()>>>);

impl Tasks {
    /// Aborts the tasks and waits for their end.
    async fn end(self) {
        let mut tasks = self.0.take();
        tasks.shutdown().await;
    }
}

impl<F: Future + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        let mut tasks = self.0.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(async {
            future.await;
        });
    }
}
