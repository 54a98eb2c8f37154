//! Dispatch of requests to scratch directories and to the workspace.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    sync::{PoisonError, RwLock},
    time::Duration,
};

use portcullis_fuse::{
    Attributes, Caller, Data, Directory, Entry, Errno, FileSystem, Handle, NodeId, OFlags, Opened,
    RenameMode, Seek, SetAttributes, Statistics, WriteFrom,
};
use portcullis_policy::model::WorkspacePath;
use rustix::{fs::FileType, io::Result};

use crate::{
    mount::Mount,
    scratch::{Scratch, roots::ScratchRoot, table::SCRATCH_BIT},
};

/// Passes each request to the file system of the workspace or of the scratch directories, and
/// handles requests that concern both.
pub(crate) struct Router<'a, 'g> {
    pub(crate) mount: &'a Mount<'g>,
    /// Workspace directories that became scratch by a rename: the kernel knows them by their
    /// old node ids until it looks up their names again.
    became: RwLock<HashMap<u64, u64>>,
}

/// The destination of a request.
enum Destination<'a> {
    Mount(NodeId),
    Scratch(&'a Scratch, NodeId),
}

impl<'a, 'g> Router<'a, 'g> {
    pub(crate) fn new(mount: &'a Mount<'g>) -> Self {
        Self { mount, became: RwLock::default() }
    }

    fn to(&self, node: NodeId) -> Destination<'_> {
        let to = self.destination(node);
        if matches!(to, Destination::Scratch(..)) {
            // The kernel caches names of scratch for long, so changes of them must not be
            // cancelled.
            portcullis_fuse::begins();
        }
        to
    }

    fn destination(&self, node: NodeId) -> Destination<'_> {
        let Some(scratch) = &self.mount.scratch else { return Destination::Mount(node) };
        let node = match node.0 & SCRATCH_BIT {
            0 => {
                let became = self.became.read().unwrap_or_else(PoisonError::into_inner);
                let Some(root) = became.get(&node.0) else { return Destination::Mount(node) };
                NodeId(*root)
            }
            _ => node,
        };
        Destination::Scratch(scratch, node)
    }

    fn by_handle(&self, handle: Handle) -> Option<&Scratch> {
        self.mount.scratch.as_ref().filter(|_| handle.0 & SCRATCH_BIT != 0)
    }

    /// Returns the path of a workspace entry whose name is a scratch name.
    pub(crate) fn root_path(
        &self,
        parent: NodeId,
        name: &OsStr,
    ) -> Option<(&Scratch, WorkspacePath)> {
        let scratch = self.mount.scratch.as_ref()?;
        let name = name.to_str().filter(|name| scratch.rules().may_match_name(name))?;
        let path = self.mount.path_of(parent.0, name).ok()?;
        scratch.rules().matches(&path).then_some((scratch, path))
    }

    pub(crate) fn root_entry(&self, scratch: &Scratch, root: ScratchRoot) -> Result<Entry> {
        scratch.root_entry(root, self.mount.options.timeout)
    }

    /// Returns the error of a link to be created at a scratch name.
    fn refuse(scratch: &Scratch, path: &WorkspacePath) -> Errno {
        if scratch.roots().by_path.contains_key(path) { Errno::EXIST } else { Errno::ACCESS }
    }

    /// Notes that a workspace directory has become scratch.
    pub(crate) fn note_became(&self, node: u64, root: u64) {
        self.became.write().unwrap_or_else(PoisonError::into_inner).insert(node, root);
    }
}

impl FileSystem for Router<'_, '_> {
    fn lookup(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        let mut room = u64::MAX;
        let found = self.find(caller, parent, name, &mut room)?;
        if found.is_none()
            && let Destination::Mount(parent) = self.to(parent)
            && let Some(path) =
                name.to_str().and_then(|name| self.mount.path_of(parent.0, name).ok())
            && !self.mount.scratch.as_ref().is_some_and(|scratch| scratch.rules().matches(&path))
        {
            self.mount.record_hidden(&path, caller.pid);
        }
        Ok(found)
    }

    fn is_ending(&self, caller: Caller) -> bool {
        self.mount.is_killed(caller.pid)
    }

    fn stores(&self, node: NodeId, handle: Option<Handle>) -> bool {
        match handle {
            Some(handle) if self.by_handle(handle).is_some() => false,
            // A file that is only read has nothing to store.
            Some(handle) => {
                let file = self.mount.lock().handles.file(handle.0);
                file.is_ok_and(|file| file.staged.is_some())
            }
            None => matches!(self.destination(node), Destination::Mount(_)),
        }
    }

    fn missing_timeout(&self, parent: NodeId) -> Duration {
        match self.to(parent) {
            // The host adds names, and a policy reload may show some.
            Destination::Mount(_) => Duration::ZERO,
            Destination::Scratch(scratch, parent) => scratch.missing_timeout(parent),
        }
    }

