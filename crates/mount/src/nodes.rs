//! The node table, which maps node ids to entries of the workspace.
//!
//! A node is stored by its parent and its name, so that a rename of a directory moves everything
//! beneath it. It lives as long as the kernel has references to it, a handle is open, or another
//! node has it as its parent. Its id is the inode number that programs see, and is never reused: a
//! commit changes the host's inode, and the id stays.

use std::{collections::BTreeMap, sync::Arc};

use portcullis_policy::{ObjectKind, model::WorkspacePath};
use rustix::io::Errno;

use crate::{
    node::{NO_POLICY, NameState, Node},
    staged::Staged,
    unheard::{Unheard, UnheardErrors},
};

/// The workspace root.
pub(crate) const ROOT: u64 = 1;

/// The reason why a node has no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPath {
    /// The node was removed through this mount.
    Unlinked,
    /// Another program replaced or removed the entry of its name.
    Replaced,
    /// The id is unknown.
    Unknown,
}

/// The table is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableFull;

/// The state of changes when a lookup in the workspace began: only if no change of this mount
/// overlapped may its result be compared with the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LookupStart {
    begun: u64,
    quiet: bool,
}

/// The node table.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    limit: usize,
    /// The number of nodes at which the kernel is asked to forget unused ones.
    shed_at: usize,
    was_full: bool,
    begun: u64,
    ended: u64,
    unheard: UnheardErrors,
}

