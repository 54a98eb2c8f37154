//! Files written for the operator: created under a temporary name and renamed, so that a file
//! is complete or missing, and never written through a link that an agent planted.
//!
//! A command that only reads does not know which directories agents may change, since that
//! depends on other starts. So no link in the path is followed.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, linkat, mkdirat, openat,
        openat2, renameat_with, statat, unlinkat,
    },
    io::Errno,
};

use super::{
    failure::{Context as _, Failure},
    session::random_id,
    state_directory,
};
use crate::operator_files;

/// A name in an open directory: later changes of the path do not affect it.
#[derive(Clone)]
pub(crate) struct Destination {
    directory: Arc<OwnedFd>,
    name: OsString,
    /// The path as given, for messages.
    named: PathBuf,
}

impl Destination {
    /// Opens the directory of the file `named`.
    ///
    /// # Errors
    /// When the path leads through a link or into a state directory, whose log and keys a result would
    /// replace; the error of the system.
    pub(crate) fn open(named: &Path) -> Result<Self, Failure> {
        let failed = format!("cannot write `{}`", named.display());
        let Some(name) = named.file_name() else {
            return Err(Failure::new(format_args!("{failed}: it names no file")));
        };
        let parent = named.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let directory = openat2(CWD, parent, flags, Mode::empty(), no_links);
        let directory = directory.map_err(|error| match error {
            Errno::LOOP => {
                let failure =
                    "a directory on the way is a symbolic link, which an agent may have made";
                Failure::new(format_args!("{failed}: {failure}")).help(
                    "name it by a path without links (`realpath` prints where this one leads)",
                )
            }
            Errno::NOENT => Failure::new(format_args!("{failed}: {error}"))
                .help("make its directory first (`mkdir -p`), or name another file"),
            error => Failure::new(format_args!("{failed}: {error}")),
        })?;
        let opened = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let place = operator_files::canonicalize(opened).or_fail(&failed)?;
        if let Some(state) = state_directory::around(&place) {
            let state = state.display();
            return Err(Failure::new(format_args!(
                "{failed}: it lies in the state directory `{state}`, in which only gateways write"
            ))
            .help("name a file elsewhere"));
        }
        let (directory, name) = (Arc::new(directory), name.to_owned());
        Ok(Self { directory, name, named: named.to_owned() })
    }

    /// Creates a directory with this name, if there is none.
    ///
    /// # Errors
    /// When another kind of entry has the name; the error of the system.
    pub(crate) fn make_directory(&self) -> Result<(), Failure> {
        let failed = || format!("cannot make the directory `{}`", self.named.display());
        match mkdirat(&self.directory, &self.name, Mode::from_raw_mode(0o777)) {
            Err(error) if error != Errno::EXIST => {
                Err(Failure::new(format_args!("{}: {error}", failed())))
            }
            _ => {
                let facts = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
                let mode = facts.or_fail(failed())?.st_mode;
                if FileType::from_raw_mode(mode) != FileType::Directory {
                    return Err(Failure::new(format_args!(
                        "{}: it is a link, or no directory",
                        failed()
                    )));
                }
                Ok(())
            }
        }
    }

    /// Opens it for writing, unless it is a link: a new file, or an existing one.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn write(&self, is_new: bool) -> io::Result<File> {
        self.opened(&self.name, is_new, Mode::from_raw_mode(0o666))
    }

    fn opened(&self, name: &OsString, is_new: bool, mode: Mode) -> io::Result<File> {
        let new = if is_new { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | new;
        Ok(openat(&self.directory, name, flags, mode).map(File::from)?)
    }

    /// Removes it.
    pub(crate) fn remove(&self) {
        // Best effort: a confined process may not be allowed to.
        let _removed = unlinkat(&self.directory, &self.name, AtFlags::empty());
    }
}