    fn forget(&self, node: NodeId, count: u64) {
        match &self.mount.scratch {
            Some(scratch) if node.0 & SCRATCH_BIT != 0 => scratch.forget(node, count),
            _ => {
                self.mount.forget(node, count);
                let is_known = self.mount.lock().nodes.get(node.0).is_some();
                let mut became = self.became.write().unwrap_or_else(PoisonError::into_inner);
                if !is_known {
                    became.remove(&node.0);
                }
            }
        }
    }

    fn attributes(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        match self.to(node) {
            Destination::Mount(node) => FileSystem::attributes(self.mount, caller, node, handle),
            Destination::Scratch(scratch, at) => {
                let (of, timeout) = scratch.attributes(caller, at, handle)?;
                Ok((Attributes { inode: node.0, ..of }, timeout))
            }
        }
    }

    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        set: SetAttributes,
    ) -> Result<(Attributes, Duration)> {
        match self.to(node) {
            Destination::Mount(node) => FileSystem::set_attributes(self.mount, caller, node, set),
            Destination::Scratch(scratch, at) => {
                let (of, timeout) = scratch.set_attributes(caller, at, set)?;
                Ok((Attributes { inode: node.0, ..of }, timeout))
            }
        }
    }

    fn read_link(&self, caller: Caller, node: NodeId) -> Result<OsString> {
        match self.to(node) {
            Destination::Mount(node) => self.mount.read_link(caller, node),
            Destination::Scratch(scratch, node) => scratch.read_link(caller, node),
        }
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        match (self.to(parent), self.root_path(parent, name)) {
            (Destination::Scratch(scratch, parent), _) => {
                scratch.symlink(caller, parent, name, target)
            }
            (_, Some((scratch, path))) => Err(Self::refuse(scratch, &path)),
            (Destination::Mount(parent), None) => self.mount.symlink(caller, parent, name, target),
        }
    }

    fn make_file(&self, caller: Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        match (self.to(parent), self.root_path(parent, name)) {
            (Destination::Scratch(scratch, parent), _) => {
                scratch.make_file(caller, parent, name, mode)
            }
            (Destination::Mount(parent), Some((scratch, _))) => {
                self.make_root(scratch, (parent, name), Some(mode))
            }
            (Destination::Mount(parent), None) => self.mount.make_file(caller, parent, name, mode),
        }
    }

    fn make_directory(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
    ) -> Result<Entry> {
        let parent = match self.to(parent) {
            Destination::Scratch(scratch, parent) => {
                return scratch.make_directory(caller, parent, name, mode);
            }
            Destination::Mount(parent) => parent,
        };
        match self.root_path(parent, name) {
            Some((scratch, _)) => self.make_root(scratch, (parent, name), None),
            None => FileSystem::make_directory(self.mount, caller, parent, name, mode),
        }
    }

    fn unlink(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        match (self.to(parent), self.root_path(parent, name)) {
            (Destination::Scratch(scratch, parent), _) => scratch.unlink(caller, parent, name),
            (Destination::Mount(parent), Some((scratch, _))) => {
                self.remove_root(scratch, (parent, name), FileType::RegularFile)
            }
            (Destination::Mount(parent), None) => self.mount.unlink(caller, parent, name),
        }
    }

    fn remove_directory(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        let parent = match self.to(parent) {
            Destination::Scratch(scratch, parent) => {
                return scratch.remove_directory(caller, parent, name);
            }
            Destination::Mount(parent) => parent,
        };
        match self.root_path(parent, name) {
            Some((scratch, _)) => self.remove_root(scratch, (parent, name), FileType::Directory),
            None => self.mount.remove_directory(caller, parent, name),
        }
    }

    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        match (self.to(from.0), self.to(to.0)) {
            (Destination::Scratch(scratch, old), Destination::Scratch(_, new)) => {
                scratch.rename(caller, (old, from.1), (new, to.1), mode)
            }
            (Destination::Mount(old), Destination::Mount(new)) => {
                self.rename_in_workspace(caller, (old, from.1), (new, to.1), mode)
            }
            _ => Err(Errno::XDEV),
        }
    }

    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &OsStr) -> Result<Entry> {
        match (self.to(node), self.to(parent)) {
            (Destination::Scratch(scratch, node), Destination::Scratch(_, parent)) => {
                scratch.link(caller, node, parent, name)
            }
            (Destination::Mount(node), Destination::Mount(parent)) => {
                match self.root_path(parent, name) {
                    Some((scratch, path)) => Err(Self::refuse(scratch, &path)),
                    None => self.mount.link(caller, node, parent, name),
                }
            }
            _ => Err(Errno::XDEV),
        }
    }

    fn open(&self, caller: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        match self.to(node) {
            Destination::Mount(node) => self.mount.open(caller, node, flags),
            Destination::Scratch(scratch, node) => scratch.open(caller, node, flags),
        }
    }

    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        match (self.to(parent), self.root_path(parent, name)) {
            (Destination::Scratch(scratch, parent), _) => {
                scratch.create(caller, parent, name, mode, flags)
            }
            (Destination::Mount(parent), Some((scratch, _))) => {
                let made = self.make_root(scratch, (parent, name), Some(mode));
                let entry = match made {
                    Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                        self.lookup(caller, parent, name)?.ok_or(Errno::NOENT)?
                    }
                    made => made?,
                };
                let opened = scratch.open(caller, entry.node, flags);
                let opened = opened.inspect_err(|_| scratch.forget(entry.node, 1))?;
                Ok((entry, opened))
            }
            (Destination::Mount(parent), None) => {
                self.mount.create(caller, parent, name, mode, flags)
            }
        }
    }

    fn temporary(
        &self,
        caller: Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        match self.to(parent) {
            Destination::Mount(parent) => self.mount.temporary(caller, parent, mode, flags),
            Destination::Scratch(..) => Err(Errno::OPNOTSUPP),
        }
    }

    fn read(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        size: u32,
    ) -> Result<Data> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.read(caller, node, handle, offset, size),
            None => self.mount.read(caller, node, handle, offset, size),
        }
    }

    fn write(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        from: WriteFrom,
    ) -> Result<u32> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.write(caller, node, handle, offset, data, from),
            None => self.mount.write(caller, node, handle, offset, data, from),
        }
    }

    fn flush(&self, caller: Caller, node: NodeId, handle: Handle) -> Result<()> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.flush(caller, node, handle),
            None => self.mount.flush(caller, node, handle),
        }
    }

    fn release(&self, node: NodeId, handle: Handle) {
        match self.by_handle(handle) {
            Some(scratch) => scratch.release(node, handle),
            None => FileSystem::release(self.mount, node, handle),
        }
    }

    fn sync(&self, caller: Caller, node: NodeId, handle: Handle, data_only: bool) -> Result<()> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.sync(caller, node, handle, data_only),
            None => self.mount.sync(caller, node, handle, data_only),
        }
    }

    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.allocate(caller, node, handle, mode, offset, length),
            None => self.mount.allocate(caller, node, handle, mode, offset, length),
        }
    }

    fn seek(&self, node: NodeId, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.seek(node, handle, offset, to),
            None => self.mount.seek(node, handle, offset, to),
        }
    }

    fn open_directory(&self, caller: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        match self.to(node) {
            Destination::Mount(node) => FileSystem::open_directory(self.mount, caller, node, flags),
            Destination::Scratch(scratch, node) => scratch.open_directory(caller, node, flags),
        }
    }

    fn read_directory(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        match self.by_handle(handle) {
            Some(scratch) => {
                let Destination::Scratch(_, node) = self.to(node) else { return Err(Errno::BADF) };
                scratch.read_directory(caller, node, handle, offset, directory)
            }
            None => self.read_workspace(caller, node, handle, offset, directory),
        }
    }

    fn release_directory(&self, node: NodeId, handle: Handle) {
        match self.by_handle(handle) {
            Some(scratch) => scratch.release_directory(node, handle),
            None => self.mount.release_directory(node, handle),
        }
    }

    fn sync_directory(&self, caller: Caller, node: NodeId, handle: Handle) -> Result<()> {
        match self.by_handle(handle) {
            Some(scratch) => scratch.sync_directory(caller, node, handle),
            None => self.mount.sync_directory(caller, node, handle),
        }
    }

    fn statistics(&self, node: NodeId) -> Result<Statistics> {
        match self.to(node) {
            Destination::Mount(node) => self.mount.statistics(node),
            Destination::Scratch(scratch, node) => scratch.statistics(node),
        }
    }

    fn extended(&self, caller: Caller, node: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        match self.to(node) {
            Destination::Mount(node) => self.mount.extended(caller, node, name),
            Destination::Scratch(scratch, node) => scratch.extended(caller, node, name),
        }
    }

    fn extended_names(&self, caller: Caller, node: NodeId) -> Result<Vec<OsString>> {
        match self.to(node) {
            Destination::Mount(node) => self.mount.extended_names(caller, node),
            Destination::Scratch(scratch, node) => scratch.extended_names(caller, node),
        }
    }

    fn set_extended(&self, caller: Caller, node: NodeId, name: &OsStr, value: &[u8]) -> Result<()> {
        self.mount.set_extended(caller, node, name, value)
    }

    fn remove_extended(&self, caller: Caller, node: NodeId, name: &OsStr) -> Result<()> {
        self.mount.remove_extended(caller, node, name)
    }
}

impl Router<'_, '_> {
    /// Returns the entries of a workspace directory, its scratch directories included.
    fn read_workspace(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        let look = |name: &OsStr, room: &mut u64| self.find(caller, node, name, room);
        self.mount.give_list(node, handle, offset, directory, look)
    }

    fn find(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        room: &mut u64,
    ) -> Result<Option<Entry>> {
        if let Destination::Scratch(scratch, parent) = self.to(parent) {
            return scratch.lookup(caller, parent, name);
        }
        let Some(scratch) = self.mount.scratch.as_ref() else {
            return self.mount.find(parent, name, room);
        };
        let root = {
            // The lock keeps a rename from changing path and roots in between.
            let roots = scratch.roots();
            let path = self.root_path(parent, name);
            path.map(|(_, path)| roots.by_path.get(&path).copied())
        };
        let Some(root) = root else { return self.mount.find(parent, name, room) };
        root.map(|root| self.root_entry(scratch, root)).transpose()
    }
}
