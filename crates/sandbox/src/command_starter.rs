//! The process in the sandbox that starts commands: the stage that otherwise becomes the agent. It
//! is confined as the agent is, starts the agent as its first child, and further commands on the
//! gateway's order.
//!
//! It ends when the agent has ended, and everything in the sandbox with it. It receives command
//! lines that the agent wrote, but can do no more than the agent can. It leaves an ended command
//! unreaped until the command is released, so that the PID by which the command is killed, and
//! which its records name, is not reused meanwhile.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid},
};

use super::{
    channel::{Channel, ChannelError},
    commands::{CommandLine, CommandStatus, StarterMessage, StarterOrder},
    process_tree,
};

/// Maximum of unreleased commands. The gateway allows fewer.
const MAX_COMMANDS: usize = 256;

/// The process that starts commands, whose agent runs.
pub(super) struct CommandStarter {
    orders: Channel,
    environment: Vec<(OsString, OsString)>,
    agent: Child,
    agent_ended: OwnedFd,
    running: BTreeMap<u64, StartedCommand>,
}

/// A command that was started.
struct StartedCommand {
    child: Child,
    pid: Pid,
    /// A pidfd, readable when the command has ended; `None` once its end was reported.
    ended: Option<OwnedFd>,
}

impl CommandStarter {
    /// Takes the channel of orders and the agent that was started.
    pub(super) fn new(
        orders: Channel,
        environment: Vec<(OsString, OsString)>,
        agent: Child,
    ) -> io::Result<Self> {
        let (_, agent_ended) = watched(&agent)?;
        Ok(Self { orders, environment, agent, agent_ended, running: BTreeMap::new() })
    }

    /// Executes orders until the agent has ended; returns its exit code.
    pub(super) fn run(mut self) -> io::Result<u8> {
        let mut is_heard = true;
        loop {
            let numbers: Vec<_> = self.unended().map(|(number, _)| number).collect();
            let mut waiting = vec![PollFd::new(&self.agent_ended, PollFlags::IN)];
            waiting.extend(self.unended().map(|(_, end)| PollFd::new(end, PollFlags::IN)));
            if is_heard {
                waiting.push(PollFd::new(&self.orders, PollFlags::IN));
            }
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<_> = waiting.iter().map(|waited| !waited.revents().is_empty()).collect();
            if let Some(status) = self.agent.try_wait()? {
                let code = status.code().or(status.signal().map(|signal| 128 + signal));
                return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
            }
            for (number, has_ended) in numbers.iter().zip(ready.iter().skip(1)) {
                if *has_ended {
                    self.report_end(*number, WaitIdOptions::NOHANG);
                }
            }
            if ready.get(numbers.len() + 1).is_some_and(|ordered| *ordered) {
                is_heard = self.handle_order();
            }
        }
    }

    fn unended(&self) -> impl Iterator<Item = (u64, &OwnedFd)> {
        self.running.iter().filter_map(|(number, started)| Some((*number, started.ended.as_ref()?)))
    }

    /// Executes one order; returns false when the other end is closed.
    fn handle_order(&mut self) -> bool {
        match self.orders.receive::<StarterOrder>() {
            Ok((StarterOrder::Start { number, command }, _)) => match self.start(number, command) {
                Ok((pid, output)) => {
                    let messages = StarterMessage::Started { number, pid };
                    self.send(&messages, Some(&output));
                }
                Err(error) => {
                    // For a string with a NUL, the library's error has no number.
                    let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
                    self.send(&StarterMessage::NotStarted { number, errno }, None);
                }
            },
            Ok((StarterOrder::Kill { number }, _)) => {
                // If the command has ended, this kills the processes that it left.
                if let Some(started) = self.running.get(&number) {
                    process_tree::kill(started.pid);
                }
            }
            Ok((StarterOrder::Release { number }, _)) => {
                if let Some(started) = self.running.get(&number) {
                    process_tree::kill(started.pid);
                    self.report_end(number, WaitIdOptions::empty());
                    // Reaping frees its PID.
                    let released = self.running.remove(&number);
                    let _ = released.map(|mut started| started.child.wait());
                    self.send(&StarterMessage::Released { number }, None);
                }
            }
            Err(ChannelError::Format(_)) => {}
            Err(_) => {
                self.running.values().for_each(|started| process_tree::kill(started.pid));
                return false;
            }
        }
        true
    }

    fn start(&mut self, number: u64, command: CommandLine) -> io::Result<(u32, OwnedFd)> {
        if self.running.len() >= MAX_COMMANDS || self.running.contains_key(&number) {
            return Err(Errno::AGAIN.into());
        }
        // The pipe belongs to the agent's user, who can therefore open `/dev/stderr`.
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut started = Command::new(&command.program);
        started.args(&command.arguments).env_clear().envs(self.environment.iter().cloned());
        started.envs(command.environment).process_group(0).stdin(Stdio::null());
        started.stdout(theirs.try_clone()?).stderr(theirs);
        if let Some(directory) = &command.directory {
            started.current_dir(directory);
        }
        let child = started.spawn()?;
        let (pid, ended) = watched(&child)?;
        let id = child.id();
        self.running.insert(number, StartedCommand { child, pid, ended: Some(ended) });
        Ok((id, output))
    }

    /// Reports the end of a command, once, and leaves it unreaped. `wait` determines whether this
    /// waits for the end.
    fn report_end(&mut self, number: u64, wait: WaitIdOptions) {
        let Some(started) = self.running.get_mut(&number) else { return };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | wait;
        let Ok(Some(status)) = waitid(WaitId::Pid(started.pid), options) else { return };
        if started.ended.take().is_none() {
            return;
        }
        let signal = status.terminating_signal().map(CommandStatus::Signal);
        let status = status.exit_status().map(CommandStatus::Code).or(signal);
        let status = status.unwrap_or(CommandStatus::Code(1));
        self.send(&StarterMessage::Ended { number, status }, None);
    }

    /// Sends a message to the gateway. Its absence is noticed when the next order is received.
    fn send(&self, messages: &StarterMessage, output: Option<&OwnedFd>) {
        let output: Vec<_> = output.iter().map(|end| end.as_fd()).collect();
        let _ = self.orders.send(messages, &output);
    }
}

/// Returns a child's PID, and a descriptor that is readable when it has ended.
fn watched(child: &Child) -> io::Result<(Pid, OwnedFd)> {
    let pid = Pid::from_child(child);
    Ok((pid, pidfd_open(pid, PidfdFlags::empty())?))
}
