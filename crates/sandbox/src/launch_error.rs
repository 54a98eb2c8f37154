//! Errors of starting an agent.

use std::{io, path::PathBuf};

use super::{
    channel::ChannelError, home::HomeError, layout::GrantError, program_files::ProgramError,
    trusted_paths::TrustError,
};

/// An agent cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The agent would reach, or choose, what it must not.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A grant cannot be given.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The agent's program cannot be found.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The agent's program lies where the agent may not read: what it would have to be given.
    #[error("cannot start the agent: the sandbox does not show it its own program")]
    Unreachable(Vec<PathBuf>),
    /// The agent's program lies in the workspace.
    #[error("the agent's program `{}` lies in the workspace, which the agent cannot read by itself; install it elsewhere", .0.display())]
    InWorkspace(PathBuf),
    /// The agent cannot listen on a port without privileges.
    #[error(
        "the agent cannot listen on port {0}: it has no privileges, so choose a port from {1} (`net.ipv4.ip_unprivileged_port_start`)"
    )]
    PrivilegedPort(u16, u16),
    /// The home directory cannot be made.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The kernel or the container refuses the requested confinement.
    #[error("cannot confine the agent: {0}")]
    Refused(String),
    /// The self-test failed.
    #[error("refusing to start the agent: the self-test of its sandbox failed: {0}")]
    SelfTest(String),
    /// A stage failed for another reason.
    #[error("cannot start the agent: cannot {0}: {1}")]
    Stage(String, String),
    /// The stages cannot be reached.
    #[error("cannot start the agent: {0}")]
    Channel(#[from] ChannelError),
    /// The system refused.
    #[error("cannot start the agent: cannot {0}: {1}")]
    Io(&'static str, io::Error),
    /// The program was not executed.
    #[error("the agent's program was not executed: {0}")]
    NotExecuted(io::Error),
}

/// Failure of one mode of making the sandbox.
pub(super) enum LaunchFailure {
    /// A weaker mode may work.
    Namespaces(String),
    /// No other mode would work.
    Final(LaunchError),
}

impl From<LaunchError> for LaunchFailure {
    fn from(error: LaunchError) -> Self {
        Self::Final(error)
    }
}

impl From<LaunchFailure> for LaunchError {
    fn from(attempt: LaunchFailure) -> Self {
        match attempt {
            LaunchFailure::Namespaces(reason) => Self::Refused(reason),
            LaunchFailure::Final(error) => error,
        }
    }
}
