//! The agent's own home directory, which persists between its visits.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Uid, chmodat, fchmod, fchown, fstat, mkdir, open,
};

use super::mounts;

/// The home directory cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the agent's home directory `{path}`: {1}", path = .0.display())]
pub struct HomeError(PathBuf, io::Error);

/// Makes the directory, with those above it, private to the operator, and
/// gives it to the agent's user. Returns its canonical path.
pub(super) fn prepare(path: &Path, owner: Option<u32>) -> Result<PathBuf, HomeError> {
    make(path, owner)
        .and_then(|()| mounts::existing(path))
        .map_err(|e| HomeError(path.to_owned(), e))
}

/// The directory for temporary files where the cell has no `/tmp` of its own.
pub(super) fn temporary(home: &Path, owner: Option<u32>) -> Result<PathBuf, HomeError> {
    prepare(&home.join("tmp"), owner)
}

fn make(path: &Path, owner: Option<u32>) -> io::Result<()> {
    let mut above: Vec<_> = path.ancestors().collect();
    above.reverse();
    // Another user must pass through to its own directory.
    let mode = if owner.is_some() { Mode::from_raw_mode(0o711) } else { Mode::RWXU };
    for directory in above {
        match mkdir(directory, mode) {
            // The umask must not close the way either.
            Ok(()) => chmodat(CWD, directory, mode, AtFlags::empty())?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) if rustix::fs::stat(directory).is_err() => return Err(e.into()),
            Err(_) => {}
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = open(path, flags, Mode::empty())?;
    let facts = fstat(&handle)?;
    if facts.st_mode & 0o7777 != 0o700 {
        fchmod(&handle, Mode::RWXU)?;
    }
    if let Some(owner) = owner
        && facts.st_uid != owner
    {
        fchown(&handle, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
    }
    Ok(())
}
