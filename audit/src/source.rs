//! Where a log comes from: a directory, or whatever a test or a server has.
#![expect(clippy::disallowed_methods, reason = "reads the log that the operator names")]

use std::{
    fs::{self, File},
    io::{self, Read, Seek},
    path::PathBuf,
};

use crate::HISTORY;

/// A file that stands in a log's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileEntry {
    /// Its name; what is not UTF-8 in it is replaced.
    pub name: String,
    /// Its bytes.
    pub length: u64,
    /// Whether it is a regular file.
    pub regular: bool,
}

/// The files of a log, to read only.
pub trait Source {
    /// An open file.
    type File: Read + Seek;

    /// What the directory holds at one moment between two appends.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    fn list(&self) -> io::Result<Vec<FileEntry>>;

    /// The names in the directory of kept checkpoints; none when there is no
    /// such directory.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    fn history(&self) -> io::Result<Vec<String>>;

    /// Opens the file `name`; those of kept checkpoints are
    /// `checkpoints/NAME`.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    fn open(&self, name: &str) -> io::Result<Self::File>;
}

/// The log in a directory of this machine.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The log in the directory `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Source for Directory {
    type File = File;

    /// Waits for an append in progress to end, by the file lock that writers
    /// hold (FORMAT.md, "Locking"); a copy of a log has no such file.
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let _released_when_closed = match File::open(self.path.join("lock")) {
            Ok(lock) => {
                lock.lock_shared()?;
                Some(lock)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            entries.push(FileEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                length: meta.len(),
                regular: meta.is_file(),
            });
        }
        Ok(entries)
    }

    fn history(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path.join(HISTORY)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str) -> io::Result<File> {
        File::open(self.path.join(name))
    }
}
