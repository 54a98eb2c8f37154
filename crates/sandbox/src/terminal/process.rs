//! The process between the operator's terminal and a program's pseudo-terminal.
//!
//! It has these and a channel to the broker open, and can open, make or run nothing else. It ends
//! with the broker, on the broker's message that the program has ended, with the operator's
//! terminal, or when the operator types the escape key, and restores the terminal in each case.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, read, write},
};
use serde::{Deserialize, Serialize};

use super::{OperatorTerminal, filter::Filter, keys::Keys};
use crate::{
    channel::Channel,
    confine::restrict_front,
    process,
    stage::{StageError, failed},
};

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;
/// Maximum of bytes of input and answers that wait for a program that does not read.
const MAX_WAITING: usize = 64 * 1024;
/// Time in which reports of the terminal are still read after it was told to send no more.
const MAX_LAST_REPORTS: Duration = Duration::from_millis(100);
/// Interval at which a pseudo-terminal is read that no program has open.
const REOPENED: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Maximum of bytes of output shown after the end: more than a terminal buffers.
const MAX_LAST: usize = 1 << 20;

/// Order from the broker. The operator's terminal, to read and to write, and the outer end of the
/// program's are attached.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TerminalOrder {
    /// True if the operator's terminal decodes UTF-8.
    pub(super) is_utf8: bool,
}

/// Message from the broker: the program runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin;

/// Runs the process.
pub(crate) fn run() -> Result<u8, StageError> {
    process::close_inherited().map_err(failed("close inherited descriptors"))?;
    let control = Channel::from_stdin()?;
    // The end of the broker or of its terminal stops this process by the channel: it must restore
    // the terminal first.
    let signals = signals().map_err(failed("watch for signals"))?;
    let (order, descriptors) = control.receive::<TerminalOrder>()?;
    let wrong = |_| failed("receive a terminal")(io::Error::from(io::ErrorKind::InvalidData));
    let [input, output, outer] = <[OwnedFd; 3]>::try_from(descriptors).map_err(wrong)?;
    let operator = OperatorTerminal::new(input, output).map_err(failed("look at the terminal"))?;
    let flags = fcntl_getfl(&outer).map_err(failed("set up a pseudo-terminal"))?;
    fcntl_setfl(&outer, flags | OFlags::NONBLOCK).map_err(failed("set up a pseudo-terminal"))?;
    let confined = restrict_front().map(drop).map_err(|error| error.to_string());
    control.send(&confined, &[])?;
    if confined.is_err() {
        return Ok(1);
    }
    let (Begin, _) = control.receive()?;
    let mut filter = Filter::new(order.is_utf8);
    if let Some((rows, columns)) = operator.size() {
        filter.begin(rows, columns);
    }
    let keys = Keys::default();
    let waiting = Vec::new();
    let is_open = true;
    let mut between =
        TerminalForwarder { control, signals, operator, outer, is_open, filter, keys, waiting };
    let copied = between.copy();
    between.leave();
    copied.map(|()| 0).map_err(failed("copy what a terminal shows"))
}

