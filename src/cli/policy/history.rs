//! The log that `diff`, `replay` and `learn` read.

use std::path::PathBuf;

use crate::cli::{
    audit::{Place, filter::Since},
    failure::Failure,
};

/// Which log, and from when on.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogArgs {
    #[command(flatten)]
    place: Place,
    /// Only records from this time on: `2026-11-21`, `2026-11-21T08:00:00Z`, or how long ago:
    /// `90m`, `2d`
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,
}

impl LogArgs {
    /// The log's directory.
    pub(super) fn directory(&self) -> Result<PathBuf, Failure> {
        self.place.log()
    }

    /// The earliest time, in the form of a record's.
    pub(super) fn since(&self) -> Option<&str> {
        self.since.as_ref().map(Since::text)
    }

    /// The workspace.
    pub(super) fn workspace(&self) -> &std::path::Path {
        self.place.workspace()
    }

    /// The policy that the environment or the command line names.
    pub(super) fn policy(&self) -> Option<&str> {
        self.place.policy()
    }
}
