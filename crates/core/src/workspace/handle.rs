//! Descriptors beneath the root: opening, identity, bounded reading.

use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::{FileType, OFlags, RawMode, Stat as RawStat, Statx, StatxFlags, fstat, makedev},
    io::{Errno, pread},
};

use super::{
    Error, TempName, Workspace,
    beneath::{lookup_error, open_beneath},
    names,
};
use crate::{
    model::WorkspacePath,
    policy::{Object, ObjectKind},
};

/// The inode behind a descriptor. While a descriptor is open, no other object gets the same pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    dev: u64,
    ino: u64,
}

impl Identity {
    /// Returns the inode number.
    pub(crate) fn ino(self) -> u64 {
        self.ino
    }
}

/// The attributes of an object that operations and transports need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The inode.
    pub(crate) identity: Identity,
    /// The kind.
    pub kind: ObjectKind,
    /// Number of hard links.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits without set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Change time, of content, name or attributes: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
}

/// A state of an object. Its content stays the same as long as its version does, once its last
/// change is older than a step of the kernel's clock for file times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    identity: Identity,
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Version {
    /// Returns the inode number.
    pub fn inode(&self) -> u64 {
        self.identity.ino()
    }

    /// True if it can be the result of a rename or a change of attributes of `before`; `sets_time`
    /// is true for a change that sets the modification time.
    pub fn has_content_of(&self, before: &Self, sets_time: bool) -> bool {
        self.identity == before.identity
            && self.size == before.size
            && (sets_time || self.modified == before.modified)
    }
}

impl Stat {
    /// Returns the attributes of the object behind `fd`.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Error> {
        fstat(fd).map(|raw| Self::from_raw(&raw)).map_err(Error::os("look at the file"))
    }

    /// Converts what `statx` returned; `None` if the kernel did not report all of it.
    pub(super) fn from_statx(raw: &Statx) -> Option<Self> {
        let reported = StatxFlags::from_bits_retain(raw.stx_mask);
        reported.contains(StatxFlags::BASIC_STATS).then(|| {
            Self::from_parts(
                (makedev(raw.stx_dev_major, raw.stx_dev_minor), raw.stx_ino),
                RawMode::from(raw.stx_mode),
                raw.stx_nlink.into(),
                raw.stx_size,
                (raw.stx_uid, raw.stx_gid),
                (raw.stx_mtime.tv_sec, raw.stx_mtime.tv_nsec),
                (raw.stx_ctime.tv_sec, raw.stx_ctime.tv_nsec),
            )
        })
    }

    pub(super) fn from_raw(raw: &RawStat) -> Self {
        Self::from_parts(
            (raw.st_dev, raw.st_ino),
            raw.st_mode,
            raw.st_nlink,
            u64::try_from(raw.st_size).unwrap_or_default(),
            (raw.st_uid, raw.st_gid),
            (raw.st_mtime, u32::try_from(raw.st_mtime_nsec).unwrap_or_default()),
            (raw.st_ctime, u32::try_from(raw.st_ctime_nsec).unwrap_or_default()),
        )
    }

    /// Builds the attributes from device and inode, type and mode, links, size, user and group, and
    /// the times of modification and change.
    pub(super) fn from_parts(
        (dev, ino): (u64, u64),
        mode: RawMode,
        links: u64,
        size: u64,
        (uid, gid): (u32, u32),
        modified: (i64, u32),
        changed: (i64, u32),
    ) -> Self {
        let kind = match FileType::from_raw_mode(mode) {
            FileType::RegularFile => ObjectKind::File,
            FileType::Directory => ObjectKind::Directory,
            FileType::Symlink => ObjectKind::Symlink,
            FileType::Fifo => ObjectKind::Fifo,
            FileType::Socket => ObjectKind::Socket,
            _ => ObjectKind::Device,
        };
        let identity = Identity { dev, ino };
        let mode = mode & 0o777;
        Self { identity, kind, links, size, mode, uid, gid, modified, changed }
    }

    /// Returns the inode number.
    pub fn inode(&self) -> u64 {
        self.identity.ino()
    }

    /// Returns the version, which differs after each change of the content or attributes.
    pub fn version(&self) -> Version {
        let Self { identity, size, modified, changed, .. } = *self;
        Version { identity, size, modified, changed }
    }

    /// True of a file that someone may execute.
    pub(crate) fn is_executable(&self) -> bool {
        self.kind == ObjectKind::File && self.mode & 0o111 != 0
    }

    /// Returns the facts about the object that the policy needs.
    pub fn object(&self, through_symlink: bool) -> Object {
        Object { kind: self.kind, links: self.links, through_symlink }
    }
}

/// An open directory and the name in it on which an operation acts.
#[derive(Debug)]
pub(crate) struct Parent {
    dir: OwnedFd,
    path: WorkspacePath,
    aliases: bool,
}

