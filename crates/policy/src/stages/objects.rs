//! The stages that need the object of a name.

use super::{
    finding::{Finding, Verdict},
    subject::PreparedQuery,
};
use crate::{
    Policy, Query,
    model::{Access, OperationKind},
    settings::{Hardlinks, Symlinks},
};

/// The object to which a path was resolved. For the new name of a rename it is the object that is
/// replaced there, or else the one that moves, as if that had one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its type.
    pub kind: ObjectKind,
    /// The number of its names: `st_nlink`.
    pub links: u64,
    /// True if the requested path leads through a symbolic link.
    pub through_symlink: bool,
}

/// The type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ObjectKind {
    File,
    Directory,
    /// A symbolic link itself, as removed or renamed.
    Symlink,
    Fifo,
    Socket,
    Device,
    /// No object exists yet.
    Missing,
}

impl Policy {
    pub(super) fn symlinks(&self, object: Option<&Object>) -> Verdict<'_> {
        let setting = self.settings.symlinks;
        match object {
            Some(object) if object.through_symlink && setting.value == Symlinks::Deny => {
                Verdict::Deny(Finding::fixed(
                    "files.symlinks",
                    setting.location,
                    "the path leads through a symbolic link",
                ))
            }
            _ => Verdict::Pass,
        }
    }

    /// Checks the type: only files and directories are served. Other objects are visible in a list,
    /// and a link can be removed or renamed as such.
    pub(super) fn file_type(
        &self,
        subject: &PreparedQuery<'_>,
        object: Option<&Object>,
    ) -> Verdict<'_> {
        let Some(object) = object else { return Verdict::Pass };
        let operation = subject.query.operation;
        let content = operation.is_of_files() || operation == OperationKind::Mkdir;
        let served = match object.kind {
            ObjectKind::File | ObjectKind::Directory | ObjectKind::Missing => true,
            ObjectKind::Symlink => !content,
            ObjectKind::Fifo | ObjectKind::Socket | ObjectKind::Device => {
                subject.query.access == Access::List
            }
        };
        if served {
            return Verdict::Pass;
        }
        Verdict::Deny(Finding::fixed(
            "files.type",
            None,
            "this is neither a regular file nor a directory",
        ))
    }

    /// Checks hard links: a second name may be where the policy denies it, or outside. A rename
    /// moves one name and discloses nothing.
    pub(super) fn hardlinks(
        &self,
        subject: &PreparedQuery<'_>,
        object: Option<&Object>,
    ) -> Verdict<'_> {
        if !object.is_some_and(|object| object.kind == ObjectKind::File && object.links > 1) {
            return Verdict::Pass;
        }
        let is_rename = subject.query.operation == OperationKind::Rename;
        let (read, write) = (self.settings.hardlinks_read, self.settings.hardlinks_write);
        let denied = |rule, location| {
            Verdict::Deny(Finding::fixed(rule, location, "the file has other names"))
        };
        match subject.query.access {
            Access::Read if read.value == Hardlinks::Deny => {
                denied("files.hardlinks.read", read.location)
            }
            Access::Write if !is_rename && write.value == Hardlinks::Deny => {
                denied("files.hardlinks.write", write.location)
            }
            // A rename replaces what it writes to, and gives what it removes a new name.
            Access::Write => self.name_taken_away(subject),
            Access::Remove if !is_rename => self.name_taken_away(subject),
            Access::Read | Access::Remove | Access::List => Verdict::Pass,
        }
    }

    /// Checks the removal of one of several names. A file with several names is read under none of
    /// them, because one may be a name that may not be read. Such a name must not be removed, or
    /// the file could be read under the remaining ones.
    fn name_taken_away(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        let setting = self.settings.hardlinks_read;
        let (operation, access) = (OperationKind::Read, Access::Read);
        let may_be_read =
            || self.evaluate(&Query { operation, access, ..*subject.query }).is_allow();
        if setting.value == Hardlinks::Allow || may_be_read() {
            return Verdict::Pass;
        }
        Verdict::Deny(Finding::fixed(
            "files.hardlinks.read",
            setting.location,
            "the file has other names, under which it could then be read",
        ))
    }
}
