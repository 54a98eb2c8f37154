//! Named pipes that lead from a sandbox without namespaces to the gateway. UNIX sockets are refused
//! there: before ABI 9, Landlock cannot restrict which of the host's sockets a process connects to.
//!
//! A directory contains `announcements` and, for each of [`MAX_CLIENTS`] concurrent connections,
//! `N.in` and `N.out`. A client locks `N.out` (flock(2)), opens both, writes `N NONCE` to
//! `announcements`, and reads `N.out` up to the line `NONCE`: bytes before it were for an earlier
//! client. Then it writes to `N.in` and reads the gateway's messages, up to the byte [`END`].

use std::{
    io::{self, ErrorKind},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Gid, Mode, OFlags, chmodat, chownat, fchmod,
        fchown, flock, fstat, mkdir, mknodat, open, openat, rmdir, unlinkat,
    },
    process::geteuid,
};

use super::{mounts, random::random_hex};

/// Maximum of concurrent clients.
pub const MAX_CLIENTS: usize = 16;
/// Name of the pipe in which a client announces a connection.
pub const ANNOUNCEMENTS: &str = "announcements";
/// Byte after the gateway's last message: no line of JSON contains it.
pub const END: u8 = 0;
/// Length of a nonce, in hexadecimal digits.
pub const NONCE: usize = 32;

/// The directory in which the directories of pipes, and of sockets, are made for all agents. Short,
/// or the path of a socket would not fit an address.
pub(super) const PLACE: &str = "/tmp";
/// Prefix of the directory's name.
const PREFIX: &str = ".portcullis-pipes-";
/// Maximum of attempts to make them while other processes remove the new directory.
const MAX_ATTEMPTS: usize = 100;
/// Maximum of names that are examined for directories that a killed process left.
const MAX_EXAMINED_NAMES: usize = 10_000;

/// Returns the name of the pipe into the gateway.
pub fn input(slot: usize) -> String {
    format!("{slot}.in")
}

/// Returns the name of the pipe out of the gateway.
pub fn output(slot: usize) -> String {
    format!("{slot}.out")
}

/// The pipes, and our ends of them, none of which blocks. The pipes are unlinked on drop.
#[derive(Debug)]
pub(super) struct NamedPipes {
    pub(super) directory: Directory,
    pub(super) announcements: OwnedFd,
    /// Ends to read from and to write to, for each slot.
    pub(super) slots: Vec<(OwnedFd, OwnedFd)>,
}

/// The directory; it is locked, and removed on drop.
#[derive(Debug)]
pub(super) struct Directory {
    handle: OwnedFd,
    path: PathBuf,
}

impl NamedPipes {
    /// Makes the pipes, for this user and the group `owner` only.
    pub(super) fn make(owner: Option<u32>) -> io::Result<Self> {
        let above = mounts::existing(Path::new(PLACE))?;
        remove_abandoned(&above)?;
        let mut made = Self::make_in(&above, owner);
        for _ in 1..MAX_ATTEMPTS {
            match &made {
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WouldBlock) =>
                {
                    made = Self::make_in(&above, owner);
                }
                _ => break,
            }
        }
        made
    }

    /// Makes the pipes, unless another process took the directory for abandoned before it was
    /// locked.
    fn make_in(above: &Path, owner: Option<u32>) -> io::Result<Self> {
        let directory = Directory::make(above, owner)?;
        let at = &directory.handle;
        for name in names() {
            let mode = if owner.is_some() { 0o660 } else { 0o600 };
            mknodat(at, &name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            // Independent of the umask.
            chmodat(at, &name, Mode::from_raw_mode(mode), AtFlags::empty())?;
            chownat(at, &name, None, owner.map(Gid::from_raw), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let open = |name: &str, flags| {
            let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(at, name, flags, Mode::empty())
        };
        // Both ends, so that reads never end.
        let announcements = open(ANNOUNCEMENTS, OFlags::RDWR)?;
        let mut slots = Vec::new();
        for slot in 0..MAX_CLIENTS {
            // A pipe without a reader cannot be opened for writing.
            let _reader = open(&output(slot), OFlags::RDONLY)?;
            let writer = open(&output(slot), OFlags::WRONLY)?;
            slots.push((open(&input(slot), OFlags::RDONLY)?, writer));
        }
        Ok(Self { directory, announcements, slots })
    }

    /// Returns the directory's path.
    pub(super) fn path(&self) -> &Path {
        &self.directory.path
    }
}

/// Returns the paths of all pipes in `directory`.
pub(super) fn paths(directory: &Path) -> impl Iterator<Item = PathBuf> {
    names().map(|name| directory.join(name))
}

fn names() -> impl Iterator<Item = String> {
    let slots = (0..MAX_CLIENTS).flat_map(|slot| [input(slot), output(slot)]);
    std::iter::once(ANNOUNCEMENTS.to_owned()).chain(slots)
}

impl Directory {
    fn make(above: &Path, owner: Option<u32>) -> io::Result<Self> {
        let path = above.join(format!("{PREFIX}{}", random_hex()?));
        mkdir(&path, Mode::RWXU)?;
        let directory = Self::open(path)?;
        if let Some(owner) = owner {
            fchown(&directory.handle, None, Some(Gid::from_raw(owner)))?;
            fchmod(&directory.handle, Mode::from_raw_mode(0o710))?;
        }
        Ok(directory)
    }

    /// Opens the directory of that name, unless another process has it locked.
    fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = open(&path, flags, Mode::empty())?;
        if fstat(&handle)?.st_uid != geteuid().as_raw() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        flock(&handle, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { handle, path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Entries may be gone already.
        for name in names() {
            let _ = unlinkat(&self.handle, name, AtFlags::empty());
        }
        let _ = rmdir(&self.path);
    }
}

/// Removes the directories of processes that have ended: their locks are gone.
fn remove_abandoned(above: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = Dir::new(rustix::fs::openat(CWD, above, flags, Mode::empty())?)?;
    for entry in entries.take(MAX_EXAMINED_NAMES) {
        if let Ok(name) = entry?.file_name().to_str()
            && name.starts_with(PREFIX)
        {
            drop(Directory::open(above.join(name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::NamedPipes;

    /// Another start took the new directory for abandoned before it was locked.
    #[test]
    fn pipes_are_made_while_others_remove_abandoned_ones() {
        let make_many = || (0..400).try_for_each(|_| NamedPipes::make(None).map(drop));
        thread::scope(|scope| {
            let makers: Vec<_> = (0..4).map(|_| scope.spawn(make_many)).collect();
            for maker in makers {
                maker.join().unwrap().unwrap();
            }
        });
    }
}
