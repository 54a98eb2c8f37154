//! Telling the kernel that what it keeps is not so any more.

use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    sync::Weak,
};

use rustix::io::{Errno, Result};
use zerocopy::IntoBytes as _;

use crate::{
    abi::{DeleteOut, InvalEntryOut, InvalInodeOut, notify},
    reply,
    types::NodeId,
};

/// Tells the kernel what changed. The kernel waits in these calls for locks that a process
/// may hold whose request is not served yet: **only a thread that serves no requests may
/// call them**, or the mount stands still.
#[derive(Debug, Clone)]
pub struct Notifier {
    /// A notifier that is left over does not keep the mount alive: whoever waits for a reply
    /// would wait for ever.
    device: Weak<OwnedFd>,
}

impl Notifier {
    pub(crate) fn new(device: Weak<OwnedFd>) -> Self {
        Self { device }
    }

    /// The facts about a node and its pages are to be asked for again. A node that the
    /// kernel does not have is no error.
    ///
    /// # Errors
    /// `ENODEV` where nothing is mounted any more.
    pub fn invalidate_node(&self, node: NodeId) -> Result<()> {
        // A length of 0 is everything from the offset on.
        let inode = InvalInodeOut { ino: node.0, off: 0, len: 0 };
        self.send(notify::INVAL_INODE, &[inode.as_bytes()])
    }

    /// The entry `name` of a directory is to be looked up again.
    ///
    /// # Errors
    /// `ENODEV` where nothing is mounted any more.
    pub fn invalidate_entry(&self, parent: NodeId, name: &OsStr) -> Result<()> {
        self.entry(parent, name, 0)
    }

    /// As [`Notifier::invalidate_entry`], but the kernel keeps what hangs on the entry until
    /// it has looked it up. Before Linux 6.2 it is the same.
    ///
    /// # Errors
    /// `ENODEV` where nothing is mounted any more.
    pub fn expire_entry(&self, parent: NodeId, name: &OsStr) -> Result<()> {
        self.entry(parent, name, notify::EXPIRE_ONLY)
    }

    /// The entry `name` of a directory, which was `node`, is gone. Who watches it is told.
    ///
    /// # Errors
    /// `ENODEV` where nothing is mounted any more.
    pub fn delete_entry(&self, parent: NodeId, node: NodeId, name: &OsStr) -> Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let entry = DeleteOut { parent: parent.0, child: node.0, namelen, padding: 0 };
        self.send(notify::DELETE, &[entry.as_bytes(), name.as_bytes(), b"\0"])
    }

    fn entry(&self, parent: NodeId, name: &OsStr, flags: u32) -> Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let entry = InvalEntryOut { parent: parent.0, namelen, flags };
        self.send(notify::INVAL_ENTRY, &[entry.as_bytes(), name.as_bytes(), b"\0"])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<()> {
        let device = self.device.upgrade().ok_or(Errno::NODEV)?;
        match reply::notify(&device, code, parts) {
            // Not known to the kernel, or busy: a directory that is a mount point.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::BUSY) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
