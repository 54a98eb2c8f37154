//! The HTTP server of a credential's process, for programs in the sandbox.

use std::{
    convert::Infallible,
    io,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};

use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::{
    CredentialKey, CredentialOrder,
    filter::{Filter, RejectedRequest},
    key_search::KeyForms,
    reply::{self, ReplyBody},
    upstream::{Target, Upstream},
};
use crate::{
    accept,
    link::Link,
    messages::{NamedRequest, RefusedRequest},
    refused::Refused,
};

/// The timeout of the head of a request, and of a connection that is idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum of connections at once.
const MAX_CONNECTIONS: usize = 256;

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
    accept::run(listener, gateway, MAX_CONNECTIONS, |link| {
        let server = Server::new(order, key, link);
        let server = server.ok_or_else(|| io::Error::other("the credential cannot be used"))?;
        let server = Rc::new(server);
        Ok(move |client| Rc::clone(&server).connection(client))
    })
}

/// Returns the same connection once more, to be watched. The HTTP server reads nothing while a request
/// waits whose body it has not read, so it does not notice the end of the program.
fn duplicate(client: &TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(client.as_fd().try_clone_to_owned()?.into())
}

struct Server {
    target: Rc<Target>,
    forms: Rc<KeyForms>,
}

impl Server {
    fn new(order: &CredentialOrder, key: &CredentialKey, link: Rc<Link>) -> Option<Self> {
        let target = Target::new(order, Filter::new(order, key)?, link)?;
        Some(Self { target: Rc::new(target), forms: Rc::new(KeyForms::new(key)) })
    }

    /// Serves one connection of a program.
    async fn connection(self: Rc<Self>, client: TcpStream) {
        let Ok(watched) = duplicate(&client) else { return };
        let upstream = Upstream::new(&self.target, watched);
        let service = service_fn(|request| async {
            Ok::<_, Infallible>(self.answer(&upstream, request).await)
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
        let served = builder.serve_connection(TokioIo::new(client), service).await;
        // A program that is gone gets no error, and one whose request cannot be parsed has got a
        // reply.
        if let Err(error) = served
            && error.is_parse()
        {
            let reason = format!("the request is malformed: {error}");
            self.refuse(400, reason, NamedRequest::default()).await;
        }
    }

    /// Has the refusal of a request recorded, and returns the reply.
    async fn refuse(&self, status: u16, reason: String, named: NamedRequest) -> Refused {
        let (target, has_other_host) = (String::new(), false);
        let request = RefusedRequest { status, reason, target, has_other_host, named };
        self.target.link.refuse(request).await
    }

    async fn answer(&self, upstream: &Upstream, request: Request<Incoming>) -> Response<ReplyBody> {
        let (parts, body) = request.into_parts();
        let admitted = match self.target.filter.admit(&parts) {
            Ok(admitted) => admitted,
            Err(RejectedRequest(status, reason)) => {
                let named = NamedRequest::new(parts.method.as_str(), parts.uri.path());
                return reply::refusal(&self.refuse(status, reason, named).await);
            }
        };
        match upstream.send(&admitted, body).await {
            Ok((reply, cut)) => reply::pass(reply, cut, &self.forms),
            Err(refused) => reply::refusal(&refused),
        }
    }
}
