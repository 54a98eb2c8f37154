//! Opening what lies beneath a directory, by a path that leads nowhere else.

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

/// Nothing leads out of the directory, and no link is followed.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Another process may move something while a path is resolved.
const ATTEMPTS: usize = 8;

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) name: Box<OsStr>,
    pub(crate) kind: FileType,
    pub(crate) inode: u64,
}

/// Opens what is at `path` beneath `base`.
///
/// # Errors
/// As the system says; `ELOOP` or `EXDEV` for what leads elsewhere.
pub(crate) fn open(base: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut attempts = 0..ATTEMPTS;
    loop {
        match openat2(base.as_fd(), path, flags, mode, RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) if attempts.next().is_some() => {}
            opened => return opened,
        }
    }
}

/// The place of a directory, to name its entries.
///
/// # Errors
/// As [`open`].
pub(crate) fn directory(base: impl AsFd, path: &Path) -> Result<OwnedFd> {
    open(base, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
}

/// The facts about what is at `path`; a link is not followed.
///
/// # Errors
/// As [`open`].
pub(crate) fn stat(base: impl AsFd, path: &Path) -> Result<Stat> {
    fstat(open(base, path, OFlags::PATH, Mode::empty())?)
}

/// Whether that is served: devices, sockets and pipes lead out of the sandbox.
pub(crate) fn is_served(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

/// What kind of entry that is.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether this can be the name of an entry.
pub(crate) fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// The entries of a directory that are served.
///
/// # Errors
/// As the system says.
pub(crate) fn list(directory: impl AsFd) -> Result<Vec<Listed>> {
    list_within(directory, |_| Ok(()))
}

/// The same as long as there is `room` for names, which is asked for each with its length.
///
/// # Errors
/// That of `room`, too.
pub(crate) fn list_within(
    directory: impl AsFd,
    mut room: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Listed>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let kind = entry.file_type();
        if is_name(name) && (is_served(kind) || kind == FileType::Unknown) {
            room(name.len())?;
            entries.push(Listed { name: name.into(), kind, inode: entry.ino() });
        }
    }
    Ok(entries)
}

/// A directory that a walk is in.
struct Level {
    /// Where in it to go on.
    next: i64,
    /// Its name in the one above, and which one that is.
    name: Box<OsStr>,
    above: (u64, u64),
    /// Its mode, if that was changed to come in.
    closed: Option<Mode>,
}

impl Level {
    /// Enters a directory: one that a program closed is opened meanwhile.
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

    /// Calls `found` for what is left in it, which is `directory`, up to the next directory there;
    /// gives its name.
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

    /// Leaves it as it was.
    fn leave(&self, parent: &OwnedFd) -> Result<()> {
        self.closed.map_or(Ok(()), |mode| chmodat(parent, &*self.name, mode, AtFlags::empty()))
    }
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64)> {
    fstat(directory).map(|facts| (facts.st_dev, facts.st_ino))
}

/// Calls `found` for everything beneath the directory at `path`, with the directory that it is in
/// and its name; what is in a directory comes before it. However deep it goes, one directory is
/// open at a time and no path is longer than a name.
///
/// # Errors
/// As the system and `found` say.
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

/// Removes the directory at `path` and everything in it.
///
/// # Errors
/// As the system says. Part of it may be gone then.
pub(crate) fn remove_all(base: &OwnedFd, path: &Path) -> Result<()> {
    walk(base, path, &mut |directory, name, facts| {
        let is_directory = kind(facts) == FileType::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        unlinkat(directory, name, flags)
    })?;
    remove(base, path, true)
}

/// Removes one entry.
///
/// # Errors
/// As the system says.
pub(crate) fn remove(base: impl AsFd, path: &Path, is_directory: bool) -> Result<()> {
    let (parent, name) = split(path)?;
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    unlinkat(directory(base, parent)?, name, flags)
}

/// The directory of a path, `.` for the first, and its last name.
///
/// # Errors
/// `EINVAL` where there is none.
pub(crate) fn split(path: &Path) -> Result<(&Path, &OsStr)> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}

#[cfg(test)]
mod tests {
    use rustix::fs::mkdirat;

    use super::*;

    /// Programs make such trees by renaming one to the bottom of another.
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

    /// All names of a directory were held at once, and those of all above it.
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