impl Nodes {
    /// Returns a table of at most `limit` nodes, with the root.
    pub(crate) fn new(limit: usize) -> Self {
        let mut root = Node::new(ROOT, Arc::from(""), ObjectKind::Directory, None);
        root.lookups = 1;
        let nodes = BTreeMap::from([(ROOT, root)]);
        Self {
            nodes,
            next: ROOT + 1,
            limit,
            shed_at: limit / 4 * 3,
            begun: 0,
            ended: 0,
            was_full: false,
            unheard: UnheardErrors::default(),
        }
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// Returns the node of a name in a directory.
    pub(crate) fn child(&self, parent: u64, name: &str) -> Option<u64> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    /// Returns the staged versions.
    pub(crate) fn staged(&self) -> Vec<(u64, Arc<Staged>)> {
        let staged = self.nodes.iter().filter_map(|(id, node)| Some((*id, node.staged()?)));
        staged.map(|(id, staged)| (id, Arc::clone(staged))).collect()
    }

    /// Returns the names in a directory that exist in this mount only.
    pub(crate) fn staged_only(&self, parent: u64) -> Vec<Arc<str>> {
        let Some(directory) = self.nodes.get(&parent) else { return Vec::new() };
        let is_staged = |id: &u64| self.nodes.get(id).is_some_and(Node::is_staged_only);
        let children = directory.children.iter().filter(|(_, id)| is_staged(id));
        children.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns the current path of a node.
    ///
    /// # Errors
    /// When it has none any more.
    pub(crate) fn path(&self, id: u64) -> Result<WorkspacePath, NoPath> {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or(NoPath::Unknown)?;
            match node.name_state {
                NameState::Named => names.push(&node.name),
                NameState::Unlinked if at == id => return Err(NoPath::Unlinked),
                NameState::Unlinked | NameState::Replaced => return Err(NoPath::Replaced),
            }
            at = node.parent;
        }
        let (mut path, mut joined) = (WorkspacePath::root(), WorkspacePath::root());
        for name in names.into_iter().rev() {
            path.join_into(name, &mut joined).map_err(|_| NoPath::Replaced)?;
            std::mem::swap(&mut path, &mut joined);
        }
        Ok(path)
    }

    /// Returns parent and name of a node that has a name.
    pub(crate) fn entry(&self, id: u64) -> Option<(u64, Arc<str>)> {
        let node = self.nodes.get(&id).filter(|node| !node.is_detached() && id != ROOT)?;
        Some((node.parent, Arc::clone(&node.name)))
    }

    /// Returns all node ids.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// Returns true if a node was ever refused for lack of room.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    /// Returns true if the kernel should be asked now to forget unused nodes: at three quarters of
    /// the limit, and again whenever half of the remaining room is used. Once is not enough: nodes
    /// in use at that moment are not forgotten, and new ones are looked up meanwhile.
    pub(crate) fn is_crowded(&mut self) -> bool {
        let known = self.nodes.len();
        let is_crowded = known >= self.shed_at;
        if is_crowded {
            self.shed_at = known + self.limit.saturating_sub(known).div_ceil(2);
        } else if known < self.limit / 2 {
            self.shed_at = self.limit / 4 * 3;
        }
        is_crowded
    }

    /// Begins a lookup in the workspace.
    pub(crate) fn look(&self) -> LookupStart {
        LookupStart { begun: self.begun, quiet: self.is_quiet() }
    }

    /// Returns true if no change of this mount is in progress.
    pub(crate) fn is_quiet(&self) -> bool {
        self.begun == self.ended
    }

    /// Returns true if this mount changed nothing since `look`.
    pub(crate) fn holds(&self, look: LookupStart) -> bool {
        look.quiet && self.begun == look.begun
    }

    /// Begins a change of this mount: until it ends, lookups in the workspace do not detach names.
    pub(crate) fn begin_change(&mut self) {
        self.begun += 1;
    }

    /// Ends a change.
    pub(crate) fn end_change(&mut self) {
        self.ended += 1;
    }

    /// Returns the node of an entry found in the workspace, with a further reference of the kernel.
    /// If the name belongs to another object now, the result is a new node.
    ///
    /// # Errors
    /// [`TableFull`].
    pub(crate) fn found(
        &mut self,
        parent: u64,
        name: &str,
        (kind, inode): (ObjectKind, u64),
        look: LookupStart,
    ) -> Result<u64, TableFull> {
        if let Some(id) = self.child(parent, name) {
            let judges = self.holds(look);
            let node = self.nodes.get_mut(&id).ok_or(TableFull)?;
            let staged_only = node.is_staged_only();
            if staged_only || !judges || (node.inode == Some(inode) && node.kind == kind) {
                node.lookups += 1;
                return Ok(id);
            }
            self.detach(id, NameState::Replaced);
        }
        let id = self.create(parent, name, kind, Some(inode))?;
        self.refer(id);
        Ok(id)
    }

    /// Notes that a name was not found in the workspace. A file that is open for writing keeps the
    /// name: a new policy may hide it, and the gateway then decides on its content and gives the
    /// reason.
    pub(crate) fn missing(&mut self, parent: u64, name: &str, look: LookupStart) {
        if self.holds(look) {
            self.gone(parent, name);
        }
    }

    /// Detaches a missing name where no change of this mount can interfere.
    pub(crate) fn gone(&mut self, parent: u64, name: &str) {
        if let Some(id) = self.child(parent, name)
            && self.nodes.get(&id).is_none_or(|node| node.staged().is_none())
        {
            self.detach(id, NameState::Replaced);
        }
    }

    /// Frees a name for a new file, where no entry was found. A file open for writing there
    /// continues without the name.
    ///
    /// # Errors
    /// `EEXIST` if another object has the name, or it exists in this mount only.
    pub(crate) fn make_room(&mut self, parent: u64, name: &str) -> Result<(), Errno> {
        let Some(id) = self.child(parent, name) else { return Ok(()) };
        let has_staged = |node: &Node| node.staged().is_some() && !node.is_staged_only();
        if !self.nodes.get(&id).is_some_and(has_staged) {
            return Err(Errno::EXIST);
        }
        self.detach(id, NameState::Replaced);
        Ok(())
    }

    /// Keeps an error about a node for the next open of its path, whatever has that by then.
    pub(crate) fn keep_unheard(&mut self, id: u64, error: Errno) {
        let path = match self.path(id) {
            Err(NoPath::Replaced) => self.last_path(id),
            path => path.ok(),
        };
        let reason = self.nodes.get(&id).and_then(|node| node.reason.clone());
        if let Some(path) = path {
            self.unheard.keep(path, Unheard { error, reason });
        }
    }

    /// Takes the error that an open of the node has to return; its reason becomes the node's.
    pub(crate) fn take_unheard(&mut self, id: u64) -> Option<Errno> {
        if self.unheard.is_empty() {
            return None;
        }
        let path = self.path(id).ok()?;
        let Unheard { error, reason } = self.unheard.take(&path)?;
        self.nodes.get_mut(&id)?.reason = reason;
        Some(error)
    }

    /// Returns the path of a name, if there are errors that have to follow it.
    fn path_of_errors(&self, (parent, name): (u64, &str)) -> Option<WorkspacePath> {
        let has_errors = !self.unheard.is_empty();
        has_errors.then(|| self.path(parent).ok()?.join(name).ok()).flatten()
    }

    /// Returns the last path of a replaced node, also where a directory on the way was replaced.
    pub(crate) fn last_path(&self, id: u64) -> Option<WorkspacePath> {
        let (mut names, mut at) = (Vec::new(), id);
        while at != ROOT {
            let node = self.nodes.get(&at)?;
            names.push(&node.name);
            at = node.parent;
        }
        names.into_iter().rev().try_fold(WorkspacePath::root(), |path, name| path.join(name).ok())
    }

    /// Returns the path of a node, of a replaced one the last; `None` for a file that was removed.
    pub(crate) fn unstored_path(&self, id: u64) -> Option<WorkspacePath> {
        match self.path(id) {
            Err(NoPath::Replaced) => self.last_path(id),
            path => path.ok(),
        }
    }

    /// Creates a node for a name that has none.
    ///
    /// # Errors
    /// [`TableFull`].
    pub(crate) fn create(
        &mut self,
        parent: u64,
        name: &str,
        kind: ObjectKind,
        inode: Option<u64>,
    ) -> Result<u64, TableFull> {
        let id = self.add(Node::new(parent, Arc::from(name), kind, inode))?;
        self.give_name(id, (parent, name));
        Ok(id)
    }

    /// Creates a node for a file without a name.
    ///
    /// # Errors
    /// [`TableFull`].
    pub(crate) fn create_unnamed(&mut self) -> Result<u64, TableFull> {
        let node = Node::new(ROOT, Arc::from(""), ObjectKind::File, None);
        self.add(Node { name_state: NameState::Unlinked, ..node })
    }

    fn add(&mut self, node: Node) -> Result<u64, TableFull> {
        self.was_full |= self.nodes.len() >= self.limit;
        if self.nodes.len() >= self.limit || !self.nodes.contains_key(&node.parent) {
            return Err(TableFull);
        }
        self.next += 1;
        self.nodes.insert(self.next - 1, node);
        Ok(self.next - 1)
    }

    /// Gives a node a name that no other node has.
    pub(crate) fn give_name(&mut self, id: u64, (parent, name): (u64, &str)) {
        let name = Arc::<str>::from(name);
        if let Some(directory) = self.nodes.get_mut(&parent) {
            directory.children.insert(Arc::clone(&name), id);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.parent, node.name, node.name_state) = (parent, name, NameState::Named);
        }
    }

