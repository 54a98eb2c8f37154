//! The log of a command, and the options that name it.

use std::{
    io,
    path::{Path, PathBuf},
};

use cap_std::fs::Dir;
use portcullis_audit::{Directory, FRONTIER, FileEntry, HISTORY, KEYS, NEWEST, ROOTS, Source as _};

use crate::{
    app::{
        audit_log::{is_unused, log_files, unreadable},
        failure::Failure,
        pager::PagerOptions,
        state_directory, state_owner, trusted_paths,
    },
    cli::gateway_options::{absolute, log_options},
    config::audit::Audit,
    gateway::Workspace,
    operator_files,
};

/// The log: the common options, of which a log needs only where it is.
/// `--agent` is a filter of `show` instead.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogLocation {
    /// The directory that the agent works in [default: the current one, or where --state
    /// is given the one to which that belongs]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_WORKSPACE")]
    pub(super) workspace: Option<PathBuf>,
    /// Directory of log and backups [default: a directory of the workspace's
    /// own under $XDG_STATE_HOME/portcullis]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_STATE")]
    state: Option<PathBuf>,
    /// The operator's configuration file [default:
    /// $XDG_CONFIG_HOME/portcullis/portcullis.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_CONFIG")]
    config: Option<PathBuf>,
    /// Accepted like everywhere, but without meaning here
    #[arg(long, value_name = "FILE|NAME", hide = true)]
    policy: Option<String>,
}

impl LogLocation {
    pub(super) fn workspace(&self) -> &Path {
        self.workspace.as_deref().unwrap_or(Path::new("."))
    }

    /// Opens the directory that is named as the workspace.
    pub(super) fn opened(&self) -> io::Result<Workspace> {
        Workspace::open(self.workspace())
    }

    /// Returns the state directory, after a check that no agent could have chosen it.
    pub(super) fn state(&self) -> Result<PathBuf, Failure> {
        let (workspace, config) = (self.workspace.as_deref(), self.config.as_deref());
        trusted_paths::log_state(self.state.as_ref(), workspace, config)
    }

    /// Returns the operator's configuration of the log.
    pub(super) fn audit(&self) -> Result<Audit, Failure> {
        Audit::load(self.config.as_deref()).map_err(Failure::new)
    }

    /// Opens the state directory for a change. Its log must exist: a command with a wrong location
    /// reports that, and creates nothing.
    pub(super) fn open(&self) -> Result<(PathBuf, Dir), Failure> {
        let path = self.with_log()?;
        self.check_owner(&path, || self.owner())?;
        state_directory::open(&path)
    }

    /// Opens it for a repair, also if nothing is left of the log but its directory.
    pub(super) fn open_damaged(&self) -> Result<(PathBuf, Dir), Failure> {
        let path = self.state()?;
        let log = path.join("audit");
        Directory::new(&log).list().map_err(|error| unreadable(&log, &error))?;
        // A damaged log may not say whose it is.
        let owner = || self.owner().or_else(|_damage| state_owner::noted_at(&path));
        self.check_owner(&path, owner)?;
        state_directory::open(&path)
    }

    /// Opens it for reading, which is possible with a directory of another user, too.
    pub(super) fn look(&self) -> Result<Dir, Failure> {
        let path = self.with_log()?;
        self.note_owner(&path);
        state_directory::look(&path)?
            .ok_or_else(|| unreadable(&path, &io::ErrorKind::NotFound.into()))
    }

    /// Returns the path of the state directory, which must contain a log.
    fn with_log(&self) -> Result<PathBuf, Failure> {
        let path = self.state()?;
        log_files(&path.join("audit"))?;
        Ok(path)
    }

    /// Returns the path of the workspace to which the state directory belongs, if known.
    pub(super) fn owner(&self) -> Result<Option<PathBuf>, Failure> {
        let path = self.state()?;
        state_directory::look(&path)?.map_or(Ok(None), |state| state_owner::of(&state, &path))
    }

