//! A sandbox that is made, before and after its self-test, until the agent runs.

use std::{
    ffi::OsString,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    cgroup::Cgroup,
    channel::{Channel, ChannelError},
    forwarder::Forwarder,
    launch_error::LaunchError,
    messages::{BrokerOrder, StageMessage},
    mount::{Mount, NoMount},
    process::Running,
    running_agent::RunningAgent,
    sandbox_socket::{Opened, PendingSocket},
    self_test_sockets::TargetSockets,
    sockets::Sockets,
    spec::{Report, StandardStreams},
    streams::Streams,
    terminal::Terminal,
};

/// Interval at which the caller of [`PendingAgent::prepare`] is asked whether to go on waiting.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Timeout of each step of the stages.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// A sandbox that is made and not tested. Only its init runs, and none of its processes has touched
/// the workspace's path.
#[derive(Debug)]
pub struct BuiltSandbox {
    /// The mounts at the workspaces' paths, to be taken and served, or the reason why there are
    /// none; `None` if none was asked for. A mount that is not taken fails every access.
    pub mount: Option<Result<Mount, NoMount>>,
    /// The sockets of the sandbox's network that were asked for.
    pub sockets: Sockets,
    /// The requested standard streams.
    pub(super) requested_streams: StandardStreams,
    pub(super) streams: Streams,
    /// The channel by which commands are ordered, if any are to be started.
    pub(super) commands: Option<Channel>,
    pub(super) suspects: Vec<PathBuf>,
    pub(super) sandbox_socket: Option<Result<PendingSocket, String>>,
    pub(super) target_sockets: TargetSockets,
    pub(super) channel: Channel,
    pub(super) child: Running,
    /// Removed after the child has ended.
    pub(super) cgroup: Option<Cgroup>,
}

impl BuiltSandbox {
    /// Tests the sandbox from inside, and holds the agent back.
    ///
    /// # Errors
    /// If the self-test fails.
    pub fn test(self) -> Result<PendingAgent, LaunchError> {
        // While a copy is open here, clients would not notice that their server has ended.
        drop((self.mount, self.sockets));
        self.channel.send(&BrokerOrder::Enter, &[])?;
        let (messages, descriptors) = self.channel.receive_within(STEP_TIMEOUT)?;
        let report = match messages {
            StageMessage::Ready(report) => report,
            StageMessage::Failed { stage, error, .. } => {
                return Err(LaunchError::Stage(stage, error));
            }
            StageMessage::Built { .. }
            | StageMessage::Prepared { .. }
            | StageMessage::NotExecuted { .. }
            | StageMessage::Unmapped => {
                return Err(ChannelError::Closed.into());
            }
        };
        drop(self.target_sockets);
        if report.unexpected().next().is_some() {
            let list: Vec<_> = report
                .unexpected()
                .map(|p| format!("{} (before: {}, after: {})", p.name, p.before, p.after))
                .collect();
            return Err(LaunchError::SelfTest(list.join("; ")));
        }
        let Streams { ours: streams, forwarders, .. } = self.streams;
        let terminal = match self.requested_streams {
            StandardStreams::Terminal { is_utf8 } => {
                let outer = descriptors.into_iter().next().ok_or(ChannelError::Closed)?;
                Some((outer, is_utf8))
            }
            StandardStreams::Pipes | StandardStreams::Own => None,
        };
        let sandbox_socket = self.sandbox_socket.map(|sandbox_socket| {
            let sandbox_socket = sandbox_socket?;
            report.sandbox_socket.clone().unwrap_or(Ok(()))?;
            sandbox_socket.open()
        });
        Ok(PendingAgent {
            streams,
            commands: self.commands,
            report,
            suspects: self.suspects,
            sandbox_socket,
            terminal,
            forwarders,
            channel: self.channel,
            child: self.child,
            cgroup: self.cgroup,
        })
    }
}

/// An agent that is confined and tested, and waits to be released.
#[derive(Debug)]
pub struct PendingAgent {
    /// Our ends of the agent's standard input, output and error, if it has pipes.
    pub streams: Option<[OwnedFd; 3]>,
    /// The channel by which commands are ordered, if any are to be started.
    pub commands: Option<Channel>,
    /// The result of the self-test.
    pub report: Report,
    /// Directories that the agent may need, guessed from its command line: for the message if it
    /// ends at once.
    pub suspects: Vec<PathBuf>,
    /// The gateway's end of the connection from the sandbox, to which nothing outside can connect,
    /// or the reason why there is none; `None` if none was asked for.
    pub sandbox_socket: Option<Result<Opened, String>>,
    /// The outer end of its pseudo-terminal, and true if the operator's terminal is UTF-8.
    terminal: Option<(OwnedFd, bool)>,
    forwarders: Vec<Forwarder>,
    channel: Channel,
    child: Running,
    cgroup: Option<Cgroup>,
}

impl PendingAgent {
    /// Runs a command to its end in the finished sandbox, as the agent. The command reads from
    /// `input`; its output is discarded. Calls `waits` ten times a second with the time that has
    /// passed; returns `None` once it returns false, and otherwise the exit code.
    ///
    /// # Errors
    /// If the sandbox is gone.
    pub fn prepare(
        &self,
        command: Vec<OsString>,
        input: Option<BorrowedFd<'_>>,
        mut waits: impl FnMut(Duration) -> bool,
    ) -> Result<Option<i32>, LaunchError> {
        let begun = Instant::now();
        self.channel.send(&BrokerOrder::Prepare(command), input.as_slice())?;
        loop {
            match self.channel.receive_within(CHECK_INTERVAL) {
                Ok((StageMessage::Prepared { code }, _)) => return Ok(Some(code)),
                Ok((StageMessage::Failed { stage, error, .. }, _)) => {
                    return Err(LaunchError::Stage(stage, error));
                }
                Ok(_) => return Err(ChannelError::Closed.into()),
                Err(ChannelError::Timeout) if waits(begun.elapsed()) => {}
                Err(ChannelError::Timeout) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Starts the agent, after all that must be recorded is.
    ///
    /// # Errors
    /// If the program cannot be executed after all.
    pub fn release(self) -> Result<RunningAgent, LaunchError> {
        let terminal = self.terminal.map(|(outer, is_utf8)| Terminal::start(outer, is_utf8));
        let mut terminal = terminal.transpose()?;
        self.channel.send(&BrokerOrder::Execute, &[])?;
        // The channel closes when the program is executed.
        match self.channel.receive_within::<StageMessage>(STEP_TIMEOUT) {
            Err(ChannelError::Closed) => {
                let relay =
                    self.sandbox_socket.and_then(|sandbox_socket| sandbox_socket.ok()?.relay);
                let outputs = Forwarder::start(self.forwarders)
                    .map_err(|e| LaunchError::Io("start a thread", e))?;
                if let Some(terminal) = &mut terminal {
                    terminal.begin()?;
                }
                RunningAgent::new(self.child, self.cgroup, outputs, terminal, relay)
            }
            Ok((StageMessage::NotExecuted { errno }, _)) => {
                Err(LaunchError::NotExecuted(io::Error::from_raw_os_error(errno)))
            }
            Ok((StageMessage::Failed { stage, error, .. }, _)) => {
                Err(LaunchError::Stage(stage, error))
            }
            Ok((
                StageMessage::Built { .. }
                | StageMessage::Ready(_)
                | StageMessage::Prepared { .. }
                | StageMessage::Unmapped,
                _,
            )) => Err(LaunchError::Channel(ChannelError::Closed)),
            Err(e) => Err(e.into()),
        }
    }
}
