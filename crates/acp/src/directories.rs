//! The directories of a session: `cwd` and `additionalDirectories` of `session/new`,
//! `session/load`, `session/resume` and `session/fork` (ACP v1).
//!
//! Directories in a workspace pass, and so do agent paths, which the agent's own tools find. Any
//! other directory refuses the request: the agent would find nothing there, or the editor would
//! show another directory than the served one, without an explanation. Only names are checked,
//! since a link is resolved when it is used.

use std::path::Path;

use portcullis_rpc::{Object, folds_to};
use serde_json::value::RawValue;

use crate::model::{Escaped, WorkspacePath, complete_words, for_shell};

use crate::paths::{OutsideWorkspace, Roots};

/// The requests with directories. In `session/list` `cwd` is a filter.
const METHODS: [&str; 4] = ["session/fork", "session/load", "session/new", "session/resume"];
/// The names of the parameters.
const CWD: &str = "cwd";
const LIST: &str = "additionalDirectories";
/// Maximum length of a directory's path, in bytes.
const MAX_DIRECTORY: usize = 4096;

/// Reasons why a session is not opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DirectoryError {
    #[error("`{CWD}` is not an absolute path")]
    NoPath,
    #[error(
        "the working directory `{0}` lies neither in the workspace `{workspace}` nor in what the \
         agent was granted: open the workspace in the editor, start `portcullis run` with \
         `--workspace {option}`, or let the agent read it there with `--agent-read {option}`",
        Escaped(.directory),
        option = for_shell(Path::new(.directory))
    )]
    Elsewhere { directory: String, workspace: String },
    #[error("`{LIST}` is not a list of absolute paths")]
    Malformed,
    #[error(
        "the directory `{0}` of `{LIST}` lies neither in the workspace `{workspace}`, nor in a \
         further one, nor in what the agent was granted: start `portcullis run` with \
         `--add-dir {option}`, or let the agent read it with `--agent-read {option}`, or also \
         change it with `--agent-write {option}`, which is neither decided nor recorded",
        Escaped(.directory),
        option = for_shell(Path::new(.directory))
    )]
    Outside { directory: String, workspace: String },
}

/// Checks a request of the editor; `others` are further workspaces and agent paths.
///
/// # Errors
/// If it names a directory that is not served, or none at all.
pub(super) fn check(
    method: &str,
    params: Option<&RawValue>,
    workspace: &Roots,
    others: &[&Roots],
) -> Result<(), DirectoryError> {
    if !METHODS.contains(&method) {
        return Ok(());
    }
    let Some(params) = params.and_then(|params| Object::parse(params.get())) else { return Ok(()) };
    let named = |name| params.members().filter(move |(key, _)| folds_to(key, name));
    let serves = |directory: &str| match workspace.relative(directory) {
        Err(OutsideWorkspace::Relative) => None,
        found => {
            let within = |other: &&Roots| other.relative(directory).is_ok();
            Some(found.is_ok() || others.iter().any(within))
        }
    };
    let root = || Escaped(&workspace.absolute(&WorkspacePath::root())).to_string();
    if params.get(CWD).is_none() {
        return Err(DirectoryError::NoPath);
    }
    for (_, directory) in named(CWD) {
        let directory: String =
            serde_json::from_str(directory.get()).map_err(|_| DirectoryError::NoPath)?;
        if !serves(&directory).ok_or(DirectoryError::NoPath)? {
            return Err(DirectoryError::Elsewhere {
                directory: short(&directory),
                workspace: root(),
            });
        }
    }
    for (_, list) in named(LIST) {
        let list: Vec<String> =
            serde_json::from_str(list.get()).map_err(|_| DirectoryError::Malformed)?;
        for directory in list {
            if !serves(&directory).ok_or(DirectoryError::Malformed)? {
                return Err(DirectoryError::Outside {
                    directory: short(&directory),
                    workspace: root(),
                });
            }
        }
    }
    Ok(())
}

fn short(directory: &str) -> String {
    complete_words(directory, MAX_DIRECTORY).to_owned()
}
