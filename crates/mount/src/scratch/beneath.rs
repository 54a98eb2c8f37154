//! Access to entries beneath a directory, by paths that cannot leave it.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmodat, fstat, openat, openat2,
        statat, unlinkat,
    },
    io::{Errno, Result},
};

/// Paths stay beneath the directory, and links are not followed.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Maximum of retries, since a rename by another process may interrupt the resolution of a path.
const MAX_ATTEMPTS: usize = 8;

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(crate) struct ListedEntry {
    pub(crate) name: Box<OsStr>,
    pub(crate) kind: FileType,
    pub(crate) inode: u64,
}

/// Opens the entry at `path` beneath `base`.
///
/// # Errors
/// The error of the system; `ELOOP` or `EXDEV` for a path that leads elsewhere.
pub(crate) fn open(base: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut attempts = 0..MAX_ATTEMPTS;
    loop {
        match openat2(base.as_fd(), path, flags, mode, RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) if attempts.next().is_some() => {}
            opened => return opened,
        }
    }
}

/// Opens a directory with `O_PATH`, as the parent of its entries.
///
/// # Errors
/// As [`open`].
pub(crate) fn directory(base: impl AsFd, path: &Path) -> Result<OwnedFd> {
    open(base, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
}

/// Returns the status of the entry at `path`; a link is not followed.
///
/// # Errors
/// As [`open`].
pub(crate) fn stat(base: impl AsFd, path: &Path) -> Result<Stat> {
    fstat(open(base, path, OFlags::PATH, Mode::empty())?)
}

/// Returns true if a kind is served: devices, sockets and pipes lead out of the sandbox.
pub(crate) fn is_served(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

/// Returns the kind of an entry.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns true if this can be the name of an entry.
pub(crate) fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Lists the served entries of a directory.
///
/// # Errors
/// The error of the system.
pub(crate) fn list(directory: impl AsFd) -> Result<Vec<ListedEntry>> {
    list_within(directory, |_| Ok(()))
}

/// Lists the served entries; calls `room` with the length of each name.
///
/// # Errors
/// The error of the system or of `room`.
pub(crate) fn list_within(
    directory: impl AsFd,
    mut room: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<ListedEntry>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let kind = entry.file_type();
        if is_name(name) && (is_served(kind) || kind == FileType::Unknown) {
            room(name.len())?;
            entries.push(ListedEntry { name: name.into(), kind, inode: entry.ino() });
        }
    }
    Ok(entries)
}

/// A directory on the path of a walk.
struct Level {
    /// The offset at which to continue.
    next: i64,
    /// Its name in the parent directory, and the identity of the parent.
    name: Box<OsStr>,
    above: (u64, u64),
    /// Its former mode, if that was changed for the walk.
    closed: Option<Mode>,
}

impl Level {
    /// Enters a directory; one without rights for its owner gets them meanwhile.
    fn enter(parent: &OwnedFd, name: Box<OsStr>) -> Result<(OwnedFd, Self)> {
        let facts = statat(parent, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = Mode::from_raw_mode(facts.st_mode & 0o7777);
        let closed = Some(mode).filter(|mode| !mode.contains(Mode::RWXU));
        if closed.is_some() {
            chmodat(parent, &*name, Mode::RWXU, AtFlags::empty())?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open(parent, Path::new(&*name), flags, Mode::empty())?;
        let above = identity(parent)?;
        Ok((directory, Self { next: 0, name, above, closed }))
    }

    /// Calls `found` for the remaining entries of `directory` up to the next subdirectory, and
    /// returns that one's name.
    fn next_directory(
        &mut self,
        directory: &OwnedFd,
        found: &mut impl FnMut(&OwnedFd, &OsStr, &Stat) -> Result<()>,
    ) -> Result<Option<Box<OsStr>>> {
        let mut read = Dir::read_from(directory)?;
        read.seek(self.next)?;
        for entry in read {
            let entry = entry?;
            self.next = entry.offset();
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if !is_name(name) {
                continue;
            }
            let facts = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if kind(&facts) == FileType::Directory {
                return Ok(Some(name.into()));
            }
            found(directory, name, &facts)?;
        }
        Ok(None)
    }

    /// Restores the mode.
    fn leave(&self, parent: &OwnedFd) -> Result<()> {
        self.closed.map_or(Ok(()), |mode| chmodat(parent, &*self.name, mode, AtFlags::empty()))
    }
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64)> {
    fstat(directory).map(|facts| (facts.st_dev, facts.st_ino))
}

/// Calls `found` for everything beneath the directory at `path`, with the parent directory and the
/// name; a directory comes after its content. At any depth only one directory is open at a time,
/// and no path is longer than a name.
///
/// # Errors
/// The error of the system or of `found`.
pub(crate) fn walk(
    base: &OwnedFd,
    path: &Path,
    found: &mut impl FnMut(&OwnedFd, &OsStr, &Stat) -> Result<()>,
) -> Result<()> {
    let (parent, top) = split(path)?;
    let parent = directory(base, parent)?;
    let (mut here, level) = Level::enter(&parent, top.into())?;
    let mut levels = vec![level];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.next_directory(&here, found)? {
            let (child, level) = Level::enter(&here, name)?;
            levels.push(level);
            here = child;
        } else if let Some(level) = levels.pop() {
            if levels.is_empty() {
                return level.leave(&parent);
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            here = openat(&here, "..", flags, Mode::empty())?;
            if identity(&here)? != level.above {
                return Err(Errno::XDEV);
            }
            level.leave(&here)?;
            found(&here, &level.name, &statat(&here, &*level.name, AtFlags::SYMLINK_NOFOLLOW)?)?;
        }
    }
    Ok(())
}

/// Removes the directory at `path` with all of its content.
///
/// # Errors
/// The error of the system; part of the content may be removed then.
pub(crate) fn remove_all(base: &OwnedFd, path: &Path) -> Result<()> {
    walk(base, path, &mut |directory, name, facts| {
        let is_directory = kind(facts) == FileType::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        unlinkat(directory, name, flags)
    })?;
    remove(base, path, true)
}

/// Removes an entry.
///
/// # Errors
/// The error of the system.
pub(crate) fn remove(base: impl AsFd, path: &Path, is_directory: bool) -> Result<()> {
    let (parent, name) = split(path)?;
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    unlinkat(directory(base, parent)?, name, flags)
}

/// Splits a path into its directory, `.` for the first, and its last name.
///
/// # Errors
/// `EINVAL` where there is no name.
pub(crate) fn split(path: &Path) -> Result<(&Path, &OsStr)> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}

#[cfg(test)]
mod tests {
    use rustix::fs::mkdirat;

    use super::*;

    /// Programs create such trees by renaming one to the bottom of another.
    #[test]
    fn a_tree_deeper_than_any_path_is_walked_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let base = rustix::fs::open(place.path(), flags, Mode::empty()).unwrap();
        let name = "n".repeat(250);
        let mut at = open(&base, Path::new("."), flags, Mode::empty()).unwrap();
        for depth in 0..300 {
            let name = if depth == 0 { "7" } else { name.as_str() };
            mkdirat(&at, name, Mode::RWXU).unwrap();
            at = open(&at, Path::new(name), flags, Mode::empty()).unwrap();
        }
        let mut count = 0;
        let count_one = &mut |_: &OwnedFd, _: &OsStr, _: &Stat| {
            count += 1;
            Ok(())
        };
        walk(&base, Path::new("7"), count_one).unwrap();
        assert_eq!(count, 299);
        remove_all(&base, Path::new("7")).unwrap();
        assert_eq!(list(&base).unwrap().len(), 0);
    }

    #[test]
    fn a_directory_is_read_no_further_than_there_is_room() {
        let place = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let base = rustix::fs::open(place.path(), flags, Mode::empty()).unwrap();
        for name in 0..100 {
            mkdirat(&base, name.to_string(), Mode::RWXU).unwrap();
        }
        let mut asked = 0;
        let room = |_| {
            asked += 1;
            if asked <= 10 { Ok(()) } else { Err(Errno::NOMEM) }
        };
        assert_eq!(list_within(&base, room).unwrap_err(), Errno::NOMEM);
        assert_eq!(asked, 11);
    }

    /// All names of a directory used to be in memory at once, with those of all above it.
    #[test]
    fn a_large_directory_is_walked() {
        let place = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let base = rustix::fs::open(place.path(), flags, Mode::empty()).unwrap();
        mkdirat(&base, "7", Mode::RWXU).unwrap();
        let top = open(&base, Path::new("7"), flags, Mode::empty()).unwrap();
        for name in 0..3000 {
            mkdirat(&top, name.to_string(), Mode::RWXU).unwrap();
        }
        let mut count = 0;
        let count_one = &mut |_: &OwnedFd, _: &OsStr, _: &Stat| {
            count += 1;
            Ok(())
        };
        walk(&base, Path::new("7"), count_one).unwrap();
        assert_eq!(count, 3000);
        remove_all(&base, Path::new("7")).unwrap();
        assert_eq!(list(&base).unwrap().len(), 0);
    }
}
