//! Directories that a change needs and that are not there yet.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Mode, OFlags, fsync, mkdirat},
    io::Errno,
};

use super::Error;
use crate::{
    model::WorkspacePath,
    workspace::{self, Workspace},
};

/// Makes the missing directories above `path`, durably, outermost first.
///
/// # Errors
/// As the system says; a link or a file in the way is an error.
pub(super) fn create(workspace: &Workspace, path: &WorkspacePath) -> Result<(), Error> {
    for directory in workspace.missing_ancestors(path)? {
        make(workspace, &directory)?;
    }
    Ok(())
}

/// Makes one directory; one that is there already is fine.
pub(super) fn make(workspace: &Workspace, path: &WorkspacePath) -> Result<OwnedFd, Error> {
    let parent = workspace.open_parent(path)?;
    workspace.confirm(&parent)?;
    match mkdirat(&parent, parent.name(), Mode::from_raw_mode(0o777)) {
        Ok(()) => {
            let made = workspace.open_directory(path)?;
            fsync(&made).map_err(workspace::Error::os("sync the directory"))?;
            parent.sync()?;
            Ok(made)
        }
        Err(Errno::EXIST) => {
            let there = parent.open(parent.name(), OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(there)
        }
        Err(errno) => Err(workspace::Error::os("make the directory")(errno).into()),
    }
}
