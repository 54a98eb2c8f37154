//! A copy in a directory, such as one of another machine: a log as any other,
//! that `audit verify --dir` reads.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use portcullis_audit::{HISTORY, MAX_NOTE, NEWEST};

use super::target::{Seen, Store};
use crate::{operator_files, review::read_kept};

pub(super) struct Copy {
    path: PathBuf,
}

impl Copy {
    pub(super) fn open(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Makes the directory.
    pub(super) fn begin(path: &Path) -> Result<Self, String> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.join(HISTORY))
            .map_err(|error| format!("cannot make the directory: {error}"))?;
        Ok(Self::open(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (temp, path) = (self.path.join(".incoming"), self.path.join(name));
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut file = operator_files::open_with(&temp, &options)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        operator_files::rename(&temp, &path)?;
        operator_files::open(path.parent().unwrap_or(&self.path))?.sync_all()
    }
}

/// The newest checkpoint in a copy.
pub(super) fn checkpoint(copy: &Path) -> io::Result<Option<Vec<u8>>> {
    match read_kept(&copy.join(NEWEST), MAX_NOTE as u64) {
        Ok(note) => Ok(Some(note)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Store for Copy {
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        self.write(name, &bytes).map_err(|error| format!("cannot write `{name}`: {error}"))
    }

    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String> {
        let write = || {
            let path = self.path.join(segment);
            let mut options = OpenOptions::new();
            options.create(true).write(true).truncate(false).mode(0o600);
            let file = operator_files::open_with(path, &options)?;
            let there = file.metadata()?.len();
            if there < offset {
                return Err(io::Error::other(format!("it ends at {there} instead of {offset}")));
            }
            // What a former attempt left behind is written again.
            file.set_len(offset)?;
            file.write_all_at(&bytes, offset)?;
            file.sync_data()
        };
        write().map_err(|error| format!("cannot write `{segment}`: {error}"))
    }

    fn look(&mut self, segment: &str, sent: u64) -> Result<Option<Seen>, String> {
        let unreadable = |error| format!("cannot read the copy: {error}");
        let length = |path: &Path| match operator_files::metadata(path) {
            Ok(file) => Ok(Some(file.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(error)),
        };
        let is_there = length(&self.path.join(HISTORY))?.is_some();
        let open = length(&self.path.join(segment))?.unwrap_or(0);
        let checkpoint = checkpoint(&self.path).map_err(unreadable)?;
        Ok(Some(Seen { checkpoint, has_open_segment: is_there && open >= sent }))
    }

    fn sealed(&mut self, segment: &str) -> Result<(), String> {
        match operator_files::remove_file(self.path.join(segment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove the open `{segment}`: {error}"))
            }
            _ => Ok(()),
        }
    }
}
