//! Directories that a change needs: checks of their attributes, and creation of missing ones.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, fsync, mkdirat, statx, unlinkat},
    io::Errno,
};

use super::{Error, atomic_exchange};
use crate::{
    model::WorkspacePath,
    workspace::{self, Workspace},
};

/// Checks that entries in the directory of `path` can be renamed, before anything is made there: in
/// an append-only directory a temporary file could be neither renamed nor removed.
///
/// # Errors
/// When the system forbids it (`chattr +a`).
pub(super) fn check_may_rename(workspace: &Workspace, path: &WorkspacePath) -> Result<(), Error> {
    let parent = match workspace.open_parent(path) {
        // The directory is created later.
        Err(workspace::Error::NotFound) => return Ok(()),
        parent => parent?,
    };
    // A file system that does not report the attribute does not have it.
    let stat = statx(&parent, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    if stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::APPEND)) {
        let action = "replace, rename or remove in an append-only directory (`chattr +a`)";
        return Err(workspace::Error::os(action)(Errno::PERM).into());
    }
    Ok(())
}

/// Makes the missing directories above `path`, durably, outermost first.
///
/// # Errors
/// Of the system; a link or a file on the way is an error.
pub(super) fn create(workspace: &Workspace, path: &WorkspacePath) -> Result<(), Error> {
    for directory in workspace.missing_ancestors(path)? {
        make(workspace, &directory)?;
    }
    Ok(())
}

/// Makes one directory; an existing one is no error.
pub(super) fn make(workspace: &Workspace, path: &WorkspacePath) -> Result<OwnedFd, Error> {
    let parent = workspace.open_parent(path)?;
    workspace.confirm(&parent).map_err(Error::unbegun)?;
    match mkdirat(&parent, parent.name(), Mode::from_raw_mode(0o777)) {
        Ok(()) if !parent.lists(parent.name())? => {
            // It is empty, and this process made it, whatever its name is.
            unlinkat(&parent, parent.name(), AtFlags::REMOVEDIR)
                .map_err(workspace::Error::os("remove the directory"))?;
            Err(Error::Invalid(atomic_exchange::ALIAS))
        }
        Ok(()) => {
            let made = workspace.open_directory(path)?;
            fsync(&made).map_err(workspace::Error::os("sync the directory"))?;
            parent.sync()?;
            Ok(made)
        }
        Err(Errno::EXIST) if !parent.lists(parent.name())? => {
            Err(Error::Invalid(atomic_exchange::ALIAS))
        }
        Err(Errno::EXIST) => {
            let there = parent.open(parent.name(), OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(there)
        }
        Err(errno) => Err(workspace::Error::os("make the directory")(errno).into()),
    }
}
