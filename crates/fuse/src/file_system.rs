//! The interface of a file system.

use std::ffi::{OsStr, OsString};

use rustix::{
    fs::OFlags,
    io::{Errno, Result},
};

use crate::{
    directory::Directory,
    types::{
        Attributes, Caller, Data, Entry, Handle, NodeId, Opened, RenameMode, Seek, SetAttributes,
        Statistics, WriteFrom,
    },
};

/// A file system. Several threads call it at the same time. Operations that it does not have return
/// `ENOSYS`.
///
/// Each returned entry is a reference of the kernel to that node, until the kernel forgets it. The
/// process's umask is applied to modes already.
///
/// The kernel takes `ENOSYS` of OPEN, OPENDIR, FLUSH, FSYNC and FSYNCDIR for success and never asks
/// again, so there it becomes `EIO`: a file system that does nothing in them returns `Ok`.
#[expect(unused_variables, reason = "the defaults look at nothing")]
pub trait FileSystem: Sync {
    /// LOOKUP: returns the entry `name` of a directory. `Ok(None)` is a missing name that the
    /// kernel may cache for [`FileSystem::missing_timeout`]; `ENOENT` is one that it does not
    /// cache.
    fn lookup(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        Err(Errno::NOSYS)
    }

    /// Returns true if the requesting program is being killed. Its requests that have not begun to
    /// take effect ([`begins`](crate::begins)) then fail.
    fn is_ending(&self, caller: Caller) -> bool {
        false
    }

    /// Returns true if a change of a node, or with a handle its FLUSH or FSYNC, stores something. At
    /// most half of the threads carry out such requests at once; the others of them wait.
    fn stores(&self, node: NodeId, handle: Option<Handle>) -> bool {
        true
    }

    /// Returns the time for which the kernel may cache that a name is missing in a directory.
    fn missing_timeout(&self, parent: NodeId) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    /// FORGET: removes `count` references of the kernel to a node.
    fn forget(&self, node: NodeId, count: u64) {}

    /// GETATTR.
    fn attributes(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Option<Handle>,
    ) -> Result<(Attributes, std::time::Duration)> {
        Err(Errno::NOSYS)
    }

    /// SETATTR.
    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        set: SetAttributes,
    ) -> Result<(Attributes, std::time::Duration)> {
        Err(Errno::NOSYS)
    }

    /// READLINK.
    fn read_link(&self, caller: Caller, node: NodeId) -> Result<OsString> {
        Err(Errno::NOSYS)
    }

    /// SYMLINK.
    fn symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// MKNOD of a regular file. Other kinds are refused with `EPERM` before this.
    fn make_file(&self, caller: Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// MKDIR.
    fn make_directory(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// UNLINK.
    fn unlink(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// RMDIR.
    fn remove_directory(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// RENAME and RENAME2.
    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// LINK: adds a name to a node.
    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &OsStr) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// OPEN of a file. `O_CREAT`, `O_EXCL` and `O_NOCTTY` are never among the flags; `O_TRUNC` is.
    fn open(&self, caller: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        Err(Errno::NOSYS)
    }

    /// CREATE: creates a file if it is missing, and opens it.
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// TMPFILE: creates and opens a file without a name.
    fn temporary(
        &self,
        caller: Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// READ: returns at most `size` bytes from `offset` on; fewer only at the end.
    fn read(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        size: u32,
    ) -> Result<Data> {
        Err(Errno::NOSYS)
    }

    /// WRITE: returns the number of bytes written.
    fn write(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        from: WriteFrom,
    ) -> Result<u32> {
        Err(Errno::NOSYS)
    }

    /// FLUSH: a descriptor of the handle was closed.
    fn flush(&self, caller: Caller, node: NodeId, handle: Handle) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// RELEASE: the last descriptor and mapping of the handle are gone.
    fn release(&self, node: NodeId, handle: Handle) {}

    /// FSYNC; `data_only` for `fdatasync(2)`.
    fn sync(&self, caller: Caller, node: NodeId, handle: Handle, data_only: bool) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// FALLOCATE with the mode of `fallocate(2)`.
    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// LSEEK.
    fn seek(&self, node: NodeId, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        Err(Errno::NOSYS)
    }

    /// OPENDIR.
    fn open_directory(&self, caller: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        Err(Errno::NOSYS)
    }

    /// READDIR and READDIRPLUS: adds the entries after `offset` until the directory is full.
    fn read_directory(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// RELEASEDIR.
    fn release_directory(&self, node: NodeId, handle: Handle) {}

    /// FSYNCDIR.
    fn sync_directory(&self, caller: Caller, node: NodeId, handle: Handle) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// STATFS.
    fn statistics(&self, node: NodeId) -> Result<Statistics> {
        Err(Errno::NOSYS)
    }

    /// GETXATTR: returns the value of an extended attribute.
    fn extended(&self, caller: Caller, node: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// LISTXATTR: returns the names of the extended attributes.
    fn extended_names(&self, caller: Caller, node: NodeId) -> Result<Vec<OsString>> {
        Err(Errno::NOSYS)
    }

    /// SETXATTR.
    fn set_extended(&self, caller: Caller, node: NodeId, name: &OsStr, value: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// REMOVEXATTR.
    fn remove_extended(&self, caller: Caller, node: NodeId, name: &OsStr) -> Result<()> {
        Err(Errno::NOSYS)
    }
}
