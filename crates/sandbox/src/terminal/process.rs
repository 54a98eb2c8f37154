//! The process between the operator's terminal and a program's pseudo-terminal.
//!
//! It holds these and a channel to the broker, and can open, make or run nothing else. It ends with
//! the broker, when that says that the program has ended, with the operator's terminal, or when the
//! operator wants out, and puts the terminal back in each case.

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
    gate::restrict_front,
    process,
    stage::{StageError, failed},
};

/// How much is read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// How much that was typed, or is answered, waits for a program that does not read, in bytes.
const MAX_WAITING: usize = 64 * 1024;
/// How long what a terminal still sends is waited for once it was told to send no more.
const LAST_REPORTS: Duration = Duration::from_millis(100);
/// How often a terminal is looked at that no program has open.
const REOPENED: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How much of what was written is shown after the end, in bytes: more than a terminal holds.
const MAX_LAST: usize = 1 << 20;

/// From the broker, with the operator's terminal, to read and to write, and the outer end of the
/// program's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The operator's terminal takes what it gets for UTF-8.
    pub(super) is_utf8: bool,
}

/// From the broker: the program runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin;

/// Runs the process.
pub(crate) fn run() -> Result<u8, StageError> {
    process::close_inherited().map_err(failed("close inherited descriptors"))?;
    let control = Channel::from_stdin()?;
    // Whoever stops the broker, or its terminal, stops this by the channel; it has to put the
    // terminal back.
    let signals = signals().map_err(failed("watch for signals"))?;
    let (order, descriptors) = control.receive::<Order>()?;
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
    let mut between = Between { control, signals, operator, outer, is_open, filter, keys, waiting };
    let copied = between.copy();
    between.leave();
    copied.map(|()| 0).map_err(failed("copy what a terminal shows"))
}

/// Blocks what would end or stop this process, and makes the two readable that are about the
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

struct Between {
    control: Channel,
    signals: SignalFd,
    operator: OperatorTerminal,
    outer: OwnedFd,
    /// A program has the inner end open, as far as is known.
    is_open: bool,
    filter: Filter,
    keys: Keys,
    /// For the program, which has not read it yet.
    waiting: Vec<u8>,
}

impl Between {
    /// Takes the terminal over and copies, to the end.
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
        // It would say all the time that nobody has it open.
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

    /// Takes what was typed; false when the terminal is gone or the operator wants out.
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

    /// Shows what was written, if something was, and returns how much.
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

    /// Shows what was written before the end.
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

    /// Keeps what is for the program. What is too much is lost, as in a terminal whose program
    /// does not read.
    fn hold(&mut self, bytes: &[u8]) {
        let room = MAX_WAITING.saturating_sub(self.waiting.len());
        self.waiting.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    /// Gives the program what it takes.
    fn type_on(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            match write(&self.outer, &self.waiting) {
                Ok(written) => drop(self.waiting.drain(..written.min(self.waiting.len()))),
                // That it is gone is noticed where it is read from.
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
                // Its flags are also those of whoever started this.
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

    /// Passes a new size on, and takes the terminal over again after the program was stopped and
    /// goes on in the foreground.
    fn resized(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.read_signal()? {
            let is_continued = i32::try_from(signal.ssi_signo) == Ok(Signal::SIGCONT as i32);
            if is_continued && self.operator.is_ours() {
                self.operator.make_raw()?;
            }
        }
        // One that is gone is noticed elsewhere.
        let _ = self.operator.copy_size(&self.outer);
        if let Some((rows, columns)) = self.operator.size() {
            self.filter.resize(rows, columns);
        }
        Ok(())
    }

    /// Puts the terminal back. Where the broker is gone, whoever started it may have it by now.
    fn leave(&self) {
        if !self.operator.is_raw() {
            return;
        }
        let undo = self.filter.undo();
        // It waits for room as long as that takes; the broker kills who waits too long.
        let _ = self.show(undo.as_bytes());
        if self.filter.changes().is_reporting() && self.operator.is_ours() {
            self.discard(Instant::now() + LAST_REPORTS);
        }
        self.operator.restore("");
    }

    /// Throws away what the terminal sends until then.
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
