//! Temporary files of the backup store.

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

/// A file that is removed when it is dropped before it was published. Its lock shows that a process
/// is still writing it.
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
            // A gateway that opens the store at the moment may take the file for an unfinished one:
            // it locks it for a moment, or removed it.
            let locked = flock(&temp.file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let stat = fstat(&temp.file).map_err(Error::os(ACTION))?;
            if locked && stat.st_nlink == 1 {
                return Ok(temp);
            }
        }
    }

    /// Marks the file as complete, by the name that it gets in its place.
    pub(super) fn complete(&mut self, name: String) -> Result<(), Errno> {
        let Some(temp) = &self.name else { return Err(Errno::INVAL) };
        renameat_with(&self.dir, temp, &self.dir, &name, RenameFlags::NOREPLACE)?;
        self.name = Some(name);
        Ok(())
    }

    /// Gives the file its name, which must be free.
    pub(super) fn publish(&mut self, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        let Some(temp) = &self.name else { return Err(Errno::INVAL) };
        renameat_with(&self.dir, temp, dir, name, RenameFlags::NOREPLACE)?;
        self.name = None;
        Ok(())
    }

    /// Gives the file its name, and replaces a file that has it.
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
            // A file that cannot be removed now is removed at the next opening.
            let _ = unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}