/// A file in the making, removed unless it is kept.
pub(crate) struct NewFile {
    at: Destination,
    /// Its temporary name; `None` for a device, which is written directly.
    temp: Option<OsString>,
    file: File,
    /// The flags of the rename to its final name.
    flags: RenameFlags,
}

impl NewFile {
    /// Creates a file that [`NewFile::keep`] renames to `named`.
    ///
    /// # Errors
    /// When another kind of entry has the name, and as [`Destination::open`].
    pub(crate) fn create(named: &Path) -> Result<Self, Failure> {
        Self::at(Destination::open(named)?)
    }

    /// Creates a file in an open directory.
    ///
    /// # Errors
    /// As [`NewFile::create`].
    pub(crate) fn at(at: Destination) -> Result<Self, Failure> {
        let failed = format!("cannot write `{}`", at.named.display());
        let old = match statat(&at.directory, &at.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(facts) => Some(facts.st_mode),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(Failure::new(format_args!("{failed}: {error}"))),
        };
        let mode = match old.map(|mode| (FileType::from_raw_mode(mode), mode)) {
            None => Mode::from_raw_mode(0o666),
            Some((FileType::RegularFile, mode)) => Mode::from_raw_mode(mode & 0o777),
            // Such as `/dev/null`, which no agent creates.
            Some((FileType::CharacterDevice, _)) => {
                let file = at.write(false).or_fail(failed)?;
                return Ok(Self { at, temp: None, file, flags: RenameFlags::empty() });
            }
            Some(_other) => {
                return Err(Failure::new(format_args!(
                    "{failed}: it is a link, or no regular file"
                ))
                .help("name the file itself, or another one"));
            }
        };
        Self::begin(at, mode, RenameFlags::empty())
    }

    /// Creates a file for its owner alone, which replaces no other: [`NewFile::keep`] fails if
    /// `named` exists.
    ///
    /// # Errors
    /// As [`Destination::open`].
    pub(crate) fn private(named: &Path) -> Result<Self, Failure> {
        let mode = Mode::from_raw_mode(0o600);
        Self::begin(Destination::open(named)?, mode, RenameFlags::NOREPLACE)
    }

    /// Creates the file under its temporary name.
    fn begin(at: Destination, mode: Mode, flags: RenameFlags) -> Result<Self, Failure> {
        let temp = OsString::from(format!(".{}.{}", at.name.to_string_lossy(), random_id()?));
        let file = at.opened(&temp, true, mode);
        let file = file.or_fail(format!("cannot write `{}`", at.named.display()))?;
        Ok(Self { at, temp: Some(temp), file, flags })
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to its final name.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        if let Some(temp) = &self.temp {
            self.file.sync_all()?;
            let (directory, name) = (&self.at.directory, &self.at.name);
            match renameat_with(directory, temp, directory, name, self.flags) {
                // NFS knows no flags. A link replaces nothing either; the temporary name is removed.
                Err(Errno::INVAL) if self.flags == RenameFlags::NOREPLACE => {
                    linkat(directory, temp, directory, name, AtFlags::empty())?;
                }
                renamed => {
                    renamed?;
                    self.temp = None;
                }
            }
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            // Best effort.
            let _removed = unlinkat(&self.at.directory, temp, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        operator_files::write(at("precious"), "kept").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("report.html")).unwrap();
        assert!(NewFile::create(&at("report.html")).is_err());
        let fresh = NewFile::create(&at("other.html")).unwrap();
        // Planted after the check.
        std::os::unix::fs::symlink(at("precious"), at("other.html")).unwrap();
        fresh.file().write_all(b"report").unwrap();
        fresh.keep().unwrap();
        assert_eq!(operator_files::read_to_string(at("precious")).unwrap(), "kept");
        assert_eq!(operator_files::read_to_string(at("other.html")).unwrap(), "report");
        drop(NewFile::create(&at("third")).unwrap());
        assert_eq!(operator_files::read_dir(dir.path()).unwrap().count(), 3);
    }
}
