//! The broker's side of the connection between the operator's terminal and a program's
//! pseudo-terminal.
//!
//! A process of its own (`process`) copies the operator's input and the program's output, the
//! latter through an allow list (`filter`). It is confined to its open descriptors, so that the
//! broker still reads nothing that an agent wrote. Both it and the broker restore the terminal, so
//! that the end of either leaves it as it was.

mod changes;
mod cursor;
mod filter;
mod keys;
pub(super) mod process;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::fstat,
    process::{PidfdFlags, getpgrp, pidfd_open},
    termios::{
        InputModes, OptionalActions, QueueSelector, Termios, isatty, tcflush, tcgetattr, tcgetpgrp,
        tcgetwinsize, tcsetattr, tcsetwinsize,
    },
};

use self::changes::{BOTTOM, Changes};
use super::{channel::Channel, launch_error::LaunchError, process::Running, stage::Stage};

/// Timeout of the start of the process.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of the wait for room in the terminal when it is restored.
const ROOM_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The operator's terminal, with its original settings.
#[derive(Debug)]
pub(super) struct OperatorTerminal {
    input: OwnedFd,
    output: OwnedFd,
    attributes: Termios,
}

impl OperatorTerminal {
    /// Opens the terminal of standard input and output.
    pub(super) fn open() -> io::Result<Self> {
        Self::new(
            io::stdin().as_fd().try_clone_to_owned()?,
            io::stdout().as_fd().try_clone_to_owned()?,
        )
    }

    fn new(input: OwnedFd, output: OwnedFd) -> io::Result<Self> {
        let attributes = tcgetattr(&input)?;
        Ok(Self { input, output, attributes })
    }

    /// Gives a pseudo-terminal the size of this one and its settings, such as the erase character.
    fn copy_to(&self, outer: &OwnedFd) -> io::Result<()> {
        tcsetattr(outer, OptionalActions::Now, &self.attributes)?;
        self.copy_size(outer)
    }

    fn copy_size(&self, outer: &OwnedFd) -> io::Result<()> {
        Ok(tcsetwinsize(outer, tcgetwinsize(&self.input)?)?)
    }

    /// Returns rows and columns, if the terminal reports them.
    fn size(&self) -> Option<(u16, u16)> {
        let size = tcgetwinsize(&self.input).ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
    }

    /// True if the terminal's settings say that its input is UTF-8.
    fn is_utf8(&self) -> bool {
        self.attributes.input_modes.contains(InputModes::IUTF8)
    }

    /// Sets raw mode. In the background, this stops the process.
    fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.attributes.clone();
        raw.make_raw();
        Ok(tcsetattr(&self.input, OptionalActions::Now, &raw)?)
    }

    /// True if it is as [`make_raw`](Self::make_raw) left it. If not, another program uses it by
    /// now.
    fn is_raw(&self) -> bool {
        let mut raw = self.attributes.clone();
        raw.make_raw();
        tcgetattr(&self.input).is_ok_and(|now| {
            now.local_modes == raw.local_modes && now.input_modes == raw.input_modes
        })
    }

    /// True if this process is in the foreground, so that a read does not stop it.
    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.input).is_ok_and(|foreground| foreground == getpgrp())
    }

    /// Undoes a program's changes, restores the settings, and discards unread input.
    fn restore(&self, undo: &str) {
        // Permits that to a process in the background, which would be stopped here otherwise.
        let mut set = SigSet::empty();
        set.add(Signal::SIGTTOU);
        let _ = set.thread_block();
        // The wait for a terminal that takes nothing is short, and one that is closed needs
        // nothing.
        let mut room = [PollFd::new(&self.output, PollFlags::OUT)];
        if !undo.is_empty() && poll(&mut room, Some(&ROOM_TIMEOUT)).is_ok_and(|ready| ready > 0) {
            let _ = rustix::io::write(&self.output, undo.as_bytes());
        }
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.attributes);
        let _ = tcflush(&self.input, QueueSelector::IFlush);
    }
}

/// True if standard input and output are the same terminal.
pub fn is_on_terminal() -> bool {
    let (input, output) = (io::stdin(), io::stdout());
    let device = |stream: BorrowedFd<'_>| fstat(stream).map(|found| found.st_rdev).ok();
    isatty(&input) && isatty(&output) && device(input.as_fd()) == device(output.as_fd())
}

/// The process between the two terminals, and the operator's, which is restored on drop.
#[derive(Debug)]
pub(super) struct Terminal {
    process: Running,
    /// The process runs as long as this is open.
    control: Option<Channel>,
    ended: OwnedFd,
    operator: OperatorTerminal,
    /// The terminal is as it was.
    is_restored: bool,
    is_seen_ended: bool,
}

impl Terminal {
    /// Starts the process, which waits. `is_utf8` is true if the operator's locale is UTF-8.
    pub(super) fn start(outer: OwnedFd, is_utf8: bool) -> Result<Self, LaunchError> {
        let failed = |doing| move |error| LaunchError::Io(doing, error);
        let operator = OperatorTerminal::open().map_err(failed("look at the terminal"))?;
        operator.copy_to(&outer).map_err(failed("set up a pseudo-terminal"))?;
        let (control, theirs) = Channel::pair()?;
        let process = Stage::Terminal.command(theirs.into()).spawn();
        let process = Running(process.map_err(failed("execute this program again"))?);
        let ended = pidfd_open(process.pid(), PidfdFlags::empty())
            .map_err(|error| LaunchError::Io("watch a process", error.into()))?;
        let descriptors = [operator.input.as_fd(), operator.output.as_fd(), outer.as_fd()];
        control.send(
            &process::TerminalOrder { is_utf8: is_utf8 || operator.is_utf8() },
            &descriptors,
        )?;
        let (confined, _) = control.receive_within::<Result<(), String>>(START_TIMEOUT)?;
        confined.map_err(|reason| LaunchError::Stage("watch the terminal".to_owned(), reason))?;
        let control = Some(control);
        Ok(Self { process, control, ended, operator, is_restored: true, is_seen_ended: false })
    }

    /// Has the process take the terminal over.
    pub(super) fn begin(&mut self) -> Result<(), LaunchError> {
        self.is_restored = false;
        if let Some(control) = &self.control {
            control.send(&process::Begin, &[])?;
        }
        Ok(())
    }

    /// Hangs up: the program's terminal is closed, and the operator's is restored.
    pub(super) fn hang_up(&mut self) {
        self.control = None;
    }

    /// Kills the process, which may wait for a terminal that takes nothing.
    pub(super) fn kill(&mut self) {
        let _ = self.process.0.kill();
    }

    /// Returns a descriptor that is readable when the process has ended.
    pub(super) fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// True if [`has_ended`](Self::has_ended) has returned true.
    pub(super) fn was_seen_ended(&self) -> bool {
        self.is_seen_ended
    }

    /// True if the process has ended; then the operator's terminal is restored.
    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        let Some(status) = self.process.0.try_wait()? else { return Ok(false) };
        self.is_seen_ended = true;
        if !self.is_restored {
            self.is_restored = true;
            // The process undid the program's changes, and does not restore what other programs
            // changed.
            self.operator.restore(&if status.success() { String::new() } else { undo_all() });
        }
        Ok(true)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.hang_up();
        self.kill();
        let _ = self.process.0.wait();
        let _ = self.has_ended();
    }
}

/// Returns what undoes every change that a program may have made, if its changes are unknown.
fn undo_all() -> String {
    format!("{}{BOTTOM}", Changes::all().undo())
}
