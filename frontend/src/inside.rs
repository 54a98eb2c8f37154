//! The MCP server for the agent in its cell: whoever comes through the hatch
//! says the word of an invitation, and is served as a part of that session.
//!
//! Everything is as for any other MCP client, but that questions go to the
//! editor's user: the client here is the agent itself, which must not answer.

use std::{
    fs::File,
    io::{self, IoSliceMut, Read as _},
    mem::MaybeUninit,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, accept_with, recvmsg,
    },
};

use crate::{gateway::Gateway, lock, model::Session};

use super::{guests::Guests, mcp};

/// How long whoever comes may take to say its word.
const PATIENCE: Duration = Duration::from_secs(5);
/// A word's length in bytes, and the end of its line.
const WORD: usize = 32 + 1;
/// Connections served or heard out at once.
const MOST: usize = 48;
/// How long one that came to nothing keeps its place, so that the next is not there
/// at once.
const PAUSE: Duration = Duration::from_millis(100);
/// How long nobody else is let in when all places are taken.
const FULL: Duration = Duration::from_millis(10);
/// How long the system writes to one that does not read, before it is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often connections that came to nothing are told of.
const EVERY: Duration = Duration::from_secs(60);

/// Where connections come from.
#[derive(Debug)]
pub enum Arrivals {
    /// A socket that listens.
    Listener(OwnedFd),
    /// A process that makes connections and sends each in a message.
    Relay(OwnedFd),
}

