//! Locks on directories between calls of an editor and changes of names.
//!
//! An editor opens a file by its path and follows links. So the path must name the
//! object that was decided on until the editor has replied: a call holds a shared lock
//! on every directory on the way, and a change that gives a name to another object
//! holds an exclusive lock on the directory of that name.
//!
//! The locks are those of open file descriptions (`F_OFD_SETLK`, `fcntl(2)`) on one file
//! of the state directory, one byte for each inode number. They exclude requests of this
//! gateway and of every other one over the same state directory, and end with the
//! process. Other processes do not take part.

use std::{
    fs::File,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::fs::OFlags;

use super::Error;
use crate::{
    audit_log::LockFile,
    workspace::{self, Identity, Parent, Permit, Stat, Workspace},
};

/// Timeout of a change of names that waits for calls of an editor.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts to lock.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The locks of one state directory.
#[derive(Debug)]
pub(crate) struct NameLocks {
    file: LockFile,
    /// Locks of calls that the editor may still carry out.
    abandoned: Mutex<Vec<NameLock>>,
}

/// Releases its locks when it is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct NameLock {
    /// Each lock has a description of its own: within one, locks do not exclude.
    file: File,
}

impl NameLocks {
    /// Returns the locks in `file`.
    pub(crate) fn new(file: LockFile) -> Self {
        Self { file, abandoned: Mutex::default() }
    }

    /// Locks the directories of `permit`'s path, so that it keeps naming the object that was
    /// decided on.
    ///
    /// # Errors
    /// [`workspace::Error::Moved`] when the path names another object now, and when a lock is not
    /// available in time.
    pub(super) fn pin(&self, workspace: &Workspace, permit: &Permit) -> Result<NameLock, Error> {
        let lock = self.open()?;
        // Each directory is locked before an entry of it is opened, the root first, so
        // that the next one still is on the way.
        for directory in permit.path().ancestors() {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let opened = workspace.open_at(&directory, flags);
            let opened = match opened {
                // Neither the object nor its directory exists.
                Err(workspace::Error::NotFound) if permit.stat().is_none() => break,
                opened => opened?,
            };
            let identity = Stat::of(opened)?.identity;
            wait(|| Ok(lock.try_take(libc::F_RDLCK, identity)?.then_some(())))?;
        }
        permit.confirm(workspace)?;
        Ok(lock)
    }

    /// Excludes calls of an editor for paths through these directories.
    ///
    /// # Errors
    /// When calls do not end in time.
    pub(super) fn exclude(&self, parents: &[&Parent]) -> Result<NameLock, Error> {
        // No lock is held while this waits, so that no two requests wait for each other.
        wait(|| {
            let lock = self.open()?;
            for parent in parents {
                if !lock.try_take(libc::F_WRLCK, Stat::of(parent)?.identity)? {
                    return Ok(None);
                }
            }
            Ok(Some(lock))
        })
    }

    /// Keeps a lock for the lifetime of this process: the editor did not reply, and may act on the
    /// path at any time.
    pub(super) fn abandon(&self, lock: NameLock) {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
    }

    fn open(&self) -> Result<NameLock, Error> {
        let file = self.file.open().map_err(workspace::Error::io("open the lock of names"))?;
        Ok(NameLock { file })
    }
}

impl NameLock {
    /// Locks a directory, unless another lock excludes that.
    fn try_take(&self, kind: libc::c_int, directory: Identity) -> Result<bool, Error> {
        let range = libc::flock {
            l_type: libc::c_short::try_from(kind).unwrap_or_default(),
            l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
            // An offset is signed. Inodes that share a byte only wait for each other.
            l_start: libc::off_t::try_from(directory.ino() >> 1).unwrap_or_default(),
            l_len: 1,
            l_pid: 0,
        };
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) => Ok(false),
            Err(errno) => Err(workspace::Error::io("lock the directory")(errno.into()).into()),
        }
    }
}

/// Repeats `attempt` until it locks, no longer than [`LOCK_TIMEOUT`].
fn wait<T>(mut attempt: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match attempt()? {
            Some(locked) => return Ok(locked),
            None if Instant::now() >= end => return Err(Error::Conflict),
            None => thread::sleep(POLL_INTERVAL),
        }
    }
}
