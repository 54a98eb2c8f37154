//! The egress process's end of its link with the gateway process.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    pin::pin,
    rc::Rc,
};

use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};
use tokio::{
    io::Interest,
    net::{TcpStream, UnixDatagram},
    select,
    sync::oneshot,
};

use crate::{
    head::Authority,
    messages::{
        End, FromProxy, Id, MAX_HOST, NamedRequest, Reason, RefusedRequest, ToProxy, beginning,
    },
    packet,
    refused::Refused,
};

/// The link with the gateway process.
#[derive(Debug)]
pub(crate) struct Link {
    /// A connected socket of packets, which is used like one of datagrams.
    socket: UnixDatagram,
    next: Cell<Id>,
    /// The connections for which a reply of the gateway process is awaited.
    asked: RefCell<HashMap<Id, oneshot::Sender<Reply>>>,
    /// The open connections.
    open: RefCell<HashMap<Id, oneshot::Sender<Reason>>>,
}

#[derive(Debug)]
enum Reply {
    Opened(OwnedFd),
    Refused(Refused),
    Counted,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        Ok(Self { socket, next: Cell::new(0), asked: RefCell::default(), open: RefCell::default() })
    }

    /// Asks for a connection. The receiver gets the reason when the connection must be closed. When
    /// `gone` ends before, the program's question to a person is withdrawn.
    pub(crate) async fn connect(
        self: &Rc<Self>,
        to: &Authority,
        gone: impl Future<Output = ()>,
    ) -> Result<(ServerConnection, oneshot::Receiver<Reason>), Refused> {
        let id = self.take_id();
        // A host that is too long is cut to fit into a packet, and stays too long.
        let (host, port) = (beginning(&to.host, MAX_HOST + 1).to_owned(), to.port);
        let connect = FromProxy::Connect { id, host, port };
        let mut reply = pin!(self.ask(id, &connect));
        let reply = select! {
            biased;
            reply = &mut reply => reply,
            () = gone => {
                // A gateway process that is gone asks nobody.
                let _ = self.send(&FromProxy::Withdraw { id }).await;
                reply.await
            }
        };
        match reply {
            Some(Reply::Opened(socket)) => {
                let (close, closing) = oneshot::channel();
                self.open.borrow_mut().insert(id, close);
                let server = TcpStream::from_std(socket.into()).map_err(|_| Refused::gone())?;
                let link = Rc::clone(self);
                Ok((ServerConnection::new(link, id, server), closing))
            }
            Some(Reply::Refused(refused)) => Err(refused),
            Some(Reply::Counted) | None => Err(Refused::gone()),
        }
    }

    /// Reports that a request is not passed on, and returns the reply to it.
    pub(crate) async fn refuse(&self, request: RefusedRequest) -> Refused {
        let id = self.take_id();
        match self.ask(id, &FromProxy::Refuse { id, request }).await {
            Some(Reply::Refused(refused)) => refused,
            Some(Reply::Opened(_) | Reply::Counted) | None => Refused::gone(),
        }
    }

    fn take_id(&self) -> Id {
        let id = self.next.get();
        self.next.set(id + 1);
        id
    }

    async fn ask(&self, id: Id, message: &FromProxy) -> Option<Reply> {
        let (reply, replied) = oneshot::channel();
        self.asked.borrow_mut().insert(id, reply);
        if self.send(message).await.is_err() {
            self.asked.borrow_mut().remove(&id);
        }
        replied.await.ok()
    }

    async fn send(&self, message: &FromProxy) -> io::Result<()> {
        let send = || packet::send(&self.socket, message, None, SendFlags::DONTWAIT);
        self.socket.async_io(Interest::WRITABLE, send).await
    }

    /// Handles messages of the gateway process until it is gone or says to stop. Then every open
    /// connection gets a reason to close.
    pub(crate) async fn follow(&self) -> io::Result<()> {
        let receive = || packet::receive(&self.socket, RecvFlags::DONTWAIT);
        while let Some((message, socket)) =
            self.socket.async_io(Interest::READABLE, receive).await?
        {
            match message {
                ToProxy::Opened { id } => {
                    let socket = socket.ok_or(io::ErrorKind::InvalidData)?;
                    self.reply(id, Reply::Opened(socket));
                }
                ToProxy::Refused { id, refused } => self.reply(id, Reply::Refused(refused)),
                ToProxy::Counted { id } => self.reply(id, Reply::Counted),
                ToProxy::Close { id } => {
                    if let Some(close) = self.open.borrow_mut().remove(&id) {
                        // The connection may be closing already.
                        let _ = close.send(Reason::new(End::Denied, ""));
                    }
                }
                ToProxy::Stop => break,
            }
        }
        // No reply comes any more.
        self.asked.borrow_mut().clear();
        let open = std::mem::take(&mut *self.open.borrow_mut());
        for close in open.into_values() {
            let _ = close.send(Reason::new(End::Ended, ""));
        }
        Ok(())
    }

    fn reply(&self, id: Id, reply: Reply) {
        if let Some(asked) = self.asked.borrow_mut().remove(&id) {
            // Tasks wait for the reply until the process ends.
            let _ = asked.send(reply);
        }
    }
}

/// An open connection. Its user has to report its end with [`ended`](Self::ended).
#[derive(Debug)]
pub(crate) struct ServerConnection {
    link: Rc<Link>,
    id: Id,
    pub(crate) server: TcpStream,
    bytes_in: Cell<u64>,
    requests: Cell<Option<u64>>,
    /// The request without a complete reply.
    request: RefCell<NamedRequest>,
}

impl ServerConnection {
    fn new(link: Rc<Link>, id: Id, server: TcpStream) -> Self {
        let (bytes_in, requests, request) = (Cell::new(0), Cell::new(None), RefCell::default());
        Self { link, id, server, bytes_in, requests, request }
    }

    /// Returns the number of bytes that came from the server.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.bytes_in.get()
    }

    /// Counts bytes that came from the server.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_in.set(self.bytes_in.get() + bytes as u64);
    }

    /// Counts a request that is sent on it.
    #[cfg(feature = "tls")]
    pub(crate) fn requested(&self, request: NamedRequest) {
        self.requests.set(Some(self.requests.get().unwrap_or(0) + 1));
        self.request.replace(request);
    }

    /// Notes that the last request on it has a complete reply.
    #[cfg(feature = "tls")]
    pub(crate) fn answered(&self) {
        self.request.take();
    }

    /// Asks the gateway process to count bytes for the server, and waits until they may be sent.
    pub(crate) async fn sending(&self, bytes: usize) {
        let bytes = bytes as u64;
        let asked = FromProxy::Sending { id: self.id, bytes };
        match self.link.ask(self.id, &asked).await {
            Some(Reply::Counted) => {}
            // The connection is closed instead.
            _ => std::future::pending().await,
        }
    }

    /// Closes the connection on both sides, and reports its end.
    pub(crate) async fn ended(&self, reason: Reason) {
        let Self { link, id, server, .. } = self;
        link.open.borrow_mut().remove(id);
        link.asked.borrow_mut().remove(id);
        // The server may have closed it already.
        let _ = shutdown(server, Shutdown::Both);
        let (id, bytes_in) = (*id, self.bytes_in.get());
        let (requests, request) = (self.requests.get(), self.request.take());
        let closed = FromProxy::Closed { id, bytes_in, requests, request, reason };
        // A gateway process that is gone has recorded the end.
        let _ = link.send(&closed).await;
    }
}