    /// Adds a reference of the kernel to a node.
    pub(crate) fn refer(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    /// Removes `count` references of the kernel.
    pub(crate) fn forget(&mut self, id: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.drop_unused(id);
    }

    /// Counts an opened handle of the node.
    pub(crate) fn open(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.opens += 1;
        }
    }

    /// Counts a closed handle; returns true if it was the last one.
    pub(crate) fn close(&mut self, id: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return true };
        node.opens = node.opens.saturating_sub(1);
        let last = node.opens == 0;
        if last {
            self.drop_unused(id);
        }
        last
    }

    /// Detaches a name that was removed through this mount.
    pub(crate) fn unlink(&mut self, parent: u64, name: &str) {
        if let Some(path) = self.path_of_errors((parent, name)) {
            self.unheard.remove(&path);
        }
        if let Some(id) = self.child(parent, name) {
            self.detach(id, NameState::Unlinked);
        }
    }

    /// Moves a node to a new name after a rename through this mount; the node that had the name is
    /// detached.
    pub(crate) fn rename(&mut self, from: (u64, &str), to: (u64, &str)) {
        if from == to {
            return;
        }
        match (self.path_of_errors(from), self.path_of_errors(to)) {
            (Some(old), Some(new)) => self.unheard.rename(&old, &new),
            (None, Some(new)) => self.unheard.remove(&new),
            (_, None) => {}
        }
        if let Some(id) = self.child(to.0, to.1) {
            self.detach(id, NameState::Unlinked);
        }
        let Some(id) = self.child(from.0, from.1) else { return };
        if !self.nodes.contains_key(&to.0) {
            return self.detach(id, NameState::Replaced);
        }
        self.remove_child(from.0, from.1, id);
        self.give_name(id, to);
        self.drop_unused(from.0);
    }

    /// Exchanges the names of two nodes after an exchange through this mount.
    pub(crate) fn exchange(&mut self, one: (u64, &str), other: (u64, &str)) {
        if let (Some(one), Some(other)) = (self.path_of_errors(one), self.path_of_errors(other)) {
            self.unheard.exchange(&one, &other);
        }
        let ids = [one, other].map(|(parent, name)| self.child(parent, name));
        let each = |to: [_; 2]| ids.into_iter().zip(to).filter_map(|(id, at)| Some((id?, at)));
        each([one, other]).for_each(|(id, at)| self.remove_child(at.0, at.1, id));
        each([other, one]).for_each(|(id, at)| self.give_name(id, at));
    }

    /// Returns a node and all known nodes beneath it.
    pub(crate) fn beneath(&self, id: u64) -> Vec<u64> {
        let mut all = vec![id];
        let mut next = 0;
        while let Some(node) = all.get(next).and_then(|id| self.nodes.get(id)) {
            all.extend(node.children.values());
            next += 1;
        }
        all
    }

    /// Marks the content of a node to be decided and made again.
    pub(crate) fn forget_views(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        (node.shown, node.size) = (None, None);
        if let Some(content) = &mut node.content {
            content.policy = NO_POLICY;
        }
    }

    fn detach(&mut self, id: u64, name_state: NameState) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_detached()) else { return };
        node.name_state = name_state;
        let (parent, name) = (node.parent, Arc::clone(&node.name));
        self.remove_child(parent, &name, id);
        self.drop_unused(id);
        self.drop_unused(parent);
    }

    fn remove_child(&mut self, parent: u64, name: &str, id: u64) {
        if let Some(directory) = self.nodes.get_mut(&parent)
            && directory.children.get(name) == Some(&id)
        {
            directory.children.remove(name);
        }
    }

    /// Removes a node without references, and then possibly its parent.
    fn drop_unused(&mut self, id: u64) {
        let mut at = id;
        while at != ROOT {
            let Some(node) = self.nodes.get(&at) else { return };
            if node.lookups > 0 || node.opens > 0 || !node.children.is_empty() {
                return;
            }
            let (parent, name, detached) =
                (node.parent, Arc::clone(&node.name), node.is_detached());
            self.nodes.remove(&at);
            if detached {
                return;
            }
            self.remove_child(parent, &name, at);
            at = parent;
        }
    }
}

#[cfg(test)]
mod tests;
