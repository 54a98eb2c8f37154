//! The agent's private home directory, which persists between its sessions unless it is removed.

use std::{
    ffi::{CStr, CString, OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, Dir, FlockOperation, Gid, Mode, OFlags, Uid, chmod, chownat, flock, fstat, mkdir,
        open, openat, statat, unlink, unlinkat,
    },
    io::Errno,
    path::Arg,
};

use super::{mounts, process::of_descriptor};

/// The home directory cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the agent's home directory `{path}`: {1}", path = .0.display())]
pub struct HomeError(PathBuf, io::Error);

/// Makes the directory, with its parents, private to the operator, and gives it to the agent's
/// user. Returns its canonical path.
pub(super) fn prepare(path: &Path, owner: Option<u32>) -> Result<PathBuf, HomeError> {
    make(path, owner)
        .and_then(|()| mounts::existing(path))
        .map_err(|e| HomeError(path.to_owned(), e))
}

/// Makes the directory for temporary files of a sandbox without a `/tmp` of its own, and returns
/// its path. The agent can replace it by a link at any moment, so it must not be granted; the home
/// directory around it is granted instead.
pub(super) fn temporary(home: &Path, owner: Option<u32>) -> Result<PathBuf, HomeError> {
    let path = home.join("tmp");
    let made = match make(&path, owner) {
        // The agent put a file or a link there, whose target must not be used.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOTDIR) => {
            unlink(&path).map_err(io::Error::from).and_then(|()| make(&path, owner))
        }
        other => other,
    };
    match made {
        Ok(()) => Ok(path),
        Err(e) => Err(HomeError(path, e)),
    }
}

