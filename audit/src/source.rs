//! Sources of a log: a directory, or another implementation in tests and servers.
#![expect(clippy::disallowed_methods, reason = "reads the log that the operator names")]

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use crate::{
    HISTORY,
    compressed::{self, LogFile},
};

/// `O_NONBLOCK`: opening a pipe does not wait for its other end.
#[cfg(unix)]
const NONBLOCK: i32 = if cfg!(target_os = "linux") { 0o4000 } else { 4 };

/// The longest wait for the lock of an append, and the pause between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A file in a log's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileEntry {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
    /// True if it is a regular file.
    pub regular: bool,
    /// True if it is a directory.
    pub directory: bool,
}

/// Read access to the files of a log.
pub trait Source {
    /// An open file.
    type File: Read + Seek;

    /// Lists the directory as it is at one moment between two appends.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn list(&self) -> io::Result<Vec<FileEntry>>;

    /// Lists the names in the directory of stored checkpoints; none if there is no such directory.
    ///
    /// # Errors
    ///
    /// If it cannot be read; [`io::ErrorKind::InvalidInput`] if it is not a directory.
    fn history(&self) -> io::Result<Vec<String>>;

    /// Opens the file `name`; those of stored checkpoints are `checkpoints/NAME`.
    ///
    /// # Errors
    ///
    /// If it cannot be opened; [`io::ErrorKind::InvalidInput`] if it is not a regular file;
    /// [`io::ErrorKind::InvalidData`] if it is not a valid compressed segment, which reading it may
    /// report, too, or if it is longer than the maximum of a segment.
    fn open(&self, name: &str) -> io::Result<Self::File>;
}

/// Returns the error of a source in which the directory of stored checkpoints is not a directory.
pub fn no_history() -> io::Error {
    let words = format!("`{HISTORY}` is no directory");
    io::Error::new(io::ErrorKind::InvalidInput, words)
}

/// The log in a directory of this machine.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Uses the log in the directory `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Opens a regular file. A program that can write to the directory may have put something else
    /// there, which would block opening or never end.
    fn file(&self, name: &str) -> io::Result<File> {
        let irregular = || {
            let words = format!("`{name}` is no regular file");
            io::Error::new(io::ErrorKind::InvalidInput, words)
        };
        let path = self.path.join(name);
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(irregular());
        }
        let mut options = File::options();
        options.read(true);
        // The file may have been replaced since.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, NONBLOCK);
        let file = options.open(path)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
    }
}

/// Waits for a shared lock. It is polled, because the kernel would wait without end.
fn wait_for(lock: &File) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_TIMEOUT => {
                thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => {
                let reason = "another process holds its file `lock` and does not release it";
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
    }
}

impl Source for Directory {
    type File = LogFile;

    /// Waits for an append in progress to end, by the file lock of writers (FORMAT.md, "Locking"):
    /// [`io::ErrorKind::TimedOut`] if a process holds it on. A copy of a log has no such file.
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let _released_when_closed = match self.file("lock") {
            Ok(lock) => {
                wait_for(&lock)?;
                Some(lock)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // No gateway writes there; a verifier reports it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
            Err(error) => return Err(error),
        };
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let meta = match entry.metadata() {
                // A temporary file has been renamed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            entries.push(FileEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                length: meta.len(),
                regular: meta.is_file(),
                directory: meta.is_dir(),
            });
        }
        compressed::unpacked(entries, |name| self.file(name))
    }

    fn history(&self) -> io::Result<Vec<String>> {
        let path = self.path.join(HISTORY);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_other) => return Err(no_history()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let entries = fs::read_dir(path)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str) -> io::Result<LogFile> {
        LogFile::open(name, |name| self.file(name))
    }
}
