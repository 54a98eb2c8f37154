//! The workspace that an option names.

use std::path::Path;

use super::failure::{Context as _, Failure};
use crate::gateway::Workspace;

/// Opens the directory that an option names as the workspace.
pub(crate) fn open_workspace(path: &Path) -> Result<Workspace, Failure> {
    let shown = path.display();
    Workspace::open(path).or_fail(format_args!("cannot open the workspace `{shown}`"))
}
