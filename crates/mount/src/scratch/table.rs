//! The table of scratch nodes and open handles.
//!
//! A node is an object of the underlying file system, with those of its names that the kernel
//! knows: hard links share pages. Its path is built for each use from one of its names, so a
//! rename moves everything beneath.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use rustix::{
    fs::FileType,
    io::{Errno, Result},
};

use super::beneath::ListedEntry;
use crate::budget::BudgetPart;

/// The bit in the ids of nodes and handles that marks scratch. Ids stay exact in programs that
/// store them as floating point numbers.
pub(crate) const SCRATCH_BIT: u64 = 1 << 48;

/// A scratch node.
#[derive(Debug)]
pub(crate) struct ScratchNode {
    pub(crate) kind: FileType,
    inode: u64,
    /// Parents and names; empty for a root.
    names: Vec<(u64, OsString)>,
    /// The path of a root.
    place: Option<PathBuf>,
    /// The root above it, or itself.
    pub(crate) root: u64,
    lookups: u64,
    children: usize,
    /// The open descriptors of a file.
    files: Vec<(u64, Arc<OwnedFd>)>,
}

/// An open file or directory.
#[derive(Debug, Clone)]
pub(crate) enum Opened {
    File(Arc<OwnedFd>),
    Directory(Arc<OpenScratchDirectory>),
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenScratchDirectory {
    pub(crate) descriptor: OwnedFd,
    /// Its entries, once read.
    pub(crate) list: Mutex<Option<(Vec<ListedEntry>, BudgetPart)>>,
}

/// The table of nodes and handles.
#[derive(Debug)]
pub(crate) struct Table {
    nodes: HashMap<u64, ScratchNode>,
    by_inode: HashMap<u64, u64>,
    handles: HashMap<u64, (u64, Opened)>,
    next: u64,
    /// The number of names of all nodes: a node may have many.
    names: usize,
    most_nodes: usize,
    most_handles: usize,
}

impl Table {
    pub(crate) fn new(most_nodes: usize, most_handles: usize) -> Self {
        Self {
            nodes: HashMap::new(),
            by_inode: HashMap::new(),
            handles: HashMap::new(),
            next: SCRATCH_BIT + 1,
            names: 0,
            most_nodes,
            most_handles,
        }
    }

    /// # Errors
    /// `ESTALE` for a node that is not known.
    pub(crate) fn get(&self, id: u64) -> Result<&ScratchNode> {
        self.nodes.get(&id).ok_or(Errno::STALE)
    }

    /// Returns the path of a node beneath the base directory.
    ///
    /// # Errors
    /// `ESTALE` where no name of it is known.
    pub(crate) fn path(&self, id: u64) -> Result<PathBuf> {
        let mut names = Vec::new();
        let mut node = self.get(id)?;
        let place = loop {
            if let Some(place) = &node.place {
                break place;
            }
            let (parent, name) = node.names.first().ok_or(Errno::STALE)?;
            names.push(name);
            node = self.get(*parent)?;
        };
        let mut path = place.clone();
        path.extend(names.into_iter().rev());
        Ok(path)
    }

