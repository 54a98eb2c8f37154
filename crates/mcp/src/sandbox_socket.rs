//! The MCP server of the sandbox socket: a client sends its token, and is served as part of
//! the session for which the token was issued.
//!
//! The client is served like any other MCP client, but the editor's user gives approvals:
//! the client here is the agent itself, which must not.

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

use crate::{
    gateway::{Gateway, TOKEN_PREFIX},
    lock,
    model::Session,
};

use crate::{self as mcp, attach::AttachTokens};

/// Timeout for the token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A token's length in bytes, and the end of its line.
const TOKEN_LINE_LENGTH: usize = TOKEN_PREFIX.len() + 32 + 1;
/// Maximum of connections at once.
const MAX_CONNECTIONS: usize = 48;
/// Time for which a failed connection keeps its place, so that failures cannot follow each
/// other at once.
const FAILURE_DELAY: Duration = Duration::from_millis(100);
/// Time for which a connection waits for a place. Failed connections leave theirs sooner.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of checks for a place.
const PLACE_INTERVAL: Duration = Duration::from_millis(10);
/// Timeout of a write to a client that does not read, after which the writer checks if
/// others wait.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of checks for the end of the last threads.
const STOP_INTERVAL: Duration = Duration::from_millis(2);
/// Minimum interval of records about failed connections.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// The source of connections.
#[derive(Debug)]
pub enum Connections {
    /// A listening socket.
    Listener(OwnedFd),
    /// A process that accepts connections and sends each in a message.
    Relay(OwnedFd),
}

impl Connections {
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

    /// Ends the source, and a pending wait for the next connection.
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
    // The process had no descriptor left for it.
    Ok(connection.ok_or(Errno::MFILE)?.into())
}

/// The server. It runs until it is stopped.
pub struct SandboxSocket {
    connections: Connections,
    tokens: Arc<AttachTokens>,
    accepting: JoinHandle<()>,
}

impl SandboxSocket {
    /// Accepts connections in a thread of its own. `config` applies to every client, except
    /// for its session.
    ///
    /// # Errors
    /// When the thread does not start.
    pub fn start(
        connections: Connections,
        gateway: Arc<Gateway>,
        tokens: Arc<AttachTokens>,
        config: mcp::Config,
    ) -> io::Result<Self> {
        let (accepted, shared) = (connections.try_clone()?, Arc::clone(&tokens));
        let accepting = thread::Builder::new()
            .name("mcp-sandbox".to_owned())
            .spawn(move || accept(&accepted, &gateway, &shared, &config))?;
        Ok(Self { connections, tokens, accepting })
    }

    /// Disconnects all clients, and waits until requests that have begun are done, at most
    /// for `timeout`.
    pub fn stop(self, timeout: Duration) {
        self.tokens.close();
        self.connections.end();
        let end = Instant::now() + timeout;
        while !self.accepting.is_finished() {
            if Instant::now() >= end {
                tracing::warn!("a thread of the sandbox socket does not end");
                return;
            }
            thread::sleep(STOP_INTERVAL);
        }
    }
}

fn accept(
    connections: &Connections,
    gateway: &Arc<Gateway>,
    tokens: &Arc<AttachTokens>,
    config: &mcp::Config,
) {
    let mut serving: Vec<JoinHandle<()>> = Vec::new();
    let failed = Arc::new(FailedConnections::new(Arc::clone(gateway), config.session.clone()));
    loop {
        let stream = match connections.next() {
            Ok(stream) => stream,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE) => {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(_) => break,
        };
        if !has_place(&mut serving) {
            drop(stream);
            failed.note("too many at once");
            continue;
        }
        let (gateway, tokens, config) = (Arc::clone(gateway), Arc::clone(tokens), config.clone());
        let failed = Arc::clone(&failed);
        let run = move || {
            if let Err(error) = serve(stream, &gateway, &tokens, config) {
                failed.note(&error.to_string());
                thread::sleep(FAILURE_DELAY);
            }
        };
        match thread::Builder::new().name("mcp-attached".to_owned()).spawn(run) {
            Ok(thread) => serving.push(thread),
            Err(error) => tracing::error!(%error, "no thread for the agent's MCP client"),
        }
    }
    for thread in serving {
        let _ = thread.join();
    }
    failed.finish();
}