impl Arrivals {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Listener(socket) => Self::Listener(socket.try_clone()?),
            Self::Relay(socket) => Self::Relay(socket.try_clone()?),
        })
    }

    /// Waits for the next connection.
    fn next(&self) -> Result<UnixStream, Errno> {
        match self {
            Self::Listener(socket) => Ok(accept_with(socket, SocketFlags::CLOEXEC)?.into()),
            Self::Relay(socket) => receive(socket),
        }
    }

    /// Nothing more comes, and whoever waits learns it.
    fn end(&self) {
        let (Self::Listener(socket) | Self::Relay(socket)) = self;
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

fn receive(socket: &OwnedFd) -> Result<UnixStream, Errno> {
    let mut message = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [IoSliceMut::new(&mut message)];
    if recvmsg(socket, &mut message, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let connection = control.drain().find_map(|received| match received {
        RecvAncillaryMessage::ScmRights(mut connections) => connections.next(),
        _ => None,
    });
    // There was no number left for it.
    Ok(connection.ok_or(Errno::MFILE)?.into())
}

/// The server. It goes on until it is ended.
pub struct Inside {
    arrivals: Arrivals,
    guests: Arc<Guests>,
    taking: JoinHandle<()>,
}

impl Inside {
    /// Takes connections in a thread of its own. `config` is for every guest but for its
    /// session.
    ///
    /// # Errors
    /// When the thread does not start.
    pub fn attend(
        arrivals: Arrivals,
        gateway: Arc<Gateway>,
        guests: Arc<Guests>,
        config: mcp::Config,
    ) -> io::Result<Self> {
        let (theirs, among) = (arrivals.try_clone()?, Arc::clone(&guests));
        let taking = thread::Builder::new()
            .name("mcp-inside".to_owned())
            .spawn(move || take(&theirs, &gateway, &among, &config))?;
        Ok(Self { arrivals, guests, taking })
    }

    /// Sends everybody away, and waits until what they began is done.
    pub fn end(self) {
        self.guests.close();
        self.arrivals.end();
        let _ = self.taking.join();
    }
}

fn take(arrivals: &Arrivals, gateway: &Arc<Gateway>, guests: &Arc<Guests>, config: &mcp::Config) {
    let mut serving: Vec<JoinHandle<()>> = Vec::new();
    let vain = Arc::new(Vain::new(Arc::clone(gateway), config.session.clone()));
    loop {
        let stream = match arrivals.next() {
            Ok(stream) => stream,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE) => {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(_) => break,
        };
        serving.retain(|thread| !thread.is_finished());
        if serving.len() >= MOST {
            drop(stream);
            vain.note("too many at once");
            thread::sleep(FULL);
            continue;
        }
        let (gateway, guests, config) = (Arc::clone(gateway), Arc::clone(guests), config.clone());
        let vain = Arc::clone(&vain);
        let run = move || {
            if let Err(error) = serve(stream, &gateway, &guests, config) {
                vain.note(&error.to_string());
                thread::sleep(PAUSE);
            }
        };
        match thread::Builder::new().name("mcp-guest".to_owned()).spawn(run) {
            Ok(thread) => serving.push(thread),
            Err(error) => tracing::error!(%error, "no thread for the agent's MCP client"),
        }
    }
    for thread in serving {
        let _ = thread.join();
    }
    vain.finish();
}

/// Connections that came to nothing. An agent makes thousands of them in a second, so
/// the first is told of at once, and the others now and then, by their number.
struct Vain {
    gateway: Arc<Gateway>,
    session: Session,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    untold: u64,
    /// Why the last of them did.
    why: String,
    told: Option<Instant>,
}

impl Vain {
    fn new(gateway: Arc<Gateway>, session: Session) -> Self {
        Self { gateway, session, counts: Mutex::default() }
    }

    /// Counts one more.
    fn note(&self, why: &str) {
        let mut counts = lock(&self.counts);
        counts.untold = counts.untold.saturating_add(1);
        why.clone_into(&mut counts.why);
        if counts.told.is_none_or(|told| told.elapsed() >= EVERY) {
            self.tell(&mut counts);
        }
    }

    /// Tells of those that were not told of.
    fn finish(&self) {
        let mut counts = lock(&self.counts);
        if counts.untold > 0 {
            self.tell(&mut counts);
        }
    }

    fn tell(&self, counts: &mut Counts) {
        counts.told = Some(Instant::now());
        let (connections, why) = (std::mem::take(&mut counts.untold), counts.why.as_str());
        tracing::warn!(connections, why, "connections from the agent's cell came to nothing");
        let facts =
            [("why".to_owned(), why.into()), ("connections".to_owned(), connections.into())];
        if let Err(error) = self.gateway.report(&self.session, "mcp.dropped", facts.into()) {
            tracing::error!(%error, "cannot record");
        }
    }
}

/// What whoever comes says first, all of it within `patience`: one that sends a byte
/// now and then would keep us.
fn word(stream: &mut UnixStream, patience: Duration) -> io::Result<[u8; WORD]> {
    let (mut word, mut have, end) = ([0; WORD], 0, Instant::now() + patience);
    while let Some(rest) = word.get_mut(have..).filter(|rest| !rest.is_empty()) {
        let left = end.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(rest)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if Instant::now() >= end => return Err(io::ErrorKind::TimedOut.into()),
            more => have += more,
        }
    }
    stream.set_read_timeout(None)?;
    Ok(word)
}

fn serve(
    mut stream: UnixStream,
    gateway: &Arc<Gateway>,
    guests: &Arc<Guests>,
    config: mcp::Config,
) -> io::Result<()> {
    let word = word(&mut stream, PATIENCE)
        .map_err(|error| io::Error::new(error.kind(), format!("no word came: {error}")))?;
    let word = word.strip_suffix(b"\n").and_then(|word| std::str::from_utf8(word).ok());
    let guest = word.and_then(|word| guests.admit(word, stream.try_clone().ok()?));
    let guest = guest.ok_or_else(|| io::Error::other("no invitation, or too many guests"))?;
    let session = guest.session().clone();
    let config = mcp::Config { session, guest: Some(Arc::new(guest)), ..config };
    // So that one that does not read is looked after.
    stream.set_write_timeout(Some(LOOK))?;
    let output = File::from(OwnedFd::from(stream.try_clone()?));
    let input = mcp::Input { stream: File::from(OwnedFd::from(stream.try_clone()?)), stop: None };
    let served = mcp::serve(gateway, config, input, output);
    // A thread that still reads must not go on.
    let _ = stream.shutdown(Shutdown::Both);
    served.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_word_that_drips_keeps_nobody() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let dripping = thread::spawn(move || {
            let mut dripped = 0;
            while theirs.write_all(b"0").is_ok() && dripped < WORD {
                thread::sleep(Duration::from_millis(50));
                dripped += 1;
            }
        });
        let error = word(&mut ours, Duration::from_millis(200)).unwrap_err();
        // Between two bytes, or with one.
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error:?}");
        drop(ours);
        dripping.join().unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'0'; WORD]).unwrap();
        assert_eq!(word(&mut ours, Duration::from_secs(60)).unwrap(), [b'0'; WORD]);
    }
}
