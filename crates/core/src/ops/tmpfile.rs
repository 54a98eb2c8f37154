//! Files that get a name only when they are complete and synced.
//!
//! Before the intent of a change is recorded, the change must not be visible. A file without a name
//! is visible to nobody, and vanishes when the gateway dies; so new content can be written before,
//! and be synced together with the record.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{AtFlags, Mode, OFlags, linkat, openat},
    io::Errno,
};

use crate::workspace::Parent;

/// A file without a name (`O_TMPFILE`, `open(2)`) and the directory for it.
#[derive(Debug)]
pub(super) struct UnnamedFile {
    pub(super) parent: Parent,
    pub(super) file: OwnedFd,
}

impl UnnamedFile {
    /// Makes a file; `None` if the file system does not support it, or the kernel does not let
    /// every user link it (before Linux 6.10).
    pub(super) fn new(parent: Parent, mode: Mode) -> Option<Self> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&parent, ".", flags, mode).ok()?;
        let unnamed = Self { parent, file };
        // A link to a name that is always taken shows whether the kernel allows links.
        (unnamed.link(".") == Err(Errno::EXIST)).then_some(unnamed)
    }

    /// Gives the file a name that is free.
    pub(super) fn link(&self, name: &str) -> Result<(), Errno> {
        linkat(&self.file, "", &self.parent, name, AtFlags::EMPTY_PATH)
    }
}