/// Blocks signals that would end or stop this process, and makes the two readable that concern the
/// terminal.
fn signals() -> io::Result<SignalFd> {
    let mut blocked = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        blocked.add(signal);
    }
    let mut watched = SigSet::empty();
    for signal in [Signal::SIGWINCH, Signal::SIGCONT] {
        watched.add(signal);
        blocked.add(signal);
    }
    blocked.thread_block()?;
    Ok(SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

struct TerminalForwarder {
    control: Channel,
    signals: SignalFd,
    operator: OperatorTerminal,
    outer: OwnedFd,
    /// True if a program is known to have the inner end open.
    is_open: bool,
    filter: Filter,
    keys: Keys,
    /// Bytes that the program has not read yet.
    waiting: Vec<u8>,
}

impl TerminalForwarder {
    /// Takes the terminal over and copies until the end.
    fn copy(&mut self) -> io::Result<()> {
        self.operator.make_raw()?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let [control, input, signals] = self.wait()?;
            if !control.is_empty() {
                return self.show_last(&mut chunk);
            }
            if !signals.is_empty() {
                self.resized()?;
            }
            if !input.is_empty() && !self.take_typed(&mut chunk)? {
                return Ok(());
            }
            self.type_on()?;
            self.show_written(&mut chunk)?;
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> io::Result<[PollFlags; 3]> {
        let writes = if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut wanted = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.operator.input, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        // It would be ready all the time, since nothing has it open.
        if self.is_open {
            wanted.push(PollFd::new(&self.outer, PollFlags::IN | writes));
        }
        let limit = (!self.is_open).then_some(&REOPENED);
        match poll(&mut wanted, limit) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut found = wanted.iter().map(PollFd::revents);
        Ok([(); 3].map(|()| found.next().unwrap_or(PollFlags::empty())))
    }

    /// Reads the operator's input; returns false when the terminal is closed or the operator asked
    /// to leave.
    fn take_typed(&mut self, chunk: &mut [u8]) -> io::Result<bool> {
        match read(&self.operator.input, &mut *chunk) {
            Ok(0) | Err(Errno::IO) => Ok(false),
            Ok(got) => {
                let typed = chunk.get(..got).unwrap_or_default();
                self.hold(typed);
                Ok(!self.keys.typed(typed, Instant::now()))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Shows pending output of the program, and returns its size in bytes.
    fn show_written(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        let got = match read(&self.outer, &mut *chunk) {
            Ok(got) => got,
            Err(Errno::IO) => {
                self.is_open = false;
                return Ok(0);
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        self.is_open = true;
        let passed = self.filter.pass(chunk.get(..got).unwrap_or_default());
        self.hold(&passed.replies);
        self.show(&passed.output)?;
        Ok(got)
    }

    /// Shows the output that was written before the end.
    fn show_last(&mut self, chunk: &mut [u8]) -> io::Result<()> {
        let mut shown = 0;
        while shown < MAX_LAST {
            match self.show_written(chunk)? {
                0 => break,
                got => shown += got,
            }
        }
        Ok(())
    }

    /// Buffers bytes for the program. Excess bytes are lost, as in a terminal whose program does
    /// not read.
    fn hold(&mut self, bytes: &[u8]) {
        let room = MAX_WAITING.saturating_sub(self.waiting.len());
        self.waiting.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    /// Writes buffered bytes to the program as far as it takes them.
    fn type_on(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            match write(&self.outer, &self.waiting) {
                Ok(written) => drop(self.waiting.drain(..written.min(self.waiting.len()))),
                // A closed terminal is noticed by the next read.
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn show(&self, output: &[u8]) -> rustix::io::Result<()> {
        let mut rest = output;
        while !rest.is_empty() {
            match write(&self.operator.output, rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                // Its flags are shared with the process that started the broker.
                Err(Errno::AGAIN) => {
                    let mut room = [PollFd::new(&self.operator.output, PollFlags::OUT)];
                    let _ = poll(&mut room, None);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies a new size, and takes the terminal over again after the program was stopped and
    /// continues in the foreground.
    fn resized(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.read_signal()? {
            let is_continued = i32::try_from(signal.ssi_signo) == Ok(Signal::SIGCONT as i32);
            if is_continued && self.operator.is_ours() {
                self.operator.make_raw()?;
            }
        }
        // A closed terminal is noticed elsewhere.
        let _ = self.operator.copy_size(&self.outer);
        if let Some((rows, columns)) = self.operator.size() {
            self.filter.resize(rows, columns);
        }
        Ok(())
    }

    /// Restores the terminal. If the broker is gone, another program may use it by now.
    fn leave(&self) {
        if !self.operator.is_raw() {
            return;
        }
        let undo = self.filter.undo();
        // It waits for room as long as needed; the broker kills a process that waits too long.
        let _ = self.show(undo.as_bytes());
        if self.filter.changes().is_reporting() && self.operator.is_ours() {
            self.discard(Instant::now() + MAX_LAST_REPORTS);
        }
        self.operator.restore("");
    }

    /// Discards input of the terminal until `end`.
    fn discard(&self, end: Instant) {
        let mut chunk = [0; 1024];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else { return };
            let mut wanted = [PollFd::new(&self.operator.input, PollFlags::IN)];
            match poll(&mut wanted, Some(&left)) {
                Ok(0) | Err(_) => return,
                Ok(_) => match read(&self.operator.input, &mut chunk) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
            }
        }
    }
}
