//! Commands that the gateway has started in a sandbox: its end of the channel to the process there
//! that starts them.
//!
//! That process is confined as the agent is, and is the agent's parent: its commands inherit the
//! agent's namespaces, Landlock domain, system call filter and user.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use nix::sys::signal::Signal;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{FileType, OFlags, fcntl_setfl, fstat},
    io::{Errno, read},
    net::{Shutdown, shutdown},
};
use serde::{Deserialize, Serialize};

use super::channel::{Channel, ChannelError};

/// Maximum of bytes of output read at once.
const CHUNK: usize = 64 * 1024;
/// Maximum of reads of a pipe whose command has ended: more than the pipe can contain.
const MAX_LAST_READS: usize = 16;

/// A command line, with its environment and directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// The program, looked up in the command's `PATH` if its name has no slash.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables besides those of the agent.
    pub environment: Vec<(String, String)>,
    /// The working directory, by its path in the sandbox; by default that of the agent.
    pub directory: Option<PathBuf>,
}

/// The way in which a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The command exited with this code.
    Code(i32),
    /// A signal of this name killed the command.
    Signal(String),
}

/// Events of a command. Each comes with the number that the command was started by.
#[derive(Debug)]
pub enum CommandEvent<'a> {
    /// The command runs.
    Started {
        /// The PID, in the sandbox, of the process that leads it. It is not reused before the
        /// command is released.
        pid: u32,
    },
    /// The command could not be started.
    NotStarted(io::Error),
    /// The command wrote this to its standard output or error.
    Output(&'a [u8]),
    /// The command has ended. Processes that it left may still run, and write.
    Ended(Exit),
    /// The command's processes were killed. Its PID may be reused from now on.
    Released,
}

/// Messages to the process that starts commands.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StarterOrder {
    Start { number: u64, command: CommandLine },
    Kill { number: u64 },
    Release { number: u64 },
}

/// Messages from it. A start carries the end of the pipe from which the output is read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StarterMessage {
    Started { number: u64, pid: u32 },
    NotStarted { number: u64, errno: i32 },
    Ended { number: u64, status: CommandStatus },
    Released { number: u64 },
}

/// The status of a process that has ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum CommandStatus {
    Code(i32),
    Signal(i32),
}

impl From<CommandStatus> for Exit {
    fn from(status: CommandStatus) -> Self {
        match status {
            CommandStatus::Code(code) => Self::Code(code),
            CommandStatus::Signal(number) => Self::Signal(match Signal::try_from(number) {
                Ok(signal) => signal.as_str().to_owned(),
                // A real-time signal has no name.
                Err(_) => format!("SIG{number}"),
            }),
        }
    }
}

/// The gateway's end.
#[derive(Debug)]
pub struct Commands(Channel);

impl Commands {
    /// Wraps the end that came from the broker.
    pub fn new(end: OwnedFd) -> Self {
        Self(end.into())
    }

    /// Has a command started, under a number that no other command has.
    ///
    /// # Errors
    /// If the sandbox is gone or does not take orders, or the command line is too long.
    pub fn start(&self, number: u64, command: CommandLine) -> Result<(), ChannelError> {
        self.0.send_now(&StarterOrder::Start { number, command }, &[])
    }

    /// Kills a command with all its descendants.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn kill(&self, number: u64) -> Result<(), ChannelError> {
        self.0.send_now(&StarterOrder::Kill { number }, &[])
    }

    /// Kills the command likewise, and forgets it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn release(&self, number: u64) -> Result<(), ChannelError> {
        self.0.send_now(&StarterOrder::Release { number }, &[])
    }

    /// Ends the channel: all commands are killed, and no more events come.
    pub fn end(&self) {
        // Fails only if the sandbox, and with it every command, is gone.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    /// Calls `hear` for each event until the sandbox is gone or [`end`](Self::end) was called.
    ///
    /// # Errors
    /// If the system refuses the wait, or a message is unexpected.
    pub fn follow(&self, mut hear: impl FnMut(u64, CommandEvent<'_>)) -> Result<(), ChannelError> {
        let mut outputs = BTreeMap::<u64, OwnedFd>::new();
        let mut buffer = vec![0; CHUNK];
        loop {
            let numbers: Vec<_> = outputs.keys().copied().collect();
            let mut waiting = vec![PollFd::new(&self.0, PollFlags::IN)];
            waiting.extend(outputs.values().map(|end| PollFd::new(end, PollFlags::IN)));
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(ChannelError::Io("wait for", error.into())),
            }
            let mut ready = waiting.iter().map(|waited| !waited.revents().is_empty());
            let has_messages = ready.next().unwrap_or_default();
            let ready: Vec<_> = numbers.into_iter().zip(ready).filter(|(_, is)| *is).collect();
            for (number, _) in ready {
                pass(&mut outputs, number, &mut buffer, &mut hear);
            }
            if !has_messages {
                continue;
            }
            let (messages, descriptors) = match self.0.receive::<StarterMessage>() {
                Ok(received) => received,
                Err(ChannelError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            };
            match messages {
                StarterMessage::Started { number, pid } => {
                    let end = descriptors.into_iter().next().filter(is_pipe);
                    outputs.extend(end.map(|end| (number, end)));
                    hear(number, CommandEvent::Started { pid });
                }
                StarterMessage::NotStarted { number, errno } => {
                    let error = io::Error::from_raw_os_error(errno);
                    hear(number, CommandEvent::NotStarted(error));
                }
                StarterMessage::Ended { number, status } => {
                    // Output from before the end is passed on first.
                    for _ in 0..MAX_LAST_READS {
                        if !pass(&mut outputs, number, &mut buffer, &mut hear) {
                            break;
                        }
                    }
                    hear(number, CommandEvent::Ended(status.into()));
                }
                StarterMessage::Released { number } => {
                    outputs.remove(&number);
                    hear(number, CommandEvent::Released);
                }
            }
        }
    }
}

/// Passes on what a command wrote; returns false if there is nothing at the moment.
fn pass(
    outputs: &mut BTreeMap<u64, OwnedFd>,
    number: u64,
    buffer: &mut [u8],
    hear: &mut impl FnMut(u64, CommandEvent<'_>),
) -> bool {
    let Some(end) = outputs.get(&number) else { return false };
    match read(end, &mut *buffer) {
        Err(Errno::AGAIN) => false,
        Err(Errno::INTR) => true,
        Ok(0) | Err(_) => {
            outputs.remove(&number);
            false
        }
        Ok(count) => {
            hear(number, CommandEvent::Output(buffer.get(..count).unwrap_or_default()));
            true
        }
    }
}

/// True if `end` is a pipe, which is then read without waiting. Another file might be one that this
/// process itself serves.
fn is_pipe(end: &OwnedFd) -> bool {
    let is_pipe = fstat(end.as_fd())
        .is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode) == FileType::Fifo);
    is_pipe && fcntl_setfl(end, OFlags::NONBLOCK).is_ok()
}
