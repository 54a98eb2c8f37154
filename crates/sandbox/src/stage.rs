//! The stages that the binary goes through when it executes itself again, and
//! their errors.

use std::{
    io,
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

use super::{
    channel::{Channel, ChannelError},
    landlock,
    messages::StageMessage,
    root::RootError,
    seccomp::SeccompError,
};

/// The hidden subcommand of the stages.
pub const STAGE_COMMAND: &str = "sandbox-stage";

/// A stage, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Leaves the host's namespaces.
    Launch,
    /// The first process in the new ones.
    Init,
    /// Becomes the agent.
    Enter,
    /// Runs beside them: the relay of named pipes.
    Relay,
    /// Runs beside them: copies between the agent's terminal and the
    /// operator's.
    Terminal,
}

impl Stage {
    /// Returns the command that makes the binary run this stage, with a channel to the process that
    /// starts it.
    pub(super) fn command(self, channel: OwnedFd) -> Command {
        let word = match self {
            Self::Launch => "launch",
            Self::Init => "init",
            Self::Enter => "enter",
            Self::Relay => "relay",
            Self::Terminal => "terminal",
        };
        let mut command = Command::new("/proc/self/exe");
        command
            .args([STAGE_COMMAND, word, &std::process::id().to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(channel)
            .stdout(Stdio::null());
        command
    }

    /// Returns the stage of that name.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "launch" => Some(Self::Launch),
            "init" => Some(Self::Init),
            "enter" => Some(Self::Enter),
            "relay" => Some(Self::Relay),
            "terminal" => Some(Self::Terminal),
            _ => None,
        }
    }
}

/// A stage failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StageError {
    /// A step failed.
    #[error("cannot {0}: {1}")]
    Step(&'static str, String),
    /// A namespace or a mount was refused.
    #[error("cannot {0}: {1}")]
    Namespaces(&'static str, String),
    /// The other stages cannot be reached.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The system call filter was refused.
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
    /// The Landlock ruleset was refused.
    #[error("cannot restrict file access with Landlock: {0}")]
    Landlock(#[from] landlock::LandlockError),
}

impl From<RootError> for StageError {
    fn from(error: RootError) -> Self {
        let as_what = if error.no_mounts { Self::Namespaces } else { Self::Step };
        as_what("build the sandbox's root directory", error.to_string())
    }
}

impl StageError {
    /// Sends the error to the broker. Returns the exit code of the stage.
    pub(super) fn report(&self, channel: &Channel) -> u8 {
        // A broker that is gone needs none.
        let _ = channel.send(&self.message(), &[]);
        1
    }

    fn message(&self) -> StageMessage {
        let (stage, error) = match self {
            Self::Step(stage, error) | Self::Namespaces(stage, error) => {
                ((*stage).to_owned(), error.clone())
            }
            other => ("start the sandbox".to_owned(), other.to_string()),
        };
        StageMessage::Failed { stage, error, namespaces: matches!(self, Self::Namespaces(..)) }
    }
}

/// Makes an error that names the failed step.
pub(super) fn failed<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> StageError {
    move |error| StageError::Step(step, error.into().to_string())
}
