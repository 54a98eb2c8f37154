//! The directories of the backup store.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, fchmod, fstat, fsync, mkdirat, openat},
    io::Errno,
    process::geteuid,
};

use super::Error;

pub(super) fn open_directory(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

/// Returns an opened directory of the backup store; fails if the entry is of another kind.
pub(super) fn open_existing(
    found: Result<OwnedFd, Errno>,
    shown: &'static str,
) -> Result<OwnedFd, Error> {
    found.map_err(|errno| match errno {
        Errno::NOTDIR | Errno::LOOP => Error::Foreign(shown),
        errno => Error::os("open the backup store")(errno),
    })
}

/// Opens a directory that only this user may enter; makes it if it is missing.
pub(super) fn own_directory(
    dir: BorrowedFd<'_>,
    name: &str,
    shown: &'static str,
) -> Result<OwnedFd, Error> {
    const ACTION: &str = "open the backup store";
    match mkdirat(dir, name, Mode::RWXU) {
        // `dir` may be opened with `O_PATH`, and cannot be synced then.
        Ok(()) => {
            open_directory(dir, ".").and_then(|dir| fsync(&dir)).map_err(Error::os(ACTION))?;
        }
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(Error::os(ACTION)(errno)),
    }
    let fd = open_existing(open_directory(dir, name), shown)?;
    let stat = fstat(&fd).map_err(Error::os(ACTION))?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(Error::Foreign(shown));
    }
    if stat.st_mode & 0o077 != 0 {
        fchmod(&fd, Mode::RWXU).map_err(Error::os(ACTION))?;
    }
    Ok(fd)
}
