//! Walks of directories, with one open descriptor at a time at any depth.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, OFlags};

use super::{Error, Stat, TempName, Workspace, entry};
use crate::{model::WorkspacePath, policy::ObjectKind};

/// Maximum number of entries of one walk; a directory with more is refused rather than read into
/// memory.
pub(super) const MAX_ENTRIES: usize = 1_000_000;

/// The names in one directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Names in UTF-8, sorted, with the attributes of each entry itself (`None` if it vanished or
    /// cannot be looked at).
    pub entries: Vec<(String, Option<Stat>)>,
    /// Number of names that are not UTF-8 and so cannot be served.
    pub not_utf8: u64,
}

/// An object of a walk.
#[derive(Debug, Clone)]
pub struct Walked {
    /// Its path.
    pub path: WorkspacePath,
    /// The attributes of the object itself; links are not followed.
    pub stat: Stat,
}

impl Listing {
    /// Reads the directory behind `dir`. Names reserved for the gateway are left out.
    ///
    /// # Errors
    /// [`Error::TooLarge`] past a million entries; errors of the system.
    pub(crate) fn read(dir: impl AsFd) -> Result<Self, Error> {
        let mut entries = Vec::new();
        let not_utf8 = Self::visit(dir, |name, stat| {
            entries.push((name.to_owned(), stat));
            Ok(())
        })?;
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Self { entries, not_utf8 })
    }

    /// Looks at each entry, in no order, without storing any; returns the number of names that are
    /// not UTF-8.
    ///
    /// # Errors
    /// As [`Listing::read`], and those of `each`.
    pub(crate) fn visit(
        dir: impl AsFd,
        mut each: impl FnMut(&str, Option<Stat>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (mut seen, mut not_utf8) = (0_usize, 0);
        for entry in Dir::read_from(&dir).map_err(Error::os("read the directory"))? {
            let entry = entry.map_err(Error::os("read the directory"))?;
            match entry.file_name().to_str() {
                Ok("." | "..") => continue,
                Ok(name) if TempName::is_reserved_name(name) => continue,
                Ok(name) => each(name, entry::look(dir.as_fd(), name))?,
                Err(_) => {
                    not_utf8 += 1;
                    continue;
                }
            }
            seen += 1;
            if seen > MAX_ENTRIES {
                return Err(Error::TooLarge);
            }
        }
        Ok(not_utf8)
    }
}

impl Workspace {
    /// Returns everything beneath the directory at `path`, parents before children.
    ///
    /// # Errors
    /// [`Error::NotUtf8`], [`Error::TooLong`] and [`Error::Mount`] when an entry cannot be named or
    /// belongs to another file system, so that it cannot be decided on; [`Error::TooLarge`] past a
    /// million entries; [`Error::Moved`] when the tree changes meanwhile.
    pub(crate) fn walk(&self, path: &WorkspacePath) -> Result<Vec<Walked>, Error> {
        self.walk_noting(path, &mut path.clone())
    }

    /// Walks as [`Workspace::walk`]; sets `reached` to the directory that was read last.
    ///
    /// # Errors
    /// As [`Workspace::walk`].
    pub(crate) fn walk_noting(
        &self,
        path: &WorkspacePath,
        reached: &mut WorkspacePath,
    ) -> Result<Vec<Walked>, Error> {
        let mut walked: Vec<Walked> = Vec::new();
        let mut pending = vec![path.clone()];
        while let Some(directory) = pending.pop() {
            reached.clone_from(&directory);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = match directory == *path {
                true => self.open_at(&directory, flags)?,
                false => self.open_listed(&directory, flags)?,
            };
            let listing = Listing::read(&fd)?;
            if listing.not_utf8 > 0 {
                return Err(Error::NotUtf8);
            }
            for (name, stat) in listing.entries {
                let path = directory.join(&name).map_err(|_| Error::TooLong)?;
                // A mount point cannot be looked at through NO_XDEV.
                let stat = match stat {
                    Some(stat) => stat,
                    None => match self.open_listed(&path, OFlags::PATH | OFlags::NOFOLLOW) {
                        Err(Error::NotFound) => return Err(Error::Moved),
                        Err(error) => return Err(error),
                        Ok(fd) => Stat::of(fd)?,
                    },
                };
                if stat.kind == ObjectKind::Directory {
                    pending.push(path.clone());
                }
                walked.push(Walked { path, stat });
                if walked.len() > MAX_ENTRIES {
                    return Err(Error::TooLarge);
                }
            }
        }
        Ok(walked)
    }

    /// Returns the missing directories above `path`, outermost first.
    ///
    /// # Errors
    /// [`Error::NotADirectory`] when the path leads through another kind of entry.
    pub(crate) fn missing_ancestors(
        &self,
        path: &WorkspacePath,
    ) -> Result<Vec<WorkspacePath>, Error> {
        let (missing, error) = self.ancestors_to_make(path)?;
        error.map_or(Ok(missing), Err)
    }

    /// Returns the missing directories, and the error that prevents their creation: it must not be
    /// reported before the policy has decided on them.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn ancestors_to_make(
        &self,
        path: &WorkspacePath,
    ) -> Result<(Vec<WorkspacePath>, Option<Error>), Error> {
        let (mut missing, mut prevented) = (Vec::new(), None);
        for ancestor in path.ancestors().into_iter().rev() {
            match self.open_at(&ancestor, OFlags::PATH | OFlags::DIRECTORY) {
                Ok(_) => break,
                Err(Error::NotFound) => {}
                // A link was not followed, or was made since.
                Err(error @ (Error::NotADirectory | Error::Moved)) => prevented = Some(error),
                Err(error) => return Err(error),
            }
            missing.push(ancestor);
        }
        missing.reverse();
        Ok((missing, prevented))
    }

    /// Opens a directory for reading its names.
    ///
    /// # Errors
    /// As [`Workspace::open_at`].
    pub(crate) fn open_directory(&self, path: &WorkspacePath) -> Result<OwnedFd, Error> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }
}
