//! An agent that runs: its end, and how it is ended.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

use super::{forwarder::Outputs, process::Running, relay::Relay};

/// An agent that runs. Dropping it kills the whole cell.
#[derive(Debug)]
pub struct RunningAgent {
    pub(super) child: Running,
    /// What it writes to the broker's own streams, if it has those.
    pub outputs: Outputs,
    /// What its MCP clients are connected by.
    pub(super) _relay: Option<Relay>,
}

impl RunningAgent {
    /// The process to wait for.
    pub fn pid(&self) -> Option<Pid> {
        self.child.pid()
    }

    /// Asks the agent to stop: `SIGTERM` to its process group.
    pub fn terminate(&self) {
        if let Some(pid) = self.child.pid() {
            // One that is gone need not be asked.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Has its process group go on after it was stopped.
    pub fn resume(&self) {
        if let Some(pid) = self.child.pid() {
            // As above.
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// Passes a signal on, by its number, to its process group.
    pub fn signal(&self, number: u32) {
        let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
        if let (Some(pid), Some(signal)) = (self.child.pid(), signal) {
            // As above.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills everything in the cell.
    pub fn kill(&mut self) {
        let _ = self.child.0.kill();
    }

    /// The exit code, when the agent has ended: its own, or 128 and the number of the signal that
    /// ended it.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub fn try_wait(&mut self) -> io::Result<Option<u8>> {
        use std::os::unix::process::ExitStatusExt as _;
        let Some(status) = self.child.0.try_wait()? else { return Ok(None) };
        let code = status.code().or(status.signal().map(|n| 128 + n)).unwrap_or(1);
        Ok(Some(u8::try_from(code).unwrap_or(1)))
    }
}