impl Parent {
    /// Returns the entry's name.
    pub(crate) fn name(&self) -> &str {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the path of an entry, for a person: the name need not be one that is served.
    pub(crate) fn path_of(&self, name: &str) -> String {
        match self.path.parent() {
            Some(parent) if !parent.is_root() => format!("{parent}/{name}"),
            _ => name.to_owned(),
        }
    }

    /// Returns the attributes of the entry itself, without following a link.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is missing.
    pub(crate) fn stat(&self, name: &str) -> Result<Stat, Error> {
        let fd = self.open(name, OFlags::PATH | OFlags::NOFOLLOW)?;
        Stat::of(fd)
    }

    /// Opens an entry of the directory without following a link.
    ///
    /// # Errors
    /// Of the system; a link where none was is [`Error::Moved`].
    pub(crate) fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        // The gateway's own names are no aliases.
        if !TempName::is_reserved_name(name) && !self.lists(name)? {
            return Err(Error::NotFound);
        }
        open_beneath(self.dir.as_fd(), name, flags).map_err(lookup_error("open the file"))
    }

    /// True if the directory has the entry `name`, byte for byte; always true on a file system
    /// without name aliases.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn lists(&self, name: &str) -> Result<bool, Error> {
        match self.aliases {
            false => Ok(true),
            true => {
                names::lists(self.dir.as_fd(), name).map_err(lookup_error("read the directory"))
            }
        }
    }

    /// Syncs the directory's entries.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        rustix::fs::fsync(&self.dir).map_err(Error::os("sync the directory"))
    }
}

impl AsFd for Parent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Workspace {
    /// Opens the object at `path`, which has no links.
    ///
    /// # Errors
    /// [`Error::Moved`] when a link is on the way now.
    pub(crate) fn open_at(&self, path: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, Error> {
        self.lookup(path.as_str(), flags).map_err(lookup_error("open the file"))
    }

    /// Opens the object at a path that was made of names in lists, which need not be searched for
    /// there again.
    ///
    /// # Errors
    /// As [`Workspace::open_at`].
    pub(crate) fn open_listed(
        &self,
        path: &WorkspacePath,
        flags: OFlags,
    ) -> Result<OwnedFd, Error> {
        open_beneath(self.as_fd(), path.as_str(), flags).map_err(lookup_error("open the file"))
    }

    /// Opens the object at a path from outside, as [`open_beneath`].
    pub(super) fn lookup(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        if self.has_aliases() {
            names::find_all(self.as_fd(), path)?;
        }
        open_beneath(self.as_fd(), path, flags)
    }

    /// Opens the parent directory of `path`.
    ///
    /// # Errors
    /// As [`Workspace::open_at`]; the root has no parent.
    pub(crate) fn open_parent(&self, path: &WorkspacePath) -> Result<Parent, Error> {
        let Some(parent) = path.parent() else { return Err(Error::IsADirectory) };
        let dir = self.open_at(&parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Parent { dir, path: path.clone(), aliases: self.has_aliases() })
    }

    /// Checks that `parent` still has the path with which it was opened, so that actions through
    /// the descriptor happen where they were decided on.
    ///
    /// # Errors
    /// [`Error::Moved`] when it has another path.
    pub(crate) fn confirm(&self, parent: &Parent) -> Result<(), Error> {
        let now = self.open_parent(&parent.path).map_err(|_| Error::Moved)?;
        if Stat::of(&now)?.identity == Stat::of(parent)?.identity {
            Ok(())
        } else {
            Err(Error::Moved)
        }
    }
}

/// Reads the file from its start: all of it, or `limit` bytes and one more, so that the caller
/// detects a too large file without reading all of it. Growth after the look at the size is
/// detected too. The descriptor's offset does not move.
///
/// # Errors
/// Of the system.
pub(crate) fn read_bounded(file: &File, size: u64, limit: u64) -> Result<Vec<u8>, Error> {
    read_bounded_into(file, size, limit, Vec::new())
}

/// Reads the file as [`read_bounded`] into the memory of `content`, whose old bytes do not matter;
/// for callers that read many files.
///
/// # Errors
/// Of the system.
pub(crate) fn read_bounded_into(
    file: &File,
    size: u64,
    limit: u64,
    mut content: Vec<u8>,
) -> Result<Vec<u8>, Error> {
    let bound = limit.saturating_add(1);
    let expected = usize::try_from(size.min(bound)).unwrap_or_default();
    if expected <= MAX_SINGLE_READ {
        content.resize(expected.saturating_add(1), 0);
        // The read asked for one byte more than the file had, so these are all.
        if pread(file, &mut content[..], 0).is_ok_and(|count| count == expected) {
            content.truncate(expected);
            return Ok(content);
        }
    }
    content.clear();
    content
        .try_reserve_exact(expected.saturating_add(1))
        .map_err(|_| Error::io("read the file")(std::io::ErrorKind::OutOfMemory.into()))?;
    Positioned { file, offset: 0 }
        .take(bound)
        .read_to_end(&mut content)
        .map_err(Error::io("read the file"))?;
    Ok(content)
}

/// Size in bytes up to which a file is read in one call.
const MAX_SINGLE_READ: usize = 64 * 1024;

struct Positioned<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for Positioned<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += u64::try_from(read).unwrap_or_default();
        Ok(read)
    }
}