    /// Refuses a state directory whose `owner` is not the workspace that is named beside it: one of
    /// the two is a mistake, and a change of another log cannot be taken back.
    fn check_owner(
        &self,
        path: &Path,
        owner: impl FnOnce() -> Result<Option<PathBuf>, Failure>,
    ) -> Result<(), Failure> {
        let named = match (&self.workspace, &self.state) {
            // A state directory alone names its workspace.
            (None, Some(_)) => return Ok(()),
            _ => self.workspace(),
        };
        match owner()?.filter(|owner| !state_owner::is_named(owner, named)) {
            Some(owner) => {
                let here = operator_files::canonicalize(named).unwrap_or_else(|_| named.to_owned());
                Err(state_owner::of_another(path, &owner, &here))
            }
            None => Ok(()),
        }
    }

    /// Notes for a reader that the state directory is not that of the workspace beside it.
    fn note_owner(&self, path: &Path) {
        if let Some(named) = self.named_with_state() {
            state_owner::note_other(path, named);
        }
    }

    /// Returns the workspace that is named beside a state directory.
    fn named_with_state(&self) -> Option<&Path> {
        self.workspace.as_deref().filter(|_| self.state.is_some())
    }
}

/// The log to read: a workspace's, or one anywhere.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogSource {
    #[command(flatten)]
    pub(super) location: LogLocation,
    /// Read the log in this directory instead, such as a copy
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
}

impl LogSource {
    /// Has the first output start a pager that no agent of the log's workspace can choose: none if
    /// that workspace is not known. A copy may name any.
    pub(super) fn enable(&self, pager: PagerOptions) {
        let LogLocation { workspace, state, .. } = &self.location;
        let workspace = match (workspace, &self.dir, state) {
            (Some(named), ..) => Some(named.clone()),
            (None, Some(_), _) => None,
            (None, None, Some(_)) => self.location.owner().ok().flatten(),
            (None, None, None) => Some(self.location.workspace().to_owned()),
        };
        if let Some(workspace) = workspace {
            pager.enable(&workspace);
        }
    }

    /// Returns the log's directory.
    pub(super) fn directory(&self) -> Result<PathBuf, Failure> {
        match &self.dir {
            Some(directory) => Ok(directory.clone()),
            None => {
                let state = self.location.state()?;
                self.location.note_owner(&state);
                Ok(state.join("audit"))
            }
        }
    }

    /// Returns the options that lead another command to the same log.
    pub(super) fn options(&self) -> String {
        match (&self.dir, self.location.state()) {
            (Some(directory), _) => format!("--dir {}", absolute(directory)),
            (None, Ok(state)) => log_options(&state, self.location.config.as_deref()),
            // Nothing led to a log.
            (None, Err(_)) => String::new(),
        }
    }

    /// Returns the directory of the policies and backups that the log names.
    pub(super) fn state(&self) -> Result<PathBuf, Failure> {
        let Some(log) = &self.dir else { return self.location.state() };
        // The path may be `.` or a name alone, without a parent.
        let log = operator_files::canonicalize(log).map_err(|error| unreadable(log, &error))?;
        Ok(log.parent().unwrap_or(&log).to_owned())
    }
}

/// Opens the log in `directory`, which must contain one: another directory, such as the
/// state directory, must not be taken for a log without records.
pub(super) fn existing(directory: &Path) -> Result<Directory, Failure> {
    let source = Directory::new(directory);
    let entries = source.list().map_err(|error| unreadable(directory, &error))?;
    // The lock exists before the first record.
    let of_a_log = |entry: &FileEntry| match entry.name.as_str() {
        "lock" => entry.regular,
        NEWEST | HISTORY | KEYS | ROOTS | FRONTIER | "quarantine" => true,
        name => name.starts_with("seg-"),
    };
    if entries.iter().any(of_a_log) {
        return Ok(source);
    }
    is_unused(directory)?;
    let below = directory.join("audit");
    let shown = directory.display();
    let failure = Failure::new(format_args!("there is no audit log at `{shown}`"));
    Err(failure.help(match Directory::new(&below).list() {
        Ok(_entries) => format!("did you mean `{}`?", below.display()),
        Err(_none) => "the log is the directory `audit` in a state directory".to_owned(),
    }))
}
