//! Notifications that invalidate the kernel's caches.

use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    sync::Weak,
};

use rustix::io::{Errno, Result};
use zerocopy::IntoBytes as _;

use crate::{
    abi::{InvalEntryOut, InvalInodeOut, notify},
    reply,
    types::NodeId,
};

/// Invalidates the kernel's caches. In these calls the kernel waits for locks that a process
/// may hold whose request is not served yet: **only a thread that serves no requests may
/// call them**, or the mount deadlocks. A process that is killed meanwhile keeps the device open until
/// the kernel gets that lock, so another process may have to abort the mount.
#[derive(Debug, Clone)]
pub struct Notifier {
    /// A notifier does not keep the mount alive: otherwise a program that waits for a reply
    /// would wait for ever.
    device: Weak<OwnedFd>,
}

impl Notifier {
    pub(crate) fn new(device: Weak<OwnedFd>) -> Self {
        Self { device }
    }

    /// Invalidates the attributes and pages of a node. A node that the kernel does not have
    /// is no error.
    ///
    /// # Errors
    /// `ENODEV` once the mount is gone.
    pub fn invalidate_node(&self, node: NodeId) -> Result<()> {
        // A length of 0 means everything from the offset on.
        let inode = InvalInodeOut { ino: node.0, off: 0, len: 0 };
        self.send(notify::INVAL_INODE, &[inode.as_bytes()])
    }

    /// Invalidates the attributes of a node, and no page. The kernel waits for nothing then but the
    /// end of a node that it is dropping. So a thread that serves an open of the node may call this,
    /// too, because the kernel does not drop the node meanwhile.
    ///
    /// # Errors
    /// `ENODEV` once the mount is gone.
    pub fn invalidate_attributes(&self, node: NodeId) -> Result<()> {
        // A negative offset means no page.
        let inode = InvalInodeOut { ino: node.0, off: -1, len: 0 };
        self.send(notify::INVAL_INODE, &[inode.as_bytes()])
    }

    /// Invalidates the entry `name` of a directory.
    ///
    /// # Errors
    /// `ENODEV` once the mount is gone.
    pub fn invalidate_entry(&self, parent: NodeId, name: &OsStr) -> Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let entry = InvalEntryOut { parent: parent.0, namelen, flags: 0 };
        self.send(notify::INVAL_ENTRY, &[entry.as_bytes(), name.as_bytes(), b"\0"])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<()> {
        let device = self.device.upgrade().ok_or(Errno::NODEV)?;
        match reply::notify(&device, code, parts) {
            // The kernel does not have it, or it is busy: a directory that is a mount point.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::BUSY) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
