//! A cell that stands, before and after its self-test, until the agent runs.

use std::{
    ffi::OsString,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    bait::Trap,
    cgroup::Cgroup,
    channel::{Channel, ChannelError},
    forwarder::Forwarder,
    hatch::{Hatch, Opened},
    launch_error::LaunchError,
    messages::{Go, News},
    mount::{Mount, NoMount},
    process::Running,
    running_agent::RunningAgent,
    spec::{Report, StandardStreams},
    streams::Streams,
    terminal::Terminal,
};

/// How often the caller of [`PendingAgent::prepare`] is asked whether to wait on.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long the stages may take for each step.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A cell in which nothing but its init runs yet, and that was not tested. Nobody in it
/// has touched the workspace's path.
#[derive(Debug)]
pub struct BuiltCell {
    /// What is mounted at the workspace's path, to be taken and served, or why there is
    /// nothing; `None` where nothing was asked for. If nobody takes it, it is dead.
    pub mount: Option<Result<Mount, NoMount>>,
    /// Where the sandbox's proxy listens, to be taken and served, if it has one. If nobody takes it,
    /// programs are refused that connect.
    pub proxy: Option<OwnedFd>,
    /// What the streams were to be.
    pub(super) wished: StandardStreams,
    pub(super) streams: Streams,
    /// Where commands are ordered, if any are to be started.
    pub(super) commands: Option<Channel>,
    pub(super) suspects: Vec<PathBuf>,
    pub(super) hatch: Option<Result<Hatch, String>>,
    pub(super) trap: Trap,
    pub(super) channel: Channel,
    pub(super) child: Running,
    /// Removed when the child has ended.
    pub(super) cgroup: Option<Cgroup>,
}

impl BuiltCell {
    /// Tests the cell from inside, and holds the agent back.
    ///
    /// # Errors
    /// When something does not hold.
    pub fn test(self) -> Result<PendingAgent, LaunchError> {
        let Self {
            mount,
            proxy,
            wished,
            streams,
            commands,
            suspects,
            hatch,
            trap,
            channel,
            child,
            cgroup,
        } = self;
        // As long as a copy is open, its server's end would be noticed by nobody.
        drop((mount, proxy));
        channel.send(&Go::Enter, &[])?;
        let (news, descriptors) = channel.receive_within(PATIENCE)?;
        let report = match news {
            News::Ready(report) => report,
            News::Failed { stage, error, .. } => return Err(LaunchError::Stage(stage, error)),
            News::Built { .. }
            | News::Prepared { .. }
            | News::NotExecuted { .. }
            | News::Unmapped => {
                return Err(ChannelError::Closed.into());
            }
        };
        drop(trap);
        if report.surprises().next().is_some() {
            let list: Vec<_> = report
                .surprises()
                .map(|p| format!("{} (before: {}, after: {})", p.name, p.before, p.after))
                .collect();
            return Err(LaunchError::SelfTest(list.join("; ")));
        }
        let Streams { ours: streams, forwarders, .. } = streams;
        let terminal = match wished {
            StandardStreams::Terminal { is_utf8 } => {
                let outer = descriptors.into_iter().next().ok_or(ChannelError::Closed)?;
                Some((outer, is_utf8))
            }
            StandardStreams::Pipes | StandardStreams::Own => None,
        };
        let hatch = hatch.map(|hatch| {
            let hatch = hatch?;
            report.hatch.clone().unwrap_or(Ok(()))?;
            hatch.open()
        });
        Ok(PendingAgent {
            streams,
            commands,
            report,
            suspects,
            hatch,
            terminal,
            forwarders,
            channel,
            child,
            cgroup,
        })
    }
}

/// An agent that is confined, tested and waiting for the word.
#[derive(Debug)]
pub struct PendingAgent {
    /// Our ends of the agent's standard input, output and error, if it has pipes.
    pub streams: Option<[OwnedFd; 3]>,
    /// Where commands are ordered, if any are to be started.
    pub commands: Option<Channel>,
    /// What the self-test found.
    pub report: Report,
    /// Directories that the agent may turn out to need, judged by its command
    /// line; for a message when it dies at once.
    pub suspects: Vec<PathBuf>,
    /// Where whoever connects from the sandbox is to be heard, and nobody else
    /// can connect; or why there is nothing. Nothing where none was asked for.
    pub hatch: Option<Result<Opened, String>>,
    /// The outer end of its pseudo-terminal, and whether the operator's terminal takes UTF-8.
    terminal: Option<(OwnedFd, bool)>,
    forwarders: Vec<Forwarder>,
    channel: Channel,
    child: Running,
    cgroup: Option<Cgroup>,
}

impl PendingAgent {
    /// Runs a command in the finished sandbox, as the agent, to its end; it reads from `input`, and
    /// what it prints goes nowhere. Asks `waits` ten times a second, with the time that has passed, whether to wait
    /// on. Returns the exit code; `None` where nobody waits for it.
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub fn prepare(
        &self,
        command: Vec<OsString>,
        input: Option<BorrowedFd<'_>>,
        mut waits: impl FnMut(Duration) -> bool,
    ) -> Result<Option<i32>, LaunchError> {
        let begun = Instant::now();
        self.channel.send(&Go::Prepare(command), input.as_slice())?;
        loop {
            match self.channel.receive_within(CHECK_INTERVAL) {
                Ok((News::Prepared { code }, _)) => return Ok(Some(code)),
                Ok((News::Failed { stage, error, .. }, _)) => {
                    return Err(LaunchError::Stage(stage, error));
                }
                Ok(_) => return Err(ChannelError::Closed.into()),
                Err(ChannelError::Timeout) if waits(begun.elapsed()) => {}
                Err(ChannelError::Timeout) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lets the agent run, once everything that must be on record is.
    ///
    /// # Errors
    /// When the program cannot be executed after all.
    pub fn release(self) -> Result<RunningAgent, LaunchError> {
        let terminal = self.terminal.map(|(outer, is_utf8)| Terminal::start(outer, is_utf8));
        let mut terminal = terminal.transpose()?;
        self.channel.send(&Go::Execute, &[])?;
        // The channel closes when the program is executed.
        match self.channel.receive_within::<News>(PATIENCE) {
            Err(ChannelError::Closed) => {
                let relay = self.hatch.and_then(|hatch| hatch.ok()?.relay);
                let outputs = Forwarder::start(self.forwarders)
                    .map_err(|e| LaunchError::Io("start a thread", e))?;
                if let Some(terminal) = &mut terminal {
                    terminal.begin()?;
                }
                RunningAgent::new(self.child, self.cgroup, outputs, terminal, relay)
            }
            Ok((News::NotExecuted { errno }, _)) => {
                Err(LaunchError::NotExecuted(io::Error::from_raw_os_error(errno)))
            }
            Ok((News::Failed { stage, error, .. }, _)) => Err(LaunchError::Stage(stage, error)),
            Ok((
                News::Built { .. } | News::Ready(_) | News::Prepared { .. } | News::Unmapped,
                _,
            )) => Err(LaunchError::Channel(ChannelError::Closed)),
            Err(e) => Err(e.into()),
        }
    }
}
