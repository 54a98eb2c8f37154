//! The workspace as other crates see it: names, attributes and contents. The view changes nothing,
//! creates nothing and returns no descriptor.

use std::{fs::File, os::fd::AsFd as _, path::Path};

use portcullis_audit::Hash;
use rustix::fs::{OFlags, readlinkat};

use crate::{
    backup::{self, content_hash, fingerprint},
    model::WorkspacePath,
    policy::ObjectKind,
    workspace::{
        EntryIdentity, Error, Follow, Listing, Resolved, Stat, VisitedName, Walked, Workspace,
        read_bounded, read_link,
    },
};

/// A read-only view of a workspace, for the operator's tools: no policy decides and no record is
/// written.
#[derive(Debug, Clone, Copy)]
pub struct WorkspaceView<'a>(&'a Workspace);

/// The identity of the content at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fingerprint {
    /// No such object.
    Missing,
    /// Hash and permission bits of a file.
    File(Hash, u32),
    /// Hash of everything in a directory, or of a link's target.
    Other(Hash),
    /// An object that is neither file, directory nor link, over the limit, or behind a link.
    Unsupported,
}

impl Workspace {
    /// Returns the read-only view.
    pub fn view(&self) -> WorkspaceView<'_> {
        WorkspaceView(self)
    }
}

impl<'a> WorkspaceView<'a> {
    /// Returns the root's canonical path on the host, which is never shown to an agent.
    pub fn root(self) -> &'a Path {
        self.0.root()
    }

    /// Resolves `path`, with links followed wherever they lead within the workspace.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Mount`], [`Error::Loop`] and errors of the system. A missing
    /// object is no error.
    pub fn resolve(self, path: &WorkspacePath, follow: Follow) -> Result<Resolved, Error> {
        self.0.resolve(path, follow)
    }

    pub(crate) fn resolve_with(
        self,
        path: &WorkspacePath,
        follow: Follow,
        follows: &mut dyn FnMut(VisitedName<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        self.0.resolve_with(path, follow, follows)
    }

    pub(crate) fn resolve_target(
        self,
        link: &WorkspacePath,
        target: &str,
        follows: &mut dyn FnMut(VisitedName<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        self.0.resolve_target(link, target, follows)
    }

    /// Returns the attributes of the object at `path`, without following a link.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Moved`] behind a link.
    pub fn stat(self, path: &WorkspacePath) -> Result<Stat, Error> {
        Stat::of(self.0.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?)
    }

    /// Returns the identity of the object at `path`, without following a link.
    ///
    /// # Errors
    /// As [`WorkspaceView::stat`].
    pub fn identity(self, path: &WorkspacePath) -> Result<EntryIdentity, Error> {
        EntryIdentity::of(self.0.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?)
    }

    /// Returns the target of the link at `path`.
    ///
    /// # Errors
    /// As [`WorkspaceView::stat`], and if it is no link.
    pub fn link_target(self, path: &WorkspacePath) -> Result<String, Error> {
        read_link(&self.0.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?)
    }

    /// Lists the entries of the directory at `path`.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; [`Error::TooLarge`] past a million entries.
    pub fn list(self, path: &WorkspacePath) -> Result<Listing, Error> {
        Listing::read(self.0.open_directory(path)?)
    }

    /// Returns everything beneath the directory at `path`, parents before children.
    ///
    /// # Errors
    /// As for a recursive removal: when an entry cannot be named, belongs to another file system or
    /// changes meanwhile.
    pub fn walk(self, path: &WorkspacePath) -> Result<Vec<Walked>, Error> {
        self.0.walk(path)
    }

    /// Returns the missing directories above `path`, outermost first, and the error that prevents
    /// their creation: [`Error::NotADirectory`] when another kind of entry is on the way.
    ///
    /// # Errors
    /// Of the system.
    pub fn ancestors_to_make(
        self,
        path: &WorkspacePath,
    ) -> Result<(Vec<WorkspacePath>, Option<Error>), Error> {
        self.0.ancestors_to_make(path)
    }

    /// Reads the content of the file at `path`; `None` if it has more than `limit` bytes.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Moved`] for other kinds of objects.
    pub fn read(self, path: &WorkspacePath, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        let file = File::from(self.0.open_at(path, OFlags::RDONLY)?);
        let stat = Stat::of(&file)?;
        if stat.kind != ObjectKind::File {
            return Err(Error::Moved);
        }
        if stat.size > limit {
            return Ok(None);
        }
        let content = read_bounded(&file, stat.size, limit)?;
        Ok((content.len() as u64 <= limit).then_some(content))
    }

    /// Returns the fingerprint of the object at `path`, of which at most `limit` bytes are read.
    ///
    /// # Errors
    /// When the object cannot be read.
    pub fn fingerprint(self, path: &WorkspacePath, limit: u64) -> Result<Fingerprint, Error> {
        if path.is_root() {
            return Ok(Fingerprint::Unsupported);
        }
        let parent = match self.0.open_parent(path) {
            Ok(parent) => parent,
            Err(Error::NotFound | Error::NotADirectory) => return Ok(Fingerprint::Missing),
            Err(Error::Moved) => return Ok(Fingerprint::Unsupported),
            Err(error) => return Err(error),
        };
        let name = parent.name();
        let stat = match parent.stat(name) {
            Ok(stat) => stat,
            Err(Error::NotFound) => return Ok(Fingerprint::Missing),
            Err(error) => return Err(error),
        };
        Ok(match stat.kind {
            ObjectKind::File => {
                let file = parent.open(name, OFlags::RDONLY)?;
                match content_hash(file.as_fd(), limit) {
                    Ok(hash) => Fingerprint::File(hash, stat.mode),
                    Err(backup::Error::Large) => Fingerprint::Unsupported,
                    Err(backup::Error::Io { action, source }) => {
                        return Err(Error::io(action)(source));
                    }
                    Err(_) => return Err(Error::Moved),
                }
            }
            ObjectKind::Directory => {
                let directory = parent.open(name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                // No backup can be made of an unreadable directory, so nothing may replace it.
                fingerprint(directory.as_fd(), limit)
                    .map_or(Fingerprint::Unsupported, Fingerprint::Other)
            }
            ObjectKind::Symlink => {
                let target =
                    readlinkat(&parent, name, Vec::new()).map_err(Error::os("read the link"))?;
                Fingerprint::Other(Hash::of(target.as_bytes()))
            }
            _ => Fingerprint::Unsupported,
        })
    }
}
