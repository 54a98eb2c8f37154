//! A directory of the backup store whose files are spread over 256 directories, by the first two
//! hexadecimal digits of their names.

use std::{
    fs::File,
    os::fd::{AsFd as _, OwnedFd},
    str::FromStr,
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat},
    io::Errno,
};

use super::{
    Error,
    directory::{open_directory, own_directory},
};

/// The directory above the 256.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) dir: OwnedFd,
    /// The name of the directory in errors.
    pub(super) shown: &'static str,
}

impl Shards {
    /// Opens the directory for files of this `name`; `None` if there are none.
    pub(super) fn open(&self, name: &str) -> Result<Option<OwnedFd>, Error> {
        match open_directory(self.dir.as_fd(), shard(name)) {
            Ok(shard) => Ok(Some(shard)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::os("open the backup store")(errno)),
        }
    }

    /// Opens the directory for files of this `name`; makes it if it is missing.
    pub(super) fn make(&self, name: &str) -> Result<OwnedFd, Error> {
        match self.open(name)? {
            Some(shard) => Ok(shard),
            None => own_directory(self.dir.as_fd(), shard(name), self.shown),
        }
    }

    /// Opens a file; `None` if it is missing.
    pub(super) fn file(&self, name: &str) -> Result<Option<File>, Error> {
        let Some(shard) = self.open(name)? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&shard, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::os("open a file of the backup store")(errno)),
        }
    }

    /// Removes a file; false if it was gone already.
    pub(super) fn unlink(&self, name: &str) -> Result<bool, Error> {
        let Some(shard) = self.open(name)? else { return Ok(false) };
        match unlinkat(&shard, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(Error::os("remove a file of the backup store")(errno)),
        }
    }

    /// Returns the names that start with `prefix`, which is at least two digits.
    pub(super) fn names_of<N: FromStr>(&self, prefix: &str) -> Result<Vec<N>, Error> {
        let mut names = Vec::new();
        if let Some(shard) = self.open(prefix)? {
            read_names(shard, prefix, &mut names)?;
        }
        Ok(names)
    }

    /// Returns the names of all files.
    pub(super) fn names<N: FromStr>(&self) -> Result<Vec<N>, Error> {
        let mut names = Vec::new();
        for number in 0..=u8::MAX {
            if let Some(shard) = self.open(&format!("{number:02x}"))? {
                read_names(shard, "", &mut names)?;
            }
        }
        Ok(names)
    }
}

/// Returns the name of the directory for files of this `name`.
fn shard(name: &str) -> &str {
    name.get(..2).unwrap_or_default()
}

/// Reads the names in a directory that start with `prefix`. Names of another form are ignored.
fn read_names<N: FromStr>(shard: OwnedFd, prefix: &str, names: &mut Vec<N>) -> Result<(), Error> {
    for entry in Dir::new(shard).map_err(Error::os("read the backup store"))? {
        let entry = entry.map_err(Error::os("read the backup store"))?;
        // Most names in a full directory are of other paths: the prefix is compared before they are
        // parsed.
        if entry.file_name().to_bytes().starts_with(prefix.as_bytes())
            && let Some(name) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok())
        {
            names.push(name);
        }
    }
    Ok(())
}
