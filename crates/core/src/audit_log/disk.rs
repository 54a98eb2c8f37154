//! File access of the log: by one name, relative to a directory descriptor, never through a link.

use std::{
    ffi::{CString, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    thread,
    time::{Duration, Instant},
};

use portcullis_audit::{FileEntry, HISTORY, LogFile, Source, no_history};
use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat},
    io::Errno,
    path::Arg,
};

use super::{Error, quarantine::FOLDER as QUARANTINE};
use crate::random::{random_bytes, random_hex};

const COMMON: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// A directory of the state directory.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    /// Its path in the state directory, for messages.
    at: String,
}

/// The device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(u64, u64);

impl Id {
    pub(super) fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

/// Returns the length in a file's attributes.
pub(super) fn length(stat: &Stat) -> u64 {
    stat.st_size.try_into().unwrap_or(0)
}

impl Folder {
    /// Opens the directory `name` in `parent`; makes it if it is missing.
    pub(super) fn open(parent: impl AsFd, name: &str) -> Result<Self, Error> {
        let at = match name {
            HISTORY | QUARANTINE => format!("audit/{name}"),
            name => name.to_owned(),
        };
        let flags = COMMON | OFlags::DIRECTORY | OFlags::RDONLY;
        let open = || rustix::fs::openat(&parent, name, flags, Mode::empty());
        let folder = match open() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(Error::io("make a directory for the log")(errno)),
                }
                rustix::fs::fsync(&parent).map_err(Error::io("sync the state directory"))?;
                open()
            }
            found => found,
        };
        match folder {
            Ok(fd) => Ok(Self { fd, at }),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Error::Irregular(at, "directory")),
            Err(errno) => Err(Error::io("open a directory of the log")(errno).of(&at)),
        }
    }

    /// Returns another descriptor of the directory.
    pub(super) fn try_clone(&self) -> Result<Self, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?;
        Ok(Self { fd, at: self.at.clone() })
    }

    /// Returns the path of `name` in the state directory, for messages.
    pub(super) fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.at)
    }

    /// Converts the system's error on opening `name`: only a regular file is a file of the log.
    pub(super) fn opening(&self, action: &'static str, name: &str) -> impl FnOnce(Errno) -> Error {
        let place = self.place(name);
        move |errno| match errno {
            Errno::INVAL | Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                Error::Irregular(place, "regular file")
            }
            errno => Error::Io { action, errno }.of(&place),
        }
    }

    /// Opens the regular file `name`.
    pub(super) fn file(&self, name: impl Arg, flags: OFlags) -> Result<File, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.fd, name, COMMON | flags, mode)?;
        if !is_regular(&rustix::fs::fstat(&file)?) {
            return Err(Errno::INVAL);
        }
        Ok(file.into())
    }

    /// Opens the regular file `name` to read; other kinds are no files of a log.
    fn regular(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::RDONLY).map_err(|errno| match errno {
            Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is no regular file"))
            }
            errno => errno.into(),
        })
    }

    /// Reads the text of a link; `None` if `name` is no link.
    pub(super) fn link(&self, name: impl Arg) -> Result<Option<Vec<u8>>, Errno> {
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the attributes of `name`; `None` if it is missing.
    pub(super) fn stat(&self, name: impl Arg) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the names in UTF-8; all names of the log are.
    pub(super) fn names(&self) -> Result<Vec<String>, Errno> {
        let raw = self.raw_names()?;
        Ok(raw.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Returns all names.
    fn raw_names(&self) -> Result<Vec<OsString>, Errno> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let name = OsString::from_vec(CString::from(entry?.file_name()).into_bytes());
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the name of the file that [`Source::list`] lists as `shown`: the first of several
    /// names with invalid UTF-8 that are listed alike.
    pub(super) fn raw_name(&self, shown: &str) -> Result<OsString, Errno> {
        if shown.contains(char::REPLACEMENT_CHARACTER) && self.stat(shown)?.is_none() {
            let found = self.raw_names()?.into_iter().find(|raw| raw.to_string_lossy() == shown);
            return Ok(found.unwrap_or_else(|| shown.into()));
        }
        Ok(shown.into())
    }

    pub(super) fn rename(&self, from: &str, to: &Self, name: &str) -> Result<(), Errno> {
        rustix::fs::renameat(&self.fd, from, &to.fd, name)
    }

    pub(super) fn remove(&self, name: impl Arg) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
    }

    pub(super) fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.fd)
    }

    pub(super) fn id(&self) -> Result<Id, Errno> {
        Ok(Id::of(&rustix::fs::fstat(&self.fd)?))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Serves the reader and the verifier; the caller locks the log where it needs a moment between two
/// appends.
impl Source for Folder {
    type File = LogFile;

    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let mut entries = Vec::new();
        for name in self.raw_names()? {
            if let Some(stat) = self.stat(&name)? {
                let (length, regular) = (length(&stat), is_regular(&stat));
                let directory = is_directory(&stat);
                let name = name.to_string_lossy().into_owned();
                entries.push(FileEntry { name, length, regular, directory });
            }
        }
        portcullis_audit::unpacked(entries, |name| self.regular(name))
    }

    fn history(&self) -> io::Result<Vec<String>> {
        match self.stat(HISTORY)? {
            None => return Ok(Vec::new()),
            Some(stat) if !is_directory(&stat) => return Err(no_history()),
            Some(_directory) => {}
        }
        Ok(Self::open(self, HISTORY).map_err(io::Error::other)?.names()?)
    }

    fn open(&self, name: &str) -> io::Result<LogFile> {
        LogFile::open(name, |name| self.regular(name))
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// An exclusive lock on an open file, until dropped.
#[derive(Debug)]
pub(super) struct FileLock<'a>(&'a File);

impl<'a> FileLock<'a> {
    /// Waits for the lock as [`wait_lock`] does.
    pub(super) fn wait(file: &'a File, name: &'static str) -> Result<Self, Error> {
        wait_lock(file, name).map(|()| Self(file))
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // Closing the file releases the lock too, so nothing depends on this.
        let _released = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

/// Timeouts of a lock that another process has: for the warning, and for giving up. A gateway needs
/// it for less than a millisecond, and for seconds while it repairs or on a slow disk.
const WARNING_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 30 });
/// The pause between two attempts: the first, and the longest.
const MIN_RETRY_INTERVAL: Duration = Duration::from_micros(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Waits for the lock on `file`, of this name in the state directory, and keeps it until `file` is
/// closed.
///
/// It is polled, because the kernel would wait for ever, and only a signal could end that.
///
/// # Errors
/// [`Error::Locked`] when another process does not release it.
pub(crate) fn wait_lock(file: &File, name: &'static str) -> Result<(), Error> {
    if try_lock(file)? {
        return Ok(());
    }
    let (begun, mut pause, mut told) = (Instant::now(), MIN_RETRY_INTERVAL, false);
    loop {
        thread::sleep(pause);
        if try_lock(file)? {
            return Ok(());
        }
        let waited = begun.elapsed();
        if waited >= WARNING_TIMEOUT && !told {
            told = true;
            tracing::warn!(
                lock = name,
                "waiting for a lock of the state directory that another process holds; `lslocks` \
                 tells which"
            );
        }
        if waited >= LOCK_TIMEOUT {
            return Err(Error::Locked(name));
        }
        pause = pause.saturating_mul(2).min(MAX_RETRY_INTERVAL);
    }
}

/// Takes the lock on `file` unless another process has it.
pub(super) fn try_lock(file: &File) -> Result<bool, Error> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(Error::io("lock a file of the state directory")(errno)),
    }
}

/// Returns `N` random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    random_bytes().map_err(Error::io("get random bits"))
}

/// Returns 128 random bits in 32 hexadecimal digits.
pub(super) fn random_id() -> Result<String, Error> {
    random_hex::<16>().map_err(Error::io("get random bits"))
}