    /// Creates a node for a root, which exists until the root is removed.
    pub(crate) fn add_root(&mut self, place: PathBuf, (kind, inode): (FileType, u64)) -> u64 {
        let id = self.add(kind, inode, None);
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.place, node.lookups) = (Some(place), 1);
        }
        id
    }

    /// Adds a reference of the kernel to a node.
    pub(crate) fn refer(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    /// Removes a root.
    pub(crate) fn remove_root(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.place = None;
            let inode = node.inode;
            self.by_inode.remove(&inode);
            self.forget(id, 1);
        }
    }

    /// Returns the node of an entry, with a further reference of the kernel.
    ///
    /// # Errors
    /// `ENFILE` where there are too many.
    pub(crate) fn found(
        &mut self,
        parent: u64,
        name: &OsStr,
        (kind, inode): (FileType, u64),
    ) -> Result<u64> {
        let root = self.get(parent)?.root;
        let known = self.by_inode.get(&inode).copied();
        let known = known.filter(|id| self.nodes.get(id).is_some_and(|node| node.kind == kind));
        let id = match known {
            Some(id) => id,
            None if self.nodes.len() >= self.most_nodes => return Err(Errno::NFILE),
            None => {
                self.name_room()?;
                self.add(kind, inode, Some(root))
            }
        };
        self.name(id, parent, name);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
        Ok(id)
    }

    fn add(&mut self, kind: FileType, inode: u64, root: Option<u64>) -> u64 {
        let id = self.next;
        self.next += 1;
        let node = ScratchNode {
            kind,
            inode,
            names: Vec::new(),
            place: None,
            root: root.unwrap_or(id),
            lookups: 0,
            children: 0,
            files: Vec::new(),
        };
        self.nodes.insert(id, node);
        self.by_inode.insert(inode, id);
        id
    }

    /// Adds a name to a node; a directory has one name only.
    fn name(&mut self, id: u64, parent: u64, name: &OsStr) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.names.iter().any(|(at, known)| *at == parent && known == name) {
            return;
        }
        let old = if node.kind == FileType::Directory { node.names.pop() } else { None };
        node.names.push((parent, name.to_owned()));
        self.names = self.names + 1 - usize::from(old.is_some());
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children += 1;
        }
        if let Some((parent, _)) = old {
            self.lose_child(parent);
        }
    }

    /// Removes a name, with `is_last` also the object. Returns true if it is still open.
    pub(crate) fn unname(&mut self, parent: u64, name: &OsStr, inode: u64, is_last: bool) -> bool {
        let Some(id) = self.by_inode.get(&inode).copied() else { return false };
        if is_last {
            self.by_inode.remove(&inode);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let before = node.names.len();
        node.names.retain(|(at, known)| *at != parent || known != name);
        let (is_open, lost) = (!node.files.is_empty(), before - node.names.len());
        self.names -= lost;
        for _ in 0..lost {
            self.lose_child(parent);
        }
        self.drop_unused(id);
        is_open
    }

    /// Replaces a name of an object.
    pub(crate) fn renamed(&mut self, inode: u64, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let Some(id) = self.by_inode.get(&inode).copied() else { return };
        // The new name comes first, so that no node is removed in between.
        self.name(id, to.0, to.1);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let before = node.names.len();
        node.names.retain(|(at, known)| *at != from.0 || known != from.1);
        let lost = before - node.names.len();
        self.names -= lost;
        for _ in 0..lost {
            self.lose_child(from.0);
        }
    }

    fn lose_child(&mut self, parent: u64) {
        self.count_lost_child(parent);
        self.drop_unused(parent);
    }

    fn count_lost_child(&mut self, parent: u64) {
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
        }
    }

    /// Removes `count` references of the kernel.
    pub(crate) fn forget(&mut self, id: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.drop_unused(id);
    }

    /// Removes a node without references, and then possibly those above it. The depth of a tree is
    /// up to programs, so this is no recursion.
    fn drop_unused(&mut self, id: u64) {
        let mut ids = vec![id];
        while let Some(id) = ids.pop() {
            let is_unused = |node: &ScratchNode| {
                node.lookups == 0 && node.children == 0 && node.files.is_empty()
            };
            if !self.nodes.get(&id).is_some_and(is_unused) {
                continue;
            }
            let Some(node) = self.nodes.remove(&id) else { continue };
            if self.by_inode.get(&node.inode) == Some(&id) {
                self.by_inode.remove(&node.inode);
            }
            self.names -= node.names.len();
            for (parent, _) in node.names {
                self.count_lost_child(parent);
                ids.push(parent);
            }
        }
    }

    /// Checks that there is room for a further name.
    ///
    /// # Errors
    /// `ENFILE`.
    pub(crate) fn name_room(&self) -> Result<()> {
        if self.names < self.most_nodes { Ok(()) } else { Err(Errno::NFILE) }
    }

    /// Checks that there is room for a further handle.
    ///
    /// # Errors
    /// `ENFILE`.
    pub(crate) fn room(&self) -> Result<()> {
        if self.handles.len() < self.most_handles { Ok(()) } else { Err(Errno::NFILE) }
    }

    /// Adds a handle of a node.
    pub(crate) fn open(&mut self, id: u64, opened: Opened) -> u64 {
        let handle = self.next;
        self.next += 1;
        if let (Opened::File(file), Some(node)) = (&opened, self.nodes.get_mut(&id)) {
            node.files.push((handle, Arc::clone(file)));
        }
        self.handles.insert(handle, (id, opened));
        handle
    }

    /// Closes a handle. Returns the file if neither a name nor a handle of it is left.
    pub(crate) fn close(&mut self, handle: u64) -> Option<Arc<OwnedFd>> {
        let (id, opened) = self.handles.remove(&handle)?;
        let Opened::File(file) = opened else { return None };
        let node = self.nodes.get_mut(&id)?;
        node.files.retain(|(open, _)| *open != handle);
        let is_last = node.files.is_empty();
        let is_gone = is_last && self.by_inode.get(&node.inode) != Some(&id);
        self.drop_unused(id);
        is_gone.then_some(file)
    }

    /// # Errors
    /// `EBADF` where the handle is of no file.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OwnedFd>> {
        match self.handles.get(&handle) {
            Some((_, Opened::File(file))) => Ok(Arc::clone(file)),
            _ => Err(Errno::BADF),
        }
    }

    /// # Errors
    /// `EBADF` where the handle is of no directory.
    pub(crate) fn directory(&self, handle: u64) -> Result<Arc<OpenScratchDirectory>> {
        match self.handles.get(&handle) {
            Some((_, Opened::Directory(directory))) => Ok(Arc::clone(directory)),
            _ => Err(Errno::BADF),
        }
    }

    /// Returns true if a file without a name is open.
    pub(crate) fn has_removed_files(&self) -> bool {
        let is_removed = |(id, node): (&u64, &ScratchNode)| {
            !node.files.is_empty() && self.by_inode.get(&node.inode) != Some(id)
        };
        self.nodes.iter().any(is_removed)
    }

    /// Returns an open descriptor of a node.
    pub(crate) fn open_file(&self, id: u64) -> Option<Arc<OwnedFd>> {
        self.nodes.get(&id)?.files.last().map(|(_, file)| Arc::clone(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs create such trees by renaming one to the bottom of another.
    #[test]
    fn a_chain_deeper_than_the_stack_is_forgotten_from_its_end() {
        let depth = 1_000_000;
        let mut table = Table::new(depth + 2, 1);
        let root = table.add_root(PathBuf::from("root"), (FileType::Directory, 0));
        let mut last = root;
        for inode in 1..=depth as u64 {
            let above = last;
            let object = (FileType::Directory, inode);
            last = table.found(above, OsStr::new("d"), object).unwrap();
            if above != root {
                table.forget(above, 1);
            }
        }
        assert_eq!((table.nodes.len(), table.names), (depth + 1, depth));
        table.forget(last, 1);
        assert_eq!((table.nodes.len(), table.names, table.by_inode.len()), (1, 0, 1));
        assert_eq!(table.get(root).unwrap().children, 0);
    }
}
