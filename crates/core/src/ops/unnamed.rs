//! A file that has no name until it is whole and safe.
//!
//! Before the intent of a change is recorded nothing may be seen of it. Nobody
//! sees a file without a name, and when the gate dies it is gone; so a new
//! content can be written before, and be synced together with the record.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{AtFlags, Mode, OFlags, linkat, openat},
    io::Errno,
};

use crate::workspace::Parent;

/// A file beneath no name (`O_TMPFILE`, `open(2)`) and the directory for it.
#[derive(Debug)]
pub(super) struct Unnamed {
    pub(super) parent: Parent,
    pub(super) file: OwnedFd,
}

impl Unnamed {
    /// A new file; `None` where the file system has none of this kind, or the
    /// kernel does not let everybody name them (before Linux 6.10).
    pub(super) fn new(parent: Parent, mode: Mode) -> Option<Self> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&parent, ".", flags, mode).ok()?;
        let unnamed = Self { parent, file };
        // A name that is always taken tells what the kernel thinks.
        (unnamed.link(".") == Err(Errno::EXIST)).then_some(unnamed)
    }

    /// Gives the file a name that nothing has.
    pub(super) fn link(&self, name: &str) -> Result<(), Errno> {
        linkat(&self.file, "", &self.parent, name, AtFlags::EMPTY_PATH)
    }
}
