//! A copy in a directory, such as one of another machine: a log like any other, which
//! `audit verify --dir` reads.
//!
//! The owner of that machine may put links there: none is followed out of the target.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
};

use cap_std::fs::{
    Dir, DirBuilder, DirBuilderExt as _, FileExt as _, OpenOptions, OpenOptionsExt as _,
};
use portcullis_audit::{HISTORY, LogFile, MAX_NOTE, NEWEST, PACKED};
use rustix::fs::OFlags;

use super::target::Store;
use crate::{
    operator_files,
    review::{is_foreign, open_regular_in},
};

/// The name of a file while it is written.
const INCOMING: &str = ".incoming";

pub(super) struct Copy(Dir);

impl Copy {
    /// Opens the directory of a copy; `NotFound` if it is missing.
    fn open(place: &Path) -> io::Result<Self> {
        let (target, name) = split(place)?;
        operator_files::open_dir(target)?.open_dir(name).map(Self)
    }

    /// Creates the directory of a copy, and of the target if it is missing.
    pub(super) fn begin(place: &Path) -> Result<Self, String> {
        let begin = || {
            let (target, name) = split(place)?;
            operator_files::create_private_dir_all(target)?;
            let target = operator_files::open_dir(target)?;
            let mut options = DirBuilder::new();
            options.mode(0o700);
            target.create_dir_with(name, &options)?;
            let copy = target.open_dir(name)?;
            copy.create_dir_with(HISTORY, &options)?;
            Ok(Self(copy))
        };
        begin().map_err(|error: io::Error| format!("cannot make the directory: {error}"))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        match self.0.remove_file(INCOMING) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = self.0.open_with(INCOMING, options().create_new(true))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        self.0.rename(INCOMING, &self.0, name)?;
        let directory = Path::new(name).parent().filter(|parent| !parent.as_os_str().is_empty());
        self.0.open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Returns the size of a regular file; another kind of entry was not sent.
    fn length_of(&self, name: &str) -> io::Result<Option<u64>> {
        match self.0.symlink_metadata(name) {
            Ok(file) => Ok(file.is_file().then_some(file.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn newest(&self) -> io::Result<Option<Vec<u8>>> {
        let mut note = Vec::new();
        match open_regular_in(&self.0, NEWEST) {
            Ok(file) => file.take(MAX_NOTE as u64).read_to_end(&mut note)?,
            // Another kind of entry was not sent.
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_foreign(&error) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(Some(note))
    }
}

fn unreadable(error: io::Error) -> String {
    format!("cannot read the copy: {error}")
}

/// Returns the directory that contains a copy, and its name there.
fn split(place: &Path) -> io::Result<(&Path, &Path)> {
    let name = place.file_name().map(Path::new);
    place.parent().zip(name).ok_or_else(|| io::Error::other("the place has no name"))
}

/// Returns options that write a file without following a link.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens a copy in a directory; `None` if it is missing.
pub(super) fn existing(place: &Path) -> Result<Option<Copy>, String> {
    match Copy::open(place) {
        Ok(copy) => Ok(Some(copy)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot open the directory: {error}")),
    }
}

impl Store for Copy {
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        self.write(name, &bytes).map_err(|error| format!("cannot write `{name}`: {error}"))
    }

    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String> {
        let write = || {
            let file = self.0.open_with(segment, options().create(true).truncate(false))?;
            let there = file.metadata()?.len();
            if there < offset {
                return Err(io::Error::other(format!("it ends at {there} instead of {offset}")));
            }
            // The remainder of an earlier attempt is overwritten.
            file.set_len(offset)?;
            file.write_all_at(&bytes, offset)?;
            file.sync_data()
        };
        write().map_err(|error| format!("cannot write `{segment}`: {error}"))
    }

    fn checkpoint(&mut self) -> Result<Option<Option<Vec<u8>>>, String> {
        self.newest().map(Some).map_err(unreadable)
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, String> {
        self.length_of(name).map_err(unreadable)
    }

    fn has_open(&mut self, segment: &str, sent: u64) -> Result<bool, String> {
        if self.length(segment)?.unwrap_or(0) >= sent {
            return Ok(true);
        }
        // A process may have ended after the seal and before its note: it is sealed
        // again.
        Ok(self.length(&format!("{segment}{PACKED}"))?.is_some_and(|length| length > 0))
    }

    fn read(&mut self, segment: &str) -> Option<io::Result<LogFile>> {
        Some(LogFile::open(segment, |name| open_regular_in(&self.0, name)))
    }

    fn is_near(&self) -> bool {
        true
    }

    fn sealed(&mut self, segment: &str) -> Result<(), String> {
        match self.0.remove_file(segment) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove the open `{segment}`: {error}"))
            }
            _ => Ok(()),
        }
    }
}
