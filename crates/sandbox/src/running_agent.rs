//! A running agent, and its end.

use std::{
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
};

use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use super::{
    cgroup::Cgroup,
    forwarder::Outputs,
    launch_error::LaunchError,
    process::{ABORT_SIGNAL, Running},
    relay::Relay,
    terminal::Terminal,
};

/// A running agent. Dropping it kills the whole sandbox.
#[derive(Debug)]
pub struct RunningAgent {
    child: Running,
    /// Removed after the child has ended.
    _cgroup: Option<Cgroup>,
    ended: OwnedFd,
    /// Its exit code, once it has ended.
    code: Option<u8>,
    /// The output that it writes to the broker's own streams, if it has those.
    pub outputs: Outputs,
    /// The copier between its terminal and the operator's.
    terminal: Option<Terminal>,
    /// The relay of its MCP clients.
    _relay: Option<Relay>,
}

impl RunningAgent {
    pub(super) fn new(
        child: Running,
        cgroup: Option<Cgroup>,
        outputs: Outputs,
        terminal: Option<Terminal>,
        relay: Option<Relay>,
    ) -> Result<Self, LaunchError> {
        let ended = pidfd_open(child.pid(), PidfdFlags::empty())
            .map_err(|error| LaunchError::Io("watch a process", error.into()))?;
        Ok(Self { child, _cgroup: cgroup, ended, code: None, outputs, terminal, _relay: relay })
    }

    /// Returns descriptors to wait for: readable when [`try_wait`](Self::try_wait) or
    /// [`is_hung_up`](Self::is_hung_up) may return a new result.
    pub fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let program = self.code.is_none().then(|| self.ended.as_fd());
        let terminal = self.terminal.as_ref().filter(|terminal| !terminal.was_seen_ended());
        program.into_iter().chain(terminal.map(Terminal::ended))
    }

    /// Asks the agent to stop: `SIGTERM` to its process group.
    pub fn terminate(&self) {
        // An agent that has ended needs no signal.
        let _ = kill_process(self.child.pid(), Signal::TERM);
    }

    /// Continues its process group after it was stopped.
    pub fn resume(&self) {
        // As above.
        let _ = kill_process(self.child.pid(), Signal::CONT);
    }

    /// Forwards a signal, by its number, to its process group.
    pub fn signal(&self, number: u32) {
        let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
        if let Some(signal) = signal {
            // As above.
            let _ = kill_process(self.child.pid(), signal);
        }
    }

    /// Closes its terminal, which the kernel reports to it with `SIGHUP`, and restores the
    /// operator's.
    pub fn hang_up(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.hang_up();
        }
    }

    /// True if its terminal is closed.
    ///
    /// # Errors
    /// If the copier's state cannot be read.
    pub fn is_hung_up(&mut self) -> io::Result<bool> {
        self.terminal.as_mut().map_or(Ok(false), Terminal::has_ended)
    }

    /// Kills everything in the sandbox, and the process that copies its output to a terminal.
    pub fn kill(&mut self) {
        let _ = self.child.0.kill();
        if let Some(terminal) = &mut self.terminal {
            terminal.kill();
        }
    }

    /// Fails every request of the mounts, present and future ones, and then kills everything in the
    /// sandbox: for a gateway that was killed and whose descriptors stay open.
    pub fn abort(&self) {
        // As above.
        let _ = kill_process(self.child.pid(), ABORT_SIGNAL);
    }

    /// Returns the exit code after the agent has ended and its output was shown: its own, or 128
    /// and the number of the signal that ended it.
    ///
    /// # Errors
    /// If the state of the process cannot be read.
    pub fn try_wait(&mut self) -> io::Result<Option<u8>> {
        if self.code.is_none() {
            let Some(status) = self.child.0.try_wait()? else { return Ok(None) };
            let code = status.code().or(status.signal().map(|n| 128 + n)).unwrap_or(1);
            self.code = Some(u8::try_from(code).unwrap_or(1));
        }
        self.hang_up();
        let is_shown = self.terminal.as_mut().map_or(Ok(true), Terminal::has_ended)?;
        Ok(self.code.filter(|_| is_shown))
    }
}
