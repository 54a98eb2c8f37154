//! The approval socket, by which `portcullis approve` reaches a gateway.
//!
//! A gateway creates a UNIX socket in its state directory before it is confined. A
//! client must run as the gateway's user, which the kernel attests, and know the nonce
//! from a file that only that user can read: a confined agent of the same user knows
//! neither path nor nonce. The client sends one line and gets one.

mod directory;
mod messages;

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Arc, Once},
    thread,
    time::Duration,
};

use portcullis_audit::Hash;
use portcullis_rpc::strict_json;
use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with, sockopt},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::gateway::{Approvals, random_hex};
use directory::Directory;
pub(crate) use messages::{Choice, Item, Reply, Request};
use messages::{Message, VERSION};

/// Timeout of either side for its line.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, such as for lack of descriptors. Connections wait in
/// the kernel's queue meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest line that a gateway reads, in bytes.
const MAX_REQUEST: u64 = 4096;
/// Longest line that `portcullis approve` reads, in bytes: the maximum of pending
/// requests, with every byte of them escaped.
const MAX_REPLY: u64 = 32 << 20;

/// An approval socket. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct ApprovalSocket {
    directory: Directory,
    name: String,
    nonce: String,
    listener: OwnedFd,
}

impl ApprovalSocket {
    /// Creates a socket in the state directory, and removes those of dead gateways.
    /// Must be called before the process is confined.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn open(state: BorrowedFd<'_>) -> io::Result<Self> {
        let directory = Directory::make(state)?;
        for name in directory.names()? {
            if directory.connect(&name)?.is_none() {
                directory.remove(&name);
            }
        }
        let (name, nonce) = (random_hex::<16>()?, random_hex::<32>()?);
        let listener = directory.create(&name, &nonce)?;
        Ok(Self { directory, name, nonce, listener })
    }

    /// Listens on a thread of its own until the process ends. A temporary error does
    /// not end it: without a socket, pending requests would time out.
    ///
    /// # Errors
    /// When the thread does not start.
    pub(crate) fn listen(&self, approvals: Arc<Approvals>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let nonce = self.nonce.clone();
        let run = move || loop {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(client) => {
                    if let Err(error) = serve(client, &nonce, &approvals) {
                        tracing::debug!(%error, "a client of the approval socket is gone");
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK)) => {
                    tracing::error!(%error, "the approval socket is closed");
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "the approval socket cannot accept connections now");
                    thread::sleep(RETRY_INTERVAL);
                }
            }
        };
        thread::Builder::new().name("approvals".to_owned()).spawn(run).map(drop)
    }
}

impl Drop for ApprovalSocket {
    fn drop(&mut self) {
        self.directory.remove(&self.name);
    }
}

fn serve(client: OwnedFd, nonce: &str, approvals: &Approvals) -> io::Result<()> {
    limit_time(&client)?;
    let who = sockopt::socket_peercred(&client)?;
    let mut client = File::from(client);
    // Read in any case, or the client would not get the reply.
    let message = read_line::<Value>(&client, MAX_REQUEST);
    if who.uid != rustix::process::geteuid() {
        tracing::warn!(uid = who.uid.as_raw(), "another user connected to the approval socket");
        let reason = "only the user for whom the gateway runs may answer".to_owned();
        return write_line(&mut client, &Reply::Refused(reason));
    }
    let version = message.as_ref().ok().and_then(|message| message.get("version")?.as_u64());
    if let Some(other) = version.filter(|version| *version != VERSION) {
        let reason = format!(
            "its messages have version {VERSION}, those of this `portcullis approve` version {other}; \
             use the portcullis that started it"
        );
        return write_line(&mut client, &Reply::Refused(reason));
    }
    let message = message.and_then(|message| Ok(serde_json::from_value::<Message>(message)?));
    let reply = match message {
        Err(_) => Reply::Refused("the request cannot be understood".to_owned()),
        // Hashes are compared, so that the duration discloses nothing.
        Ok(message) if Hash::of(message.nonce.as_bytes()) != Hash::of(nonce.as_bytes()) => {
            tracing::warn!(pid = who.pid.as_raw_pid(), "a wrong nonce at the approval socket");
            Reply::Refused("the nonce is not that of the gateway's file".to_owned())
        }
        Ok(message) => answer(&message.request, who.pid.as_raw_pid(), approvals),
    };
    write_line(&mut client, &reply)
}

fn answer(request: &Request, pid: i32, approvals: &Approvals) -> Reply {
    let waiting = approvals.waiting();
    match request {
        Request::List => {
            Reply::Waiting(waiting.iter().map(|ticket| Item::from(ticket.question())).collect())
        }
        Request::Answer { id, answer } => {
            // The question names the user for whom the gateway runs.
            let user = waiting.first().map(|ticket| ticket.question().session.user.as_str());
            let by = format!("{} at a shell, process {pid}", user.unwrap_or("the operator"));
            match approvals.answer(id, (*answer).into(), &by) {
                Ok(ticket) => Reply::Taken(Box::new(Item::from(ticket.question()))),
                Err(error) => error.into(),
            }
        }
    }
}

/// Sends a request to every gateway of a state directory in turn, while `go_on`
/// returns true for the reply.
///
/// # Errors
/// When the gateways cannot be found.
pub(crate) fn send(
    state: BorrowedFd<'_>,
    request: &Request,
    mut go_on: impl FnMut(Reply) -> bool,
) -> io::Result<()> {
    let directory = match Directory::open(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for name in directory.names()? {
        let Some((socket, nonce)) = directory.connect(&name)? else { continue };
        limit_time(&socket)?;
        let pid = sockopt::socket_peercred(&socket)?.pid;
        let mut socket = File::from(socket);
        let reply =
            write_line(&mut socket, &Message { version: VERSION, nonce, request: request.clone() })
                .and_then(|()| read_line(&socket, MAX_REPLY));
        match reply {
            Ok(reply) => {
                if !go_on(reply) {
                    break;
                }
            }
            // The gateway has ended meanwhile, and with it its pending requests.
            Err(error) if is_gone(&error) => {}
            // Requests wait in other gateways, too.
            Err(error) => {
                static NOTED: Once = Once::new();
                // `approve --watch` asks again and again.
                NOTED.call_once(|| {
                    errln!(
                        "portcullis: warning: the gateway process {pid} does not answer ({error}): \
                         requests that wait in it are left out"
                    );
                    errln!("  help: continue it with `kill -CONT {pid}`, or end it");
                });
            }
        }
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::BrokenPipe | K::ConnectionReset | K::UnexpectedEof)
}

fn limit_time(socket: &OwnedFd) -> io::Result<()> {
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(socket.as_fd(), direction, Some(LINE_TIMEOUT))?;
    }
    Ok(())
}

fn write_line(socket: &mut File, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

fn read_line<T: DeserializeOwned>(socket: &File, most: u64) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(socket.take(most)).read_until(b'\n', &mut line)?;
    // A connection that ends within a line counts as closed.
    let line = line.strip_suffix(b"\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let text = strict_json::check_line(line).map_err(io::Error::other)?;
    Ok(serde_json::from_str(text)?)
}
