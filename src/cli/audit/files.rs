//! The files that a log is about: those of the workspace that it names, independent of
//! the current directory. Compared with the files of another workspace, the log would
//! lead to false accusations.

use std::path::{Path, PathBuf};

use super::{location::LogSource, select::ScanProgress};
use crate::{
    app::{audit_log::unreadable, failure::Failure, state_owner},
    gateway::Workspace,
    model::Escaped,
    review::{Log, recorded_workspace},
};

/// The workspace of a log.
pub(super) struct LogWorkspace {
    /// Its path, if known, to which absolute paths are relative.
    pub(super) root: PathBuf,
    /// The workspace, or the reason why its files are not read.
    pub(super) workspace: Result<Workspace, String>,
}

impl LogWorkspace {
    /// Returns the workspace, if it can be read; otherwise notes the reason on stderr.
    pub(super) fn workspace(&self) -> Option<&Workspace> {
        match &self.workspace {
            Ok(workspace) => Some(workspace),
            Err(reason) => {
                errln!("portcullis: note: the files were not checked: {}", Escaped(reason));
                None
            }
        }
    }
}

impl LogSource {
    /// Returns the files that `log` at this location is about. The log may have to be
    /// read for that, with `bar` as progress bar.
    pub(super) fn files(&self, log: &Log, bar: &ScanProgress) -> Result<LogWorkspace, Failure> {
        let named = self.location.workspace.as_deref().filter(|_| self.dir.is_none());
        let opened = |path: &Path| {
            Workspace::open(path)
                .map_err(|error| format!("cannot open the workspace `{}`: {error}", path.display()))
        };
        let noted = match &self.dir {
            None => state_owner::noted_at(&self.location.state()?)?,
            // Only the records of a copy name the workspace.
            Some(_copy) => None,
        };
        let root = match noted {
            Some(root) => Some(root),
            None => {
                bar.restart();
                let found = recorded_workspace(log);
                bar.restart();
                let found = found.map_err(|error| match self.directory() {
                    Ok(directory) => unreadable(&directory, &error),
                    Err(failure) => failure,
                })?;
                found.map(|found| found.path)
            }
        };
        let Some(root) = root else {
            return Ok(match named.map(opened) {
                Some(Ok(workspace)) => {
                    LogWorkspace { root: workspace.root().to_owned(), workspace: Ok(workspace) }
                }
                Some(Err(reason)) => {
                    LogWorkspace { root: PathBuf::from("/"), workspace: Err(reason) }
                }
                None => {
                    let reason = "no record names the workspace".to_owned();
                    LogWorkspace { root: PathBuf::from("/"), workspace: Err(reason) }
                }
            });
        };
        let workspace = match named.map(|named| (named, opened(named))) {
            None => opened(&root),
            Some((_, Ok(there))) if there.root() == root => Ok(there),
            Some((other, _)) => Err(format!(
                "the log is of the workspace `{}`, not of `{}`",
                root.display(),
                other.display()
            )),
        };
        Ok(LogWorkspace { root, workspace })
    }
}