/// Makes the directory of all homes unless it exists, and locks it for a session, as other sessions
/// do at the same time; `None` while another process removes it. An agent cannot reach the lock.
///
/// # Errors
/// As the system reports.
pub fn share_homes(homes: &Path) -> io::Result<Option<OwnedFd>> {
    loop {
        make_way(homes, way(rustix::process::geteuid().is_root()))?;
        let directory = open(homes, HOMES, Mode::empty())?;
        match flock(&directory, FlockOperation::NonBlockingLockShared) {
            // Another process removed it before it was locked.
            Ok(()) if fstat(&directory)?.st_nlink == 0 => {}
            Ok(()) => return Ok(Some(directory)),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Locks the directory of all homes for their removal; `None` while a session uses one.
///
/// # Errors
/// As the system reports.
pub fn lock_homes(homes: &Path) -> io::Result<Option<OwnedFd>> {
    let directory = open(homes, HOMES, Mode::empty())?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(directory)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory of the operator's, also by a link.
const HOMES: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A home directory that does not outlive the process that has it locked. If that process was
/// killed, the next one removes it.
#[derive(Debug)]
pub struct TemporaryHome {
    homes: OwnedFd,
    name: OsString,
    _lock: OwnedFd,
}

impl TemporaryHome {
    /// Locks the home at `path`, which is made later.
    ///
    /// # Errors
    /// As the system reports.
    pub fn lock(path: &Path) -> io::Result<Self> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        make_way(above, way(rustix::process::geteuid().is_root()))?;
        let homes = open(above, FOUND | OFlags::RDONLY, Mode::empty())?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            // The lock lies beside the home, in which the agent would reach it.
            let lock = openat(&homes, lock_of(name), flags, Mode::RUSR | Mode::WUSR)?;
            if is_locked(&lock)? {
                return Ok(Self { homes, name: name.to_owned(), _lock: lock });
            }
            // Another process removed the file before it was locked.
        }
    }

    /// Removes the home and its lock.
    ///
    /// # Errors
    /// As the system reports; the rest stays then.
    pub fn remove(&self) -> io::Result<()> {
        remove(&self.homes, &self.name)
    }

    /// Removes the homes in the directory `homes` that no process has locked; calls `tell` for each
    /// that cannot be removed.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn remove_abandoned(homes: &Path, tell: impl Fn(&Path, io::Error)) -> io::Result<()> {
        let directory = match open(homes, FOUND | OFlags::RDONLY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        for entry in names(&directory)? {
            let name = entry.to_bytes().strip_prefix(b".").and_then(|n| n.strip_suffix(LOCK));
            let Some(name) = name.map(OsStr::from_bytes) else { continue };
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            // Its owner removed it meanwhile.
            let Ok(lock) = openat(&directory, &entry, flags, Mode::empty()) else { continue };
            if is_locked(&lock)?
                && let Err(error) = remove(&directory, name)
            {
                tell(&homes.join(name), error);
            }
        }
        Ok(())
    }
}

/// Suffix of the name of a lock.
const LOCK: &[u8] = b".lock";

/// Returns the name of a home's lock; no agent's name begins with a dot.
fn lock_of(home: &OsStr) -> OsString {
    OsString::from_vec([b".", home.as_bytes(), LOCK].concat())
}

/// Locks a file without waiting. Returns false for a file whose name is gone: that lock guards
/// nothing.
fn is_locked(file: &OwnedFd) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(fstat(file)?.st_nlink > 0),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a home whose programs have all ended, and then its lock.
fn remove(homes: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let is_gone = || matches!(statat(homes, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT));
    match remove_tree_in(homes, name) {
        // It was not made, or another process removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_gone() => {}
        removed => removed?,
    }
    match unlinkat(homes, lock_of(name), AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        unlinked => Ok(unlinked?),
    }
}

/// A parent of the directory that is being emptied.
struct EmptiedParent {
    /// The name in it of the directory below.
    name: CString,
    /// Device and inode.
    identity: (u64, u64),
    /// The offset in it at which to continue.
    next: i64,
}

/// Removes a directory with its contents, as programs may have left it: whatever the modes in it are,
/// at any depth. Follows no link in it, also of a program that changes it meanwhile.
///
/// # Errors
/// As the system reports; the rest stays then.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    remove_tree_in(&open(above, HOMES, Mode::empty())?, name)
}

/// Removes a directory in another one. At any depth, one directory is open at a time, and each is
/// read once.
fn remove_tree_in(homes: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let (mut here, mut next) = (writable(homes, name)?, 0);
    let mut above: Vec<EmptiedParent> = Vec::new();
    loop {
        if let Some(name) = next_directory(&here, &mut next)? {
            let inner = writable(&here, &name)?;
            above.push(EmptiedParent { name, identity: identity(&here)?, next });
            (here, next) = (inner, 0);
        } else if let Some(EmptiedParent { name, identity: expected, next: then }) = above.pop() {
            here = openat(&here, "..", FOUND | OFlags::RDONLY, Mode::empty())?;
            if identity(&here)? != expected {
                return Err(Errno::XDEV.into());
            }
            unlinkat(&here, &name, AtFlags::REMOVEDIR)?;
            next = then;
        } else {
            return Ok(unlinkat(homes, name, AtFlags::REMOVEDIR)?);
        }
    }
}

fn identity(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let facts = fstat(directory)?;
    Ok((facts.st_dev, facts.st_ino))
}

/// Removes the entries of a directory from `next` on, up to the first directory, and returns its
/// name.
fn next_directory(directory: &OwnedFd, next: &mut i64) -> io::Result<Option<CString>> {
    let mut read = Dir::read_from(directory)?;
    read.seek(*next)?;
    for entry in read {
        let entry = entry?;
        *next = entry.offset();
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") && !is_unlinked(directory, name)? {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// Removes an entry that is no directory; returns false if it is one.
fn is_unlinked(directory: &OwnedFd, name: &CStr) -> io::Result<bool> {
    match unlinkat(directory, name, AtFlags::empty()) {
        // Another process may have removed it meanwhile.
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens the directory of that name, following no link, with a mode that lets its owner list and
/// change it.
fn writable(directory: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let handle = openat(directory, name, FOUND | OFlags::PATH, Mode::empty())?;
    chmod(of_descriptor(&handle), Mode::RWXU)?;
    Ok(openat(&handle, ".", FOUND | OFlags::RDONLY, Mode::empty())?)
}

/// Opens a directory, and no link to one.
const FOUND: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

fn make(path: &Path, owner: Option<u32>) -> io::Result<()> {
    make_way(path, way(owner.is_some()))?;
    let handle = itself(path)?;
    let facts = fstat(&handle)?;
    if facts.st_mode & 0o7777 != 0o700 {
        chmod(of_descriptor(&handle), Mode::RWXU)?;
    }
    if let Some(owner) = owner
        && facts.st_uid != owner
    {
        let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
        chownat(&handle, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// Returns the mode of the parents: another user must search them to reach its own home.
fn way(is_anothers: bool) -> Mode {
    if is_anothers { Mode::from_raw_mode(0o711) } else { Mode::RWXU }
}

/// Makes a directory and its parents.
fn make_way(path: &Path, mode: Mode) -> io::Result<()> {
    let mut above: Vec<_> = path.ancestors().collect();
    above.reverse();
    for directory in above {
        match mkdir(directory, mode) {
            // The umask must not deny the search either.
            Ok(()) => chmod(of_descriptor(&itself(directory)?), mode)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) if rustix::fs::stat(directory).is_err() => return Err(e.into()),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Opens the directory of that name, following no link. It need not be readable: the agent may have
/// changed the mode of its own home.
fn itself(directory: &Path) -> io::Result<OwnedFd> {
    Ok(open(directory, FOUND | OFlags::PATH, Mode::empty())?)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "makes what a command leaves behind")]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_removed_whatever_is_in_it() {
        let place = tempfile::tempdir().unwrap();
        let lock = TemporaryHome::lock(&place.path().join("home")).unwrap();
        let home = prepare(&place.path().join("home"), None).unwrap();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("stays"), "").unwrap();
        std::os::unix::fs::symlink(&outside, home.join("link")).unwrap();
        std::fs::create_dir(home.join("0")).unwrap();
        std::fs::write(home.join("0/file"), "").unwrap();
        let mut deep = writable(rustix::fs::CWD, &home).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
            deep = writable(&deep, "d").unwrap();
        }
        std::fs::create_dir(home.join("closed")).unwrap();
        std::fs::write(home.join("closed/file"), "").unwrap();
        chmod(home.join("closed"), Mode::empty()).unwrap();
        let tell = |_: &Path, error| panic!("{error}");
        TemporaryHome::remove_abandoned(place.path(), tell).unwrap();
        assert!(std::fs::exists(&home).unwrap());
        drop(lock);
        TemporaryHome::remove_abandoned(place.path(), tell).unwrap();
        assert!(!std::fs::exists(&home).unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        assert!(std::fs::exists(outside.join("stays")).unwrap());
    }

    #[test]
    fn a_link_in_the_place_of_the_temporary_directory_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let home = prepare(&place.path().join("home"), None).unwrap();
        let other = place.path().join("other");
        mkdir(&other, Mode::from_raw_mode(0o755)).unwrap();
        let temporary = temporary(&home, None).unwrap();
        assert_eq!(temporary, home.join("tmp"));
        rustix::fs::rmdir(&temporary).unwrap();
        std::os::unix::fs::symlink(&other, &temporary).unwrap();
        assert_eq!(super::temporary(&home, None).unwrap(), temporary);
        let made = rustix::fs::lstat(&temporary).unwrap().st_mode;
        assert!(rustix::fs::FileType::from_raw_mode(made).is_dir());
        assert_eq!(rustix::fs::stat(&other).unwrap().st_mode & 0o777, 0o755);
    }
}
