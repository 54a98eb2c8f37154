//! The desk at which a person at a shell answers what waits for approval.
//!
//! A gate puts up a UNIX socket in its state directory before it is confined.
//! Whoever comes must be the user for whom the gate runs (the kernel says who
//! it is) and know the nonce from a file that only that user can read: a
//! confined agent of the same user knows neither path nor nonce. One line is
//! read, one is written.

mod place;
mod wire;

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use portcullis_audit::Hash;
use portcullis_rpc::{random_hex, strict_json};
use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with, sockopt},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::gateway::Approvals;
use place::Folder;
use wire::Request;
pub use wire::{Item, ItemRule, Reply, Wish, Word};

/// How long either side may take to say its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a desk waits when nobody can be let in, as when the process has no
/// descriptor left. Whoever comes meanwhile stands in the kernel's queue.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest line that a desk reads, in bytes.
const LONGEST_WISH: u64 = 4096;
/// Longest line that a person's side reads, in bytes: all that may wait, with
/// every byte of it escaped.
const LONGEST_REPLY: u64 = 32 << 20;

/// A desk. Dropping it takes it down; nobody is heard any more.
#[derive(Debug)]
pub struct Desk {
    folder: Folder,
    name: String,
    nonce: String,
    listener: OwnedFd,
}

impl Desk {
    /// Puts up a desk in the state directory, and removes those of gates that
    /// died. To be called before the process is confined.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(state: BorrowedFd<'_>) -> io::Result<Self> {
        let folder = Folder::make(state)?;
        for name in folder.names()? {
            if folder.go_to(&name)?.is_none() {
                folder.take_down(&name);
            }
        }
        let (name, nonce) = (random_hex::<16>()?, random_hex::<32>()?);
        let listener = folder.put_up(&name, &nonce)?;
        Ok(Self { folder, name, nonce, listener })
    }

    /// Listens, in a thread of its own, until the process ends. What is wrong for
    /// a while ends nothing: without a desk, whatever waits is denied at last.
    ///
    /// # Errors
    /// When the thread does not start.
    pub fn attend(&self, approvals: Arc<Approvals>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let nonce = self.nonce.clone();
        let run = move || loop {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(visitor) => {
                    if let Err(error) = hear(visitor, &nonce, &approvals) {
                        tracing::debug!(%error, "somebody at the desk for approvals went away");
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK)) => {
                    tracing::error!(%error, "the desk for approvals is closed");
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "nobody can come to the desk for approvals now");
                    thread::sleep(PAUSE);
                }
            }
        };
        thread::Builder::new().name("approvals".to_owned()).spawn(run).map(drop)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.folder.take_down(&self.name);
    }
}

fn hear(visitor: OwnedFd, nonce: &str, approvals: &Approvals) -> io::Result<()> {
    limit_time(&visitor)?;
    let who = sockopt::socket_peercred(&visitor)?;
    let mut visitor = File::from(visitor);
    // Heard out in any case, or whoever came would not hear the answer.
    let request = read_line::<Request>(&visitor, LONGEST_WISH);
    if who.uid != rustix::process::geteuid() {
        tracing::warn!(uid = who.uid.as_raw(), "another user came to the desk for approvals");
        let why = "only the user for whom the gate runs may answer".to_owned();
        return say(&mut visitor, &Reply::Refused(why));
    }
    let reply = match request {
        Err(_) => Reply::Refused("the request cannot be understood".to_owned()),
        // Compared as hashes, so that the time tells nothing.
        Ok(request) if Hash::of(request.nonce.as_bytes()) != Hash::of(nonce.as_bytes()) => {
            tracing::warn!(pid = who.pid.as_raw_pid(), "a wrong nonce at the desk for approvals");
            Reply::Refused("the nonce is not that of the gate's file".to_owned())
        }
        Ok(request) => grant(&request.wish, who.pid.as_raw_pid(), approvals),
    };
    say(&mut visitor, &reply)
}

fn grant(wish: &Wish, pid: i32, approvals: &Approvals) -> Reply {
    let waiting = approvals.waiting();
    match wish {
        Wish::List => {
            Reply::Waiting(waiting.iter().map(|ticket| Item::from(ticket.question())).collect())
        }
        Wish::Answer { id, answer } => {
            // It is the gate's user, whom the question names.
            let user = waiting.first().map(|ticket| ticket.question().session.user.as_str());
            let by = format!("{} at a shell, process {pid}", user.unwrap_or("the operator"));
            match approvals.answer(id, (*answer).into(), &by) {
                Ok(ticket) => Reply::Taken(Box::new(Item::from(ticket.question()))),
                Err(error) => error.into(),
            }
        }
    }
}

/// Puts a wish to every desk of a state directory in turn, as long as `go_on`
/// with the reply says so.
///
/// # Errors
/// When a desk cannot be asked.
pub fn visit(
    state: BorrowedFd<'_>,
    wish: &Wish,
    mut go_on: impl FnMut(Reply) -> bool,
) -> io::Result<()> {
    let folder = match Folder::open(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for name in folder.names()? {
        let Some((socket, nonce)) = folder.go_to(&name)? else { continue };
        limit_time(&socket)?;
        let mut desk = File::from(socket);
        let reply = say(&mut desk, &Request { nonce, wish: wish.clone() })
            .and_then(|()| read_line(&desk, LONGEST_REPLY));
        match reply {
            Ok(reply) => {
                if !go_on(reply) {
                    break;
                }
            }
            // Its gate ended meanwhile, and with it whatever waited there.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
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
        sockopt::set_socket_timeout(socket.as_fd(), direction, Some(PATIENCE))?;
    }
    Ok(())
}

fn say(socket: &mut File, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

fn read_line<T: DeserializeOwned>(socket: &File, most: u64) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(socket.take(most)).read_until(b'\n', &mut line)?;
    // A peer that ended in the middle of its line is gone.
    let line = line.strip_suffix(b"\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let text = strict_json::check_line(line).map_err(io::Error::other)?;
    Ok(serde_json::from_str(text)?)
}
