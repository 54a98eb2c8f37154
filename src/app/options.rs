//! The options of every command.

use std::path::{Path, PathBuf};

use crate::model::{AgentName, for_shell};

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
        let state = self.state.as_ref();
        state_directory(state, &self.workspace, self.config.as_deref(), false)
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
            for_shell(old)
        )))
    }

    /// Returns the state directory, after a check that no agent could have chosen it or the
    /// configuration.
    ///
    /// # Errors
    /// When one could, the default one is that of a workspace that has moved and is not to be adopted,
    /// or there is no such workspace.
    pub(crate) fn state_directory(&self) -> Result<PathBuf, Failure> {
        let (state, adopts) = (self.state.as_ref(), self.adopt.is_some());
        state_directory(state, &self.workspace, self.config.as_deref(), adopts)
    }
}

fn state_directory(
    state: Option<&PathBuf>,
    workspace: &Path,
    config: Option<&Path>,
    adopts: bool,
) -> Result<PathBuf, Failure> {
    // If only the state directory is named, the current directory is irrelevant.
    let named = Some(workspace).filter(|path| *path != Path::new(HERE));
    let path = trusted_paths::state(state, named, config)?;
    match (state, named) {
        // The start checks whose it is.
        _ if adopts => {}
        (None, _) => state_owner::check_default(&path, workspace)?,
        (Some(_), Some(named)) => state_owner::note_other(&path, named),
        (Some(_), None) => {}
    }
    Ok(path)
}