/// Waits until fewer than [`MAX_CONNECTIONS`] are served; returns false after [`PLACE_TIMEOUT`].
fn has_place(serving: &mut Vec<JoinHandle<()>>) -> bool {
    let end = Instant::now() + PLACE_TIMEOUT;
    loop {
        serving.retain(|thread| !thread.is_finished());
        if serving.len() < MAX_CONNECTIONS {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(PLACE_INTERVAL);
    }
}

/// Failed connections. An agent can make thousands of them in a second, so the first is
/// recorded at once, and later ones periodically, by their number.
struct FailedConnections {
    gateway: Arc<Gateway>,
    session: Session,
    counts: Mutex<FailureCounts>,
}

#[derive(Default)]
struct FailureCounts {
    unrecorded: u64,
    /// The reason of the last failure.
    reason: String,
    recorded: Option<Instant>,
}

impl FailedConnections {
    fn new(gateway: Arc<Gateway>, session: Session) -> Self {
        Self { gateway, session, counts: Mutex::default() }
    }

    /// Counts a failure.
    fn note(&self, reason: &str) {
        let mut counts = lock(&self.counts);
        counts.unrecorded = counts.unrecorded.saturating_add(1);
        reason.clone_into(&mut counts.reason);
        if counts.recorded.is_none_or(|recorded| recorded.elapsed() >= RECORD_INTERVAL) {
            self.record(&mut counts);
        }
    }

    /// Records failures not yet recorded.
    fn finish(&self) {
        let mut counts = lock(&self.counts);
        if counts.unrecorded > 0 {
            self.record(&mut counts);
        }
    }

    fn record(&self, counts: &mut FailureCounts) {
        counts.recorded = Some(Instant::now());
        let (connections, reason) =
            (std::mem::take(&mut counts.unrecorded), counts.reason.as_str());
        tracing::warn!(connections, reason, "connections from the sandbox failed");
        let facts =
            [("reason".to_owned(), reason.into()), ("connections".to_owned(), connections.into())];
        if let Err(error) = self.gateway.report(&self.session, "mcp.dropped", facts.into()) {
            tracing::error!(%error, "cannot record");
        }
    }
}

/// Reads a client's token, all of it within `timeout`: a client that sends a byte now and
/// then would keep its connection otherwise.
fn token(stream: &mut UnixStream, timeout: Duration) -> io::Result<[u8; TOKEN_LINE_LENGTH]> {
    let (mut token, mut have, end) = ([0; TOKEN_LINE_LENGTH], 0, Instant::now() + timeout);
    while let Some(rest) = token.get_mut(have..).filter(|rest| !rest.is_empty()) {
        let left = end.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(rest)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if Instant::now() >= end => return Err(io::ErrorKind::TimedOut.into()),
            more => have += more,
        }
    }
    stream.set_read_timeout(None)?;
    Ok(token)
}

fn serve(
    mut stream: UnixStream,
    gateway: &Arc<Gateway>,
    tokens: &Arc<AttachTokens>,
    config: mcp::Config,
) -> io::Result<()> {
    let token = token(&mut stream, TOKEN_TIMEOUT)
        .map_err(|error| io::Error::new(error.kind(), format!("no token: {error}")))?;
    let token = token.strip_suffix(b"\n").and_then(|token| std::str::from_utf8(token).ok());
    let client = token.and_then(|token| tokens.attach(token, stream.try_clone().ok()?));
    let reason = "the token is unknown, or there are too many clients";
    let client = client.ok_or_else(|| io::Error::other(reason))?;
    let session = client.session().clone();
    let config = mcp::Config { session, attached: Some(Arc::new(client)), ..config };
    // Lets the writer notice a client that does not read.
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let output = File::from(OwnedFd::from(stream.try_clone()?));
    let input = mcp::Input { stream: File::from(OwnedFd::from(stream.try_clone()?)), stop: None };
    let served = mcp::serve(gateway, config, input, output);
    // Ends a thread that still reads.
    let _ = stream.shutdown(Shutdown::Both);
    served.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_token_that_drips_keeps_no_connection() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let dripping = thread::spawn(move || {
            let mut dripped = 0;
            while theirs.write_all(b"0").is_ok() && dripped < TOKEN_LINE_LENGTH {
                thread::sleep(Duration::from_millis(150));
                dripped += 1;
            }
        });
        let error = token(&mut ours, Duration::from_millis(200)).unwrap_err();
        // The timeout passed between two bytes, or with one.
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error:?}");
        drop(ours);
        dripping.join().unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'0'; TOKEN_LINE_LENGTH]).unwrap();
        assert_eq!(token(&mut ours, Duration::from_secs(60)).unwrap(), [b'0'; TOKEN_LINE_LENGTH]);
    }
}
