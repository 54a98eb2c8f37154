//! The HTTP server of a credential's process, for programs in the sandbox.

use std::{convert::Infallible, io, os::fd::OwnedFd, rc::Rc, time::Duration};

use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime, select,
    task::{JoinSet, LocalSet},
    time::{sleep, timeout},
};

use super::{
    CredentialKey, CredentialOrder,
    filter::{Filter, Inadmissible},
    needles::Needles,
    reply::{self, ReplyBody},
    upstream::{Target, Upstream},
};
use crate::{answer::Refusal, link::Link};

/// The timeout of the head of a request, and of a connection that is idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum of connections at once.
const MAX_CONNECTIONS: usize = 256;
/// The pause after an error that other connections cause, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The timeout for closing connections at the end.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves the programs that connect to `listener`: passes their requests on with the key, by
/// connections that it asks for at `gateway`. Returns when `gateway` is closed or says to stop. The
/// process must be confined already, and have no other thread.
///
/// # Errors
/// When the order or the key cannot be used, or a system call fails.
pub fn run_credential(
    order: &CredentialOrder,
    key: &CredentialKey,
    listener: OwnedFd,
    gateway: OwnedFd,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(listener)?;
        let link = Rc::new(Link::new(gateway)?);
        let server = Server::new(order, key, Rc::clone(&link));
        let server = server.ok_or_else(|| io::Error::other("the credential cannot be used"))?;
        serve(&listener, &link, &Rc::new(server)).await
    })
}

async fn serve(listener: &TcpListener, link: &Link, server: &Rc<Server>) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let followed = {
        let mut followed = std::pin::pin!(link.follow());
        loop {
            select! {
                followed = &mut followed => break followed,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((client, _)) if connections.len() < MAX_CONNECTIONS => {
                        connections.spawn_local(Rc::clone(server).connection(client));
                    }
                    Ok((client, _)) => {
                        // A reply that does not fit into the socket's buffer is lost.
                        let _ = client.try_write(&Refusal::full().bytes());
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    };
    let ended = async { while connections.join_next().await.is_some() {} };
    // Connections that are still open are dropped with the process.
    let _ = timeout(STOP_TIMEOUT, ended).await;
    followed
}

struct Server {
    link: Rc<Link>,
    target: Rc<Target>,
    needles: Needles,
}

impl Server {
    fn new(order: &CredentialOrder, key: &CredentialKey, link: Rc<Link>) -> Option<Self> {
        let filter = Filter::new(order, key)?;
        let target = Rc::new(Target::new(order, filter, Rc::clone(&link))?);
        Some(Self { link, target, needles: Needles::new(key)? })
    }

    /// Serves one connection of a program.
    async fn connection(self: Rc<Self>, client: TcpStream) {
        // This fails only if the peer is gone, which is noticed below.
        let _ = client.set_nodelay(true);
        let upstream = Upstream::new(&self.target);
        let service = service_fn(|request| async {
            Ok::<_, Infallible>(self.answer(&upstream, request).await)
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
        // A program that is gone gets no error, and one that sent no HTTP has got a reply.
        let _ = builder.serve_connection(TokioIo::new(client), service).await;
    }

    async fn answer(&self, upstream: &Upstream, request: Request<Incoming>) -> Response<ReplyBody> {
        let (parts, body) = request.into_parts();
        let admitted = match self.target.filter.admit(&parts) {
            Ok(admitted) => admitted,
            Err(Inadmissible(status, why)) => {
                self.link.refused(why.clone()).await;
                let text = format!("portcullis: {why}\n");
                let refused = Refusal { status, phrase: String::new(), text };
                return reply::refusal(&refused);
            }
        };
        match upstream.send(&admitted, body).await {
            Ok((reply, cut)) => reply::pass(reply, cut, &self.needles),
            Err(refused) => reply::refusal(&refused),
        }
    }
}
