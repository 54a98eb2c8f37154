//! The right to act once on one object.

use std::{
    fs::File,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{fs::OFlags, io::Errno};

use super::{Error, Resolved, Stat, Workspace, beneath::lookup_error, resolve::read_link};
use crate::{
    model::WorkspacePath,
    policy::{Decision, Object, ObjectKind},
};

/// The right to act once on one resolved object. Only a decision that does not deny makes one, and
/// it cannot be copied. If the decision asks, the gateway prepares under the permit but carries
/// nothing out before a person has approved.
#[must_use]
#[derive(Debug)]
pub(crate) struct Permit {
    resolved: Resolved,
}

impl Permit {
    /// Turns a decision on a resolved object into the right to act on it.
    ///
    /// # Errors
    /// The decision, if it denies.
    pub(crate) fn new(resolved: Resolved, decision: Decision) -> Result<Self, Decision> {
        if decision.is_deny() { Err(decision) } else { Ok(Self { resolved }) }
    }

    /// Returns the canonical path of the object.
    pub(crate) fn path(&self) -> &WorkspacePath {
        self.resolved.path()
    }

    /// Returns the object's attributes when it was resolved; `None` if it was missing.
    pub(crate) fn stat(&self) -> Option<&Stat> {
        self.resolved.stat()
    }

    /// Returns the facts about the object on which the policy decided.
    pub(crate) fn object(&self) -> Object {
        self.resolved.object()
    }

    /// Returns a descriptor (`O_PATH`) of the object.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it was missing.
    pub(crate) fn handle(&self) -> Result<BorrowedFd<'_>, Error> {
        self.resolved.handle().map(|handle| handle.as_fd()).ok_or(Error::NotFound)
    }

    /// Opens the object, which must still be the one that was decided on.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it was missing, [`Error::Moved`] when another object has the path
    /// now.
    pub(crate) fn open(&self, workspace: &Workspace, flags: OFlags) -> Result<OwnedFd, Error> {
        let expected = self.resolved.identity().ok_or(Error::NotFound)?;
        let fd = workspace.open_at(self.path(), flags).map_err(|error| match error {
            // The object existed a moment ago.
            Error::NotFound | Error::NotADirectory | Error::IsADirectory => Error::Moved,
            Error::Os { errno: Errno::NXIO, .. } => Error::Moved,
            error => error,
        })?;
        if Stat::of(&fd)?.identity == expected { Ok(fd) } else { Err(Error::Moved) }
    }

    /// Opens the object as a regular file for reading.
    ///
    /// # Errors
    /// As [`Permit::open`]; [`Error::IsADirectory`] for a directory. Other kinds never get a permit
    /// to be read, and are not opened here either.
    pub(crate) fn open_file(&self, workspace: &Workspace) -> Result<File, Error> {
        match self.object().kind {
            ObjectKind::File => self.open(workspace, OFlags::RDONLY).map(File::from),
            ObjectKind::Missing => Err(Error::NotFound),
            ObjectKind::Directory => Err(Error::IsADirectory),
            _ => Err(Error::Moved),
        }
    }

    /// Reads the target of the permit's link.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn link_target(&self) -> Result<String, Error> {
        read_link(self.resolved.handle().ok_or(Error::NotFound)?)
    }

    /// Confirms that the object still has its path.
    ///
    /// # Errors
    /// [`Error::Moved`] when it has not.
    pub(crate) fn confirm(&self, workspace: &Workspace) -> Result<(), Error> {
        let now = workspace.lookup(self.path().as_str(), OFlags::PATH | OFlags::NOFOLLOW);
        match (now, self.resolved.identity()) {
            (Ok(fd), Some(expected)) if Stat::of(&fd)?.identity == expected => Ok(()),
            (Err(Errno::NOENT), None) => Ok(()),
            (Err(errno), None) if errno != Errno::LOOP => Err(lookup_error("look again")(errno)),
            _ => Err(Error::Moved),
        }
    }
}
