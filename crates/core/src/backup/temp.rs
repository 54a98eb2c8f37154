//! Files that nobody has seen yet.

use std::{
    fs::File,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, openat, renameat,
        renameat_with, unlinkat,
    },
    io::Errno,
};

use super::Error;
use crate::random::random_hex;

/// A file that goes when it is dropped before it was published. Its lock says
/// that somebody is still writing it.
#[derive(Debug)]
pub(super) struct Temp {
    dir: Arc<OwnedFd>,
    name: Option<String>,
    pub(super) file: File,
}

impl Temp {
    pub(super) fn new(dir: &Arc<OwnedFd>) -> Result<Self, Error> {
        const ACTION: &str = "make a file for the backup";
        loop {
            let name = random_hex::<16>().map_err(Error::os(ACTION))?;
            let flags =
                OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = match openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => fd,
                Err(Errno::EXIST | Errno::INTR) => continue,
                Err(errno) => return Err(Error::os(ACTION)(errno)),
            };
            let temp = Self { dir: Arc::clone(dir), name: Some(name), file: fd.into() };
            // A gate that opens the vault just now may take the file for one
            // left behind: it holds the lock for a moment, or removed the file.
            let locked = flock(&temp.file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let stat = fstat(&temp.file).map_err(Error::os(ACTION))?;
            if locked && stat.st_nlink == 1 {
                return Ok(temp);
            }
        }
    }

    /// Says that the file is whole, by the name that it gets where it belongs.
    pub(super) fn complete(&mut self, name: String) -> Result<(), Errno> {
        let Some(temp) = &self.name else { return Err(Errno::INVAL) };
        renameat_with(&self.dir, temp, &self.dir, &name, RenameFlags::NOREPLACE)?;
        self.name = Some(name);
        Ok(())
    }

    /// Gives the file its name, which must not be taken.
    pub(super) fn publish(&mut self, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        let Some(temp) = &self.name else { return Err(Errno::INVAL) };
        renameat_with(&self.dir, temp, dir, name, RenameFlags::NOREPLACE)?;
        self.name = None;
        Ok(())
    }

    /// Gives the file its name and takes that from whatever has it.
    pub(super) fn replace(&mut self, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        let Some(temp) = &self.name else { return Err(Errno::INVAL) };
        renameat(&self.dir, temp, dir, name)?;
        self.name = None;
        Ok(())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // What cannot be removed now is removed at the next opening.
            let _ = unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}
