//! The client's side of the named pipes that lead to a gateway (`named_pipes` of the
//! sandbox).

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, Mode, OFlags, fcntl_setfl, flock, open},
    io::Errno,
};

use crate::{
    app::failure::{Context as _, Failure},
    gateway::random_hex,
    sandbox::{ANNOUNCEMENTS, END, MAX_CLIENTS, NONCE, pipe_in, pipe_out},
};

/// Timeout for the gateway to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until the gateway is connected; returns its input and its output.
pub(super) fn connect(directory: &Path) -> Result<(File, FromGateway), Failure> {
    let reach = || format!("cannot reach the gateway at `{}`", directory.display());
    let (slot, output) = free_slot(directory).or_fail(reach())?.ok_or_else(|| {
        Failure::new(format_args!(
            "all {MAX_CLIENTS} connections to the gateway are taken: there are no more where the agent is \
             only partly confined"
        ))
        .help("end an MCP client of the agent, or one of its sessions")
    })?;
    let input = opened(directory.join(pipe_in(slot)), OFlags::WRONLY).or_fail(reach())?;
    let announcements = opened(directory.join(ANNOUNCEMENTS), OFlags::WRONLY).or_fail(reach())?;
    let nonce = random_hex::<{ NONCE / 2 }>().or_fail(reach())?;
    // A single write, which pipe(7) keeps together, on a line of its own.
    rustix::io::write(&announcements, format!("\n{slot} {nonce}\n").as_bytes()).or_fail(reach())?;
    let rest = after(&output, format!("\n{nonce}\n").as_bytes()).or_fail(reach())?;
    // They were non-blocking so far, in case nothing has the other ends open.
    fcntl_setfl(&input, OFlags::empty()).or_fail(reach())?;
    fcntl_setfl(&output, OFlags::empty()).or_fail(reach())?;
    Ok((input.into(), FromGateway { rest, output: output.into(), ended: false }))
}

/// Takes a free slot: its output pipe stays locked while it is open.
fn free_slot(directory: &Path) -> io::Result<Option<(usize, OwnedFd)>> {
    for slot in 0..MAX_CLIENTS {
        let output = opened(directory.join(pipe_out(slot)), OFlags::RDONLY)?;
        match flock(&output, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some((slot, output))),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn opened(path: PathBuf, flags: OFlags) -> io::Result<OwnedFd> {
    match open(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NXIO) => Err(io::Error::new(io::ErrorKind::NotConnected, "nobody is there")),
        other => Ok(other?),
    }
}

/// Reads up to `mark`; returns the bytes after it.
fn after(output: &OwnedFd, mark: &[u8]) -> io::Result<Vec<u8>> {
    let (end, mut buffered) = (Instant::now() + CONNECT_TIMEOUT, Vec::new());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut wanted = [PollFd::new(output, PollFlags::IN)];
        match poll(&mut wanted, Some(&left)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 4096];
        let got = match rustix::io::read(output, &mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::AGAIN | Errno::INTR) => continue,
            got => got?,
        };
        buffered.extend_from_slice(chunk.get(..got).unwrap_or_default());
        if let Some(at) = buffered.windows(mark.len()).position(|window| window == mark) {
            return Ok(buffered.split_off(at + mark.len()));
        }
        // The mark may have begun.
        buffered.drain(..buffered.len().saturating_sub(mark.len()));
    }
}

/// The gateway's output, without the byte that ends it.
pub(super) struct FromGateway {
    /// Bytes that came after the nonce.
    rest: Vec<u8>,
    output: File,
    ended: bool,
}

impl Read for FromGateway {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let got = match self.rest.is_empty() {
            true => self.output.read(buffer)?,
            false => {
                let got = self.rest.as_slice().read(buffer)?;
                self.rest.drain(..got);
                got
            }
        };
        let end =
            buffer.get(..got).and_then(|buffered| buffered.iter().position(|byte| *byte == END));
        self.ended = end.is_some();
        Ok(end.unwrap_or(got))
    }
}
