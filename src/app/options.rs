//! The options of every command.

use std::path::{Path, PathBuf};

use crate::model::AgentName;

use super::{
    failure::{Context as _, Exit, Failure},
    state_owner, trusted_paths,
};

/// The default workspace.
const HERE: &str = ".";

/// The heading in help of the global options, which otherwise would be mixed with a
/// command's own.
const HEADING: &str = "Gateway options";

/// The workspace with its policy and its state, and the agent.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Common {
    /// The directory that the agent works in
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "DIR",
        default_value = HERE,
        env = "PORTCULLIS_WORKSPACE"
    )]
    pub(crate) workspace: PathBuf,
    /// A policy file, or the name of an embedded policy
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "FILE|NAME",
        value_hint = clap::ValueHint::FilePath,
        default_value = "default",
        env = "PORTCULLIS_POLICY"
    )]
    pub(crate) policy: String,
    /// The operator's configuration file [default:
    /// $XDG_CONFIG_HOME/portcullis/portcullis.toml, if it exists]
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "FILE",
        env = "PORTCULLIS_CONFIG"
    )]
    pub(crate) config: Option<PathBuf>,
    /// Directory of log and backups [default: a directory of the workspace's
    /// own under $XDG_STATE_HOME/portcullis]
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "DIR",
        env = "PORTCULLIS_STATE"
    )]
    pub(crate) state: Option<PathBuf>,
    /// Declare that the workspace moved here from DIR, so that the state directory of --state now
    /// belongs to it
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "DIR",
        requires = "state"
    )]
    pub(crate) adopt: Option<PathBuf>,
    /// The agent's name in policy and log [default: the preset's, the program's (`run`), or a
    /// fixed one, such as `exec` or `cli`]
    #[arg(
        long,
        global = true,
        help_heading = HEADING,
        value_name = "NAME",
        env = "PORTCULLIS_AGENT"
    )]
    pub(crate) agent: Option<AgentName>,
}

/// The state of a workspace, for commands that decide nothing.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct StateLocation {
    /// The directory that the agent works in
    #[arg(long, value_name = "DIR", default_value = HERE, env = "PORTCULLIS_WORKSPACE")]
    workspace: PathBuf,
    /// The operator's configuration file [default:
    /// $XDG_CONFIG_HOME/portcullis/portcullis.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of log and backups [default: a directory of the workspace's
    /// own under $XDG_STATE_HOME/portcullis]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_STATE")]
    state: Option<PathBuf>,
}

impl StateLocation {
    /// Returns the state directory.
    ///
    /// # Errors
    /// As [`Common::state_directory`].
    pub(crate) fn state_directory(&self) -> Result<PathBuf, Failure> {
        let path = state_directory(self.state.as_ref(), &self.workspace, self.config.as_deref())?;
        check_owner(&path, self.state.as_ref(), &self.workspace)?;
        Ok(path)
    }
}

impl Common {
    /// Returns the agent's name; without one, `default`.
    pub(crate) fn agent(&self, default: &str) -> Result<AgentName, Failure> {
        match &self.agent {
            Some(agent) => Ok(agent.clone()),
            None => default.parse().or_fail("cannot name the agent"),
        }
    }

    /// Refuses `--adopt`, for a command that starts no gateway, which would record it.
    ///
    /// # Errors
    /// When it is given.
    pub(crate) fn adopts_nothing(&self) -> Result<(), Failure> {
        let Some(old) = &self.adopt else { return Ok(()) };
        let failure = Failure::new("this command takes no state directory over").exit(Exit::Usage);
        Err(failure.help(format_args!(
            "`portcullis fs stat . --state DIR --adopt {}` does it once",
            old.display()
        )))
    }

    /// Returns the state directory, after a check that no agent could have chosen it or the
    /// configuration, and that it is that of the workspace or is to be adopted.
    ///
    /// # Errors
    /// When one could, it is another workspace's, or there is no such workspace.
    pub(crate) fn state_directory(&self) -> Result<PathBuf, Failure> {
        let path = state_directory(self.state.as_ref(), &self.workspace, self.config.as_deref())?;
        if self.adopt.is_none() {
            check_owner(&path, self.state.as_ref(), &self.workspace)?;
        }
        Ok(path)
    }
}

fn state_directory(
    state: Option<&PathBuf>,
    workspace: &Path,
    config: Option<&Path>,
) -> Result<PathBuf, Failure> {
    // If only the state directory is named, the current directory is irrelevant.
    let workspace = Some(workspace).filter(|path| *path != Path::new(HERE));
    trusted_paths::state(state, workspace, config)
}

fn check_owner(path: &Path, state: Option<&PathBuf>, workspace: &Path) -> Result<(), Failure> {
    if state.is_some() && workspace == Path::new(HERE) {
        return Ok(());
    }
    state_owner::check_noted(path, workspace)
}
