//! Descriptors beneath the root: opening, identity, bounded reading.

use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{FileType, OFlags, RawMode, Stat as RawStat, fstat},
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

/// More than the kernel's clock for times of files advances at once (`CONFIG_HZ`), twice.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// Which inode a descriptor names. While a descriptor is open the pair cannot
/// be given to another object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    dev: u64,
    ino: u64,
}

impl Identity {
    /// The inode number.
    pub(crate) fn ino(self) -> u64 {
        self.ino
    }
}

/// The facts about one object that operations and doors need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Which inode.
    pub(crate) identity: Identity,
    /// What it is.
    pub kind: ObjectKind,
    /// Number of names it has.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits without set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Last change of content, name or attributes: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
}

/// A state of an object. As long as it is the same, so is the content of an object that
/// [is settled](Stat::is_settled).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    identity: Identity,
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Version {
    /// The inode number.
    pub fn inode(&self) -> u64 {
        self.identity.ino()
    }

    /// Whether it can be what a rename or a change of attributes made of `before`; `sets_time` of
    /// one that sets the time of the content.
    pub fn has_content_of(&self, before: &Self, sets_time: bool) -> bool {
        self.identity == before.identity
            && self.size == before.size
            && (sets_time || self.modified == before.modified)
    }
}

impl Stat {
    /// The facts about the object behind `fd`.
    ///
    /// # Errors
    /// When the system does not tell.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Error> {
        fstat(fd).map(|raw| Self::from_raw(&raw)).map_err(Error::os("look at the file"))
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

    /// The same from device and inode, type and mode, links, size, user and
    /// group, and the last changes of content and of anything.
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

    /// The inode number.
    pub fn inode(&self) -> u64 {
        self.identity.ino()
    }

    /// Whether the last change is long enough ago that a later one gets another time: the
    /// kernel's clock for times of files advances in steps of at most 10 ms.
    pub fn is_settled(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let Ok(seconds) = u64::try_from(seconds) else { return true };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        SystemTime::now().duration_since(changed).is_ok_and(|passed| passed > CLOCK_STEP)
    }

    /// What differs as soon as the content or anything else of the object does.
    pub fn version(&self) -> Version {
        let Self { identity, size, modified, changed, .. } = *self;
        Version { identity, size, modified, changed }
    }

    /// What the policy wants to know of the object.
    pub fn object(&self, through_symlink: bool) -> Object {
        Object { kind: self.kind, links: self.links, through_symlink }
    }
}

/// An open directory and the name in it that an operation is about.
#[derive(Debug)]
pub(crate) struct Parent {
    dir: OwnedFd,
    path: WorkspacePath,
    aliases: bool,
}

impl Parent {
    /// The entry's name.
    pub(crate) fn name(&self) -> &str {
        self.path.file_name().unwrap_or_default()
    }

    /// The path of an entry, for a person: the name need not be one that is served.
    pub(crate) fn path_of(&self, name: &str) -> String {
        match self.path.parent() {
            Some(parent) if !parent.is_root() => format!("{parent}/{name}"),
            _ => name.to_owned(),
        }
    }

    /// Looks at the entry itself, never at what it points to.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is gone.
    pub(crate) fn stat(&self, name: &str) -> Result<Stat, Error> {
        let fd = self.open(name, OFlags::PATH | OFlags::NOFOLLOW)?;
        Stat::of(fd)
    }

    /// Opens an entry of the directory without following a link.
    ///
    /// # Errors
    /// As the system says; a link where none was is [`Error::Moved`].
    pub(crate) fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        // The gate's own names are nobody's aliases.
        if !TempName::is_reserved_name(name) && !self.lists(name)? {
            return Err(Error::NotFound);
        }
        open_beneath(self.dir.as_fd(), name, flags).map_err(lookup_error("open the file"))
    }

    /// Whether the directory may have the entry `name` under this name: always, but
    /// where it has it under another one.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn lists(&self, name: &str) -> Result<bool, Error> {
        match self.aliases {
            false => Ok(true),
            true => {
                names::lists(self.dir.as_fd(), name).map_err(lookup_error("read the directory"))
            }
        }
    }

    /// Makes the directory's entries durable.
    ///
    /// # Errors
    /// As the system says.
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
    /// Opens what `path`, free of links, names.
    ///
    /// # Errors
    /// [`Error::Moved`] when a link stands in the way now.
    pub(crate) fn open_at(&self, path: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, Error> {
        self.lookup(path.as_str(), flags).map_err(lookup_error("open the file"))
    }

    /// The same for a path that was made of the names in lists, which need not be
    /// looked for there again.
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

    /// Opens what somebody's path names, as [`open_beneath`].
    pub(super) fn lookup(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        if self.has_aliases() {
            names::find_all(self.as_fd(), path)?;
        }
        open_beneath(self.as_fd(), path, flags)
    }

    /// Opens the directory that holds `path`.
    ///
    /// # Errors
    /// As [`Workspace::open_at`]; the root has no parent.
    pub(crate) fn open_parent(&self, path: &WorkspacePath) -> Result<Parent, Error> {
        let Some(parent) = path.parent() else { return Err(Error::IsADirectory) };
        let dir = self.open_at(&parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Parent { dir, path: path.clone(), aliases: self.has_aliases() })
    }

    /// Whether `parent` still is the directory that it was opened as, so that what
    /// is done through the handle happens where it was decided.
    ///
    /// # Errors
    /// [`Error::Moved`] when it is not.
    pub(crate) fn confirm(&self, parent: &Parent) -> Result<(), Error> {
        let now = self.open_parent(&parent.path).map_err(|_| Error::Moved)?;
        if Stat::of(&now)?.identity == Stat::of(parent)?.identity {
            Ok(())
        } else {
            Err(Error::Moved)
        }
    }
}

/// Reads the file from its start: all of it, or `limit` bytes and one more, so
/// that the caller can tell that it is too large without holding all of it.
/// Growth after the size was looked at is caught too. The descriptor's offset
/// does not move.
///
/// # Errors
/// As the system says.
pub(crate) fn read_bounded(file: &File, size: u64, limit: u64) -> Result<Vec<u8>, Error> {
    read_bounded_into(file, size, limit, Vec::new())
}

/// The same with the memory of `content`, whatever that holds: for whoever reads
/// one file after the other.
///
/// # Errors
/// As the system says.
pub(crate) fn read_bounded_into(
    file: &File,
    size: u64,
    limit: u64,
    mut content: Vec<u8>,
) -> Result<Vec<u8>, Error> {
    let bound = limit.saturating_add(1);
    let expected = usize::try_from(size.min(bound)).unwrap_or_default();
    if expected <= AT_ONCE {
        content.resize(expected.saturating_add(1), 0);
        // One byte more was asked for than the file had: these are all.
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
const AT_ONCE: usize = 64 * 1024;

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
