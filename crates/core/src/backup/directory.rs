//! The directories of the store.

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

/// A directory of the vault, if that is what was found.
pub(super) fn there(found: Result<OwnedFd, Errno>, shown: &'static str) -> Result<OwnedFd, Error> {
    found.map_err(|errno| match errno {
        Errno::NOTDIR | Errno::LOOP => Error::Foreign(shown),
        errno => Error::os("open the vault")(errno),
    })
}

/// Opens a directory that only we may enter, and makes it when missing.
pub(super) fn own_directory(
    dir: BorrowedFd<'_>,
    name: &str,
    shown: &'static str,
) -> Result<OwnedFd, Error> {
    const ACTION: &str = "open the vault";
    match mkdirat(dir, name, Mode::RWXU) {
        // `dir` may be a mere place (`O_PATH`), which cannot be synced.
        Ok(()) => {
            open_directory(dir, ".").and_then(|dir| fsync(&dir)).map_err(Error::os(ACTION))?;
        }
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(Error::os(ACTION)(errno)),
    }
    let fd = there(open_directory(dir, name), shown)?;
    let stat = fstat(&fd).map_err(Error::os(ACTION))?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(Error::Foreign(shown));
    }
    if stat.st_mode & 0o077 != 0 {
        fchmod(&fd, Mode::RWXU).map_err(Error::os(ACTION))?;
    }
    Ok(fd)
}
