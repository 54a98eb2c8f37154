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
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmodat, fstat, openat2, unlinkat,
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
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let kind = entry.file_type();
        if is_name(name) && (is_served(kind) || kind == FileType::Unknown) {
            entries.push(Listed { name: name.into(), kind, inode: entry.ino() });
        }
    }
    Ok(entries)
}

/// Calls `found` for everything beneath the directory at `path`; what is in a directory comes
/// before it. A directory that a program closed is passed over, or opened with `force`.
///
/// # Errors
/// As the system and `found` say.
pub(crate) fn walk(
    base: &OwnedFd,
    path: &Path,
    force: bool,
    found: &mut impl FnMut(&Path, &Stat) -> Result<()>,
) -> Result<()> {
    let mut directories = vec![(path.to_owned(), false)];
    while let Some((at, is_listed)) = directories.pop() {
        if is_listed {
            found(&at, &stat(base, &at)?)?;
            continue;
        }
        if at != path {
            directories.push((at.clone(), true));
        }
        if force {
            let (parent, name) = split(&at)?;
            chmodat(directory(base, parent)?, name, Mode::RWXU, AtFlags::empty())?;
        }
        let opened = match open(base, &at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) if !force => continue,
            opened => opened?,
        };
        for entry in list(opened)? {
            let child = at.join(&*entry.name);
            let facts = match stat(base, &child) {
                Err(Errno::ACCESS) if !force => continue,
                facts => facts?,
            };
            if kind(&facts) == FileType::Directory {
                directories.push((child, false));
            } else {
                found(&child, &facts)?;
            }
        }
    }
    Ok(())
}

/// Removes the directory at `path` and everything in it.
///
/// # Errors
/// As the system says. Part of it may be gone then.
pub(crate) fn remove_all(base: &OwnedFd, path: &Path) -> Result<()> {
    walk(base, path, true, &mut |at, facts| remove(base, at, kind(facts) == FileType::Directory))?;
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
