//! The log that `diff`, `replay` and `learn` read.

use std::path::{Path, PathBuf};

use crate::{
    app::{
        audit_log::read_log, failure::Failure, record_time::RecordTime, state_owner, trusted_paths,
    },
    review::Log,
};

/// The log.
#[derive(Debug, Clone, clap::Args)]
struct HistoryLog {
    /// The directory that the agent works in [default: the current one]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_WORKSPACE")]
    workspace: Option<PathBuf>,
    /// Directory of log and backups [default: a directory of the workspace's
    /// own under $XDG_STATE_HOME/portcullis]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_STATE")]
    state: Option<PathBuf>,
}

/// The log, and the time from which on it is read.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogArgs {
    #[command(flatten)]
    location: HistoryLog,
    /// Start of the period: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`,
    /// `1 hour ago`, `yesterday` [default: the first record]
    #[arg(long, value_name = "TIME")]
    since: Option<RecordTime>,
}

impl LogArgs {
    /// Opens the log, after a check that no agent could have chosen it; returns its directory, too.
    pub(super) fn open(&self) -> Result<(PathBuf, Log), Failure> {
        let HistoryLog { workspace, state } = &self.location;
        let state = trusted_paths::log_state(state.as_ref(), workspace.as_deref(), None)?;
        if let Some(workspace) = workspace {
            state_owner::note_other(&state, workspace);
        }
        let path = state.join("audit");
        let log = read_log(&path)?;
        Ok((path, log))
    }

    /// Returns the earliest time, in the format of records.
    pub(super) fn since(&self) -> Option<&str> {
        self.since.as_ref().map(RecordTime::as_str)
    }

    /// Returns the workspace.
    pub(super) fn workspace(&self) -> &Path {
        self.location.workspace.as_deref().unwrap_or(Path::new("."))
    }
}
