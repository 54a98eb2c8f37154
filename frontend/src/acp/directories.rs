//! Further directories of a session: `additionalDirectories` of `session/new`,
//! `session/load`, `session/resume` and `session/fork` (ACP v1).
//!
//! Directories in the workspace pass, and those that the operator granted to the
//! agent, whose own tools find them. Any other refuses the whole request, for an
//! agent that was told of it would find nothing there, and nobody would know why.
//! That is decided by name alone, as what a link leads to is when it is used.

use portcullis_rpc::{Object, folds_to};
use serde_json::value::RawValue;

use crate::model::Escaped;

use super::paths::{NotInside, Roots};

/// The requests that have it. In `session/list` it is a filter.
const METHODS: [&str; 4] = ["session/fork", "session/load", "session/new", "session/resume"];
/// The parameter.
const LIST: &str = "additionalDirectories";
/// Longest path that is named, in characters: no other can be a directory's.
const LONGEST: usize = 4096;

/// Why a session is not opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("`{LIST}` is not a list of absolute paths")]
    Malformed,
    #[error(
        "the directory `{}` of `{LIST}` lies neither in the workspace nor in what the agent was \
         granted: start `portcullis run` with a `--workspace` that has both, or grant it with \
         `--agent-read` or `--agent-write`",
        Escaped(.0)
    )]
    Outside(String),
}

/// Checks a request of the editor.
///
/// # Errors
/// When it names a directory that is not served, or none at all.
pub(super) fn check(
    method: &str,
    params: Option<&RawValue>,
    workspace: &Roots,
    granted: &[Roots],
) -> Result<(), Refused> {
    if !METHODS.contains(&method) {
        return Ok(());
    }
    let Some(params) = params.and_then(|params| Object::parse(params.get())) else { return Ok(()) };
    for (_, list) in params.members().filter(|(key, _)| folds_to(key, LIST)) {
        let list: Vec<String> = serde_json::from_str(list.get()).map_err(|_| Refused::Malformed)?;
        for directory in list {
            match workspace.relative(&directory) {
                Ok(_) => {}
                Err(NotInside::Relative) => return Err(Refused::Malformed),
                Err(_) if granted.iter().any(|grant| grant.relative(&directory).is_ok()) => {}
                Err(NotInside::Outside | NotInside::Path(_)) => {
                    return Err(Refused::Outside(directory.chars().take(LONGEST).collect()));
                }
            }
        }
    }
    Ok(())
}
