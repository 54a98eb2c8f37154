//! Workspace paths on the command line.

use std::path::Path;

use crate::{gateway::Refusal, model::WorkspacePath};

/// Parses a path argument: relative to the workspace, or absolute beneath its root.
pub(crate) fn parse(root: &Path, text: &str) -> Result<WorkspacePath, Refusal> {
    let relative = match text.strip_prefix('/') {
        None => text,
        Some(_) => root
            .to_str()
            .and_then(|root| text.strip_prefix(root))
            .and_then(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') })
            .ok_or(Refusal::Outside)?,
    };
    WorkspacePath::parse(relative).map_err(Refusal::Path)
}
