//! Threads that copy between a program's standard streams and those of this process.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::{SigSet, Signal};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read, retry_on_intr, write},
    process::getpgrp,
    termios::tcgetpgrp,
};

/// Bytes of a program's output read at once.
const OUTPUT_CHUNK: usize = 64 * 1024;
/// Bytes of input read before the program asks for them. The program may never read them, and then
/// they are lost to later programs. It is also the pipe's size.
pub(super) const INPUT_CHUNK: usize = 4096;
/// Interval at which a read from the terminal is tried again while this process is in the
/// background.
const BACKGROUND_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A standard stream of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Error,
    /// Standard output and error, where they are the same file.
    Both,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "standard input",
            Self::Output => "standard output",
            Self::Error => "standard error",
            Self::Both => "standard output and error",
        })
    }
}

/// Copies a program's input or output from one descriptor to another.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub(super) from: OwnedFd,
    pub(super) to: OwnedFd,
    pub(super) stream: Stream,
}

impl Forwarder {
    /// Starts all of them, each in a thread of its own.
    pub(super) fn start(all: Vec<Self>) -> io::Result<Outputs> {
        let (sender, copied) = channel();
        let mut pending = Vec::new();
        for forwarder in all {
            let (stream, sender) = (forwarder.stream, sender.clone());
            let thread = thread::Builder::new().name("stream".to_owned());
            thread.spawn(move || forwarder.run(&sender))?;
            // The thread of the input may still wait for a terminal at the end.
            if stream != Stream::Input {
                pending.push(stream);
            }
        }
        Ok(Outputs { pending, copied: Some(copied) })
    }

    fn run(self, sender: &Sender<Copied>) {
        let Self { from, to, stream } = self;
        let mut ends_line = true;
        let size = if stream == Stream::Input { INPUT_CHUNK } else { OUTPUT_CHUNK };
        // In the background, the terminal would stop this process with them, and not the command.
        let blocked: SigSet = [Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect();
        let blocked = blocked.thread_block().map_err(|_| Errno::INVAL);
        let result = blocked.and_then(|()| copy(&from, &to, size, &mut ends_line));
        // A reader that is gone is no failure: the program is notified by its own pipe.
        let result = result.or_else(|error| match error {
            Errno::PIPE | Errno::CONNRESET => Ok(()),
            error => Err(error.into()),
        });
        drop((from, to));
        // Fails only if nothing waits for it any more.
        let _ = sender.send(Copied { stream, ends_line, result });
    }
}

/// Result of copying one stream.
#[derive(Debug)]
struct Copied {
    stream: Stream,
    /// True if the last byte, if there is one, ended a line.
    ends_line: bool,
    result: io::Result<()>,
}

/// Copies until the input ends, or `to` has no reader any more.
fn copy(from: &OwnedFd, to: &OwnedFd, size: usize, ends_line: &mut bool) -> Result<(), Errno> {
    let mut buffer = vec![0; size];
    loop {
        // Bytes stay unread while there is no room for them.
        if !wait(&mut [PollFd::new(to, PollFlags::OUT)])?
            || !wait(&mut [PollFd::new(to, PollFlags::empty()), PollFd::new(from, PollFlags::IN)])?
        {
            return Ok(());
        }
        let count = match read(from, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // A terminal refuses reads in the background: its input is for the foreground.
            Err(Errno::IO) if tcgetpgrp(from).is_ok_and(|group| group != getpgrp()) => {
                thread::sleep(BACKGROUND_RETRY_INTERVAL);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut rest = buffer.get(..count).unwrap_or_default();
        while !rest.is_empty() {
            match write(to, rest) {
                Ok(written) => {
                    *ends_line = rest.get(..written).unwrap_or_default().ends_with(b"\n");
                    rest = rest.get(written..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                // Other processes that share it may have made it non-blocking.
                Err(Errno::AGAIN) => {
                    wait(&mut [PollFd::new(to, PollFlags::OUT)])?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Waits for one of the descriptors; returns false when the first has no reader any more.
fn wait(descriptors: &mut [PollFd<'_>]) -> Result<bool, Errno> {
    retry_on_intr(|| poll(descriptors, None))?;
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    Ok(!descriptors.first().is_some_and(|first| first.revents().intersects(gone)))
}

/// A program's output on its way to the streams of this process.
#[derive(Debug, Default)]
pub struct Outputs {
    pending: Vec<Stream>,
    copied: Option<Receiver<Copied>>,
}

/// Result of forwarding the output.
#[derive(Debug)]
pub struct Forwarded {
    /// Streams that could not be read or written, each with the error.
    pub failures: Vec<(Stream, io::Error)>,
    /// True if the last byte on standard error, if there is one, ended a line.
    pub ends_line: bool,
}

impl Outputs {
    /// Waits until the output of a program that has ended is written, or has no reader any more.
    /// Gives up at `end`.
    pub fn finish(mut self, end: Option<Instant>) -> Forwarded {
        let mut forwarded = Forwarded { failures: Vec::new(), ends_line: true };
        while let (false, Some(copied)) = (self.pending.is_empty(), &self.copied) {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match copied.recv_timeout(left.unwrap_or(Duration::MAX)) {
                Ok(Copied { stream, ends_line, result }) => {
                    self.pending.retain(|pending| *pending != stream);
                    let is_shown = matches!(stream, Stream::Error | Stream::Both);
                    forwarded.ends_line &= ends_line || !is_shown;
                    forwarded.failures.extend(result.err().map(|error| (stream, error)));
                }
                Err(reason) => {
                    let why = match reason {
                        RecvTimeoutError::Timeout => "nobody read it in time",
                        RecvTimeoutError::Disconnected => "its thread has ended",
                    };
                    let given_up = self.pending.drain(..);
                    forwarded.failures.extend(given_up.map(|s| (s, io::Error::other(why))));
                    forwarded.ends_line = false;
                }
            }
        }
        // The thread of the input may have ended after the others, or still run.
        for Copied { stream, result, .. } in self.copied.iter().flat_map(Receiver::try_iter) {
            forwarded.failures.extend(result.err().map(|error| (stream, error)));
        }
        forwarded
    }
}
