//! The node table: which node id names which entry of the workspace.
//!
//! A node is stored by its parent and its name, so that a rename of a directory moves
//! everything beneath it. It lives as long as the kernel has references to it, a handle
//! is open, or another node names it as its parent. Its id is the inode number that
//! programs see, and is never given away a second time: commits exchange the host's
//! inode, and the number stays.

use std::{collections::BTreeMap, sync::Arc};

use portcullis_policy::{ObjectKind, model::WorkspacePath};
use rustix::io::Errno;

use crate::{
    node::{NO_POLICY, Node, Place},
    staged::Staged,
};

/// The workspace root.
pub(crate) const ROOT: u64 = 1;

/// Why a node has no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It was removed through this mount.
    Unlinked,
    /// Something else changed what its name stands for.
    Replaced,
    /// The id is not known.
    Unknown,
}

/// The table is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// What a look at the workspace began with: if nothing of this mount changed names
/// meanwhile, what was seen may be held against the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    begun: u64,
    quiet: bool,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    limit: usize,
    /// With this many nodes the kernel is asked to forget what it does not use.
    shed_at: usize,
    was_full: bool,
    begun: u64,
    ended: u64,
}

impl Nodes {
    /// A table of at most `limit` nodes, which knows the root.
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
        }
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// The node that has a name in a directory.
    pub(crate) fn child(&self, parent: u64, name: &str) -> Option<u64> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    /// The staged versions.
    pub(crate) fn staged(&self) -> Vec<(u64, Arc<Staged>)> {
        let staged = self.nodes.iter().filter_map(|(id, node)| Some((*id, node.staged()?)));
        staged.map(|(id, staged)| (id, Arc::clone(staged))).collect()
    }

    /// The names in a directory that exist in this mount alone.
    pub(crate) fn staged_only(&self, parent: u64) -> Vec<Arc<str>> {
        let Some(directory) = self.nodes.get(&parent) else { return Vec::new() };
        let is_staged = |id: &u64| self.nodes.get(id).is_some_and(Node::is_staged_only);
        let children = directory.children.iter().filter(|(_, id)| is_staged(id));
        children.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// The path of a node now.
    ///
    /// # Errors
    /// When it has none any more.
    pub(crate) fn path(&self, id: u64) -> Result<WorkspacePath, Gone> {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or(Gone::Unknown)?;
            match node.place {
                Place::Named => names.push(&node.name),
                Place::Unlinked if at == id => return Err(Gone::Unlinked),
                Place::Unlinked | Place::Replaced => return Err(Gone::Replaced),
            }
            at = node.parent;
        }
        let (mut path, mut joined) = (WorkspacePath::root(), WorkspacePath::root());
        for name in names.into_iter().rev() {
            path.join_into(name, &mut joined).map_err(|_| Gone::Replaced)?;
            std::mem::swap(&mut path, &mut joined);
        }
        Ok(path)
    }

    /// Parent and name of a node that has a name.
    pub(crate) fn entry(&self, id: u64) -> Option<(u64, Arc<str>)> {
        let node = self.nodes.get(&id).filter(|node| !node.is_detached() && id != ROOT)?;
        Some((node.parent, Arc::clone(&node.name)))
    }

    /// All node ids.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// Whether there was no room once.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    /// Whether the kernel should be asked now to forget what it does not use: at three
    /// quarters of the limit, and then again whenever half of the room left is gone. A
    /// single time is not enough: what is in use at that moment is not forgotten, and what
    /// is looked up meanwhile is new.
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

    /// A look at the workspace begins.
    pub(crate) fn look(&self) -> Look {
        Look { begun: self.begun, quiet: self.is_quiet() }
    }

    /// Whether no change of this mount is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.begun == self.ended
    }

    /// Whether this mount changed nothing since `look`.
    pub(crate) fn holds(&self, look: Look) -> bool {
        look.quiet && self.begun == look.begun
    }

    /// A change of this mount begins: until it ends, no name is judged by what is seen of
    /// the workspace.
    pub(crate) fn begin_change(&mut self) {
        self.begun += 1;
    }

    /// The change has ended.
    pub(crate) fn end_change(&mut self) {
        self.ended += 1;
    }

    /// The node of an entry that was seen in the workspace, with one more reference of the
    /// kernel. If another object has the name now, it is another node.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn found(
        &mut self,
        parent: u64,
        name: &str,
        (kind, inode): (ObjectKind, u64),
        look: Look,
    ) -> Result<u64, Full> {
        if let Some(id) = self.child(parent, name) {
            let judges = self.holds(look);
            let node = self.nodes.get_mut(&id).ok_or(Full)?;
            let staged_only = node.is_staged_only();
            if staged_only || !judges || (node.inode == Some(inode) && node.kind == kind) {
                node.lookups += 1;
                return Ok(id);
            }
            self.detach(id, Place::Replaced);
        }
        let id = self.create(parent, name, kind, Some(inode))?;
        self.refer(id);
        Ok(id)
    }

    /// Nothing of this name was seen in the workspace. A file that is open for writing keeps it:
    /// another policy may hide it, and the gateway decides on what is written and says why.
    pub(crate) fn missing(&mut self, parent: u64, name: &str, look: Look) {
        if self.holds(look) {
            self.gone(parent, name);
        }
    }

    /// The same where no change of this mount is in the way.
    pub(crate) fn gone(&mut self, parent: u64, name: &str) {
        if let Some(id) = self.child(parent, name)
            && self.nodes.get(&id).is_none_or(|node| node.staged().is_none())
        {
            self.detach(id, Place::Replaced);
        }
    }

    /// A file is to be made at a name at which nothing was seen. What is open for writing there goes on
    /// without the name.
    ///
    /// # Errors
    /// `EEXIST` if something else has the name, or it exists in this mount alone.
    pub(crate) fn make_room(&mut self, parent: u64, name: &str) -> Result<(), Errno> {
        let Some(id) = self.child(parent, name) else { return Ok(()) };
        let has_staged = |node: &Node| node.staged().is_some() && !node.is_staged_only();
        if !self.nodes.get(&id).is_some_and(has_staged) {
            return Err(Errno::EXIST);
        }
        self.detach(id, Place::Replaced);
        Ok(())
    }

    /// The path that a replaced node had, if its directory still has one.
    pub(crate) fn last_path(&self, id: u64) -> Option<WorkspacePath> {
        let node = self.nodes.get(&id)?;
        self.path(node.parent).ok()?.join(&node.name).ok()
    }

    /// Makes a node for a name that has none.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn create(
        &mut self,
        parent: u64,
        name: &str,
        kind: ObjectKind,
        inode: Option<u64>,
    ) -> Result<u64, Full> {
        let id = self.add(Node::new(parent, Arc::from(name), kind, inode))?;
        self.give_name(id, (parent, name));
        Ok(id)
    }

    /// Makes a node for a file without a name.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn create_unnamed(&mut self) -> Result<u64, Full> {
        let node = Node::new(ROOT, Arc::from(""), ObjectKind::File, None);
        self.add(Node { place: Place::Unlinked, ..node })
    }

    fn add(&mut self, node: Node) -> Result<u64, Full> {
        self.was_full |= self.nodes.len() >= self.limit;
        if self.nodes.len() >= self.limit || !self.nodes.contains_key(&node.parent) {
            return Err(Full);
        }
        self.next += 1;
        self.nodes.insert(self.next - 1, node);
        Ok(self.next - 1)
    }

    /// Gives a node a name that no other one has.
    pub(crate) fn give_name(&mut self, id: u64, (parent, name): (u64, &str)) {
        let name = Arc::<str>::from(name);
        if let Some(directory) = self.nodes.get_mut(&parent) {
            directory.children.insert(Arc::clone(&name), id);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.parent, node.name, node.place) = (parent, name, Place::Named);
        }
    }

    /// The kernel has one more reference to a node.
    pub(crate) fn refer(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    /// The kernel gives up `count` references.
    pub(crate) fn forget(&mut self, id: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.drop_unused(id);
    }

    /// A handle of the node is opened.
    pub(crate) fn open(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.opens += 1;
        }
    }

    /// A handle is closed; whether it was the last one.
    pub(crate) fn close(&mut self, id: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return true };
        node.opens = node.opens.saturating_sub(1);
        let last = node.opens == 0;
        if last {
            self.drop_unused(id);
        }
        last
    }

    /// The name was removed through this mount.
    pub(crate) fn unlink(&mut self, parent: u64, name: &str) {
        if let Some(id) = self.child(parent, name) {
            self.detach(id, Place::Unlinked);
        }
    }

    /// An entry got another name through this mount; what had that name is gone.
    pub(crate) fn rename(&mut self, from: (u64, &str), to: (u64, &str)) {
        if from == to {
            return;
        }
        let Some(id) = self.child(from.0, from.1) else { return self.unlink(to.0, to.1) };
        self.unlink(to.0, to.1);
        if !self.nodes.contains_key(&to.0) {
            return self.detach(id, Place::Replaced);
        }
        self.remove_child(from.0, from.1, id);
        self.give_name(id, to);
        self.drop_unused(from.0);
    }

    /// Two entries got each other's names through this mount.
    pub(crate) fn exchange(&mut self, one: (u64, &str), other: (u64, &str)) {
        let ids = [one, other].map(|(parent, name)| self.child(parent, name));
        let each = |to: [_; 2]| ids.into_iter().zip(to).filter_map(|(id, at)| Some((id?, at)));
        each([one, other]).for_each(|(id, at)| self.remove_child(at.0, at.1, id));
        each([other, one]).for_each(|(id, at)| self.give_name(id, at));
    }

    /// A node and all that is known beneath it.
    pub(crate) fn beneath(&self, id: u64) -> Vec<u64> {
        let mut all = vec![id];
        let mut next = 0;
        while let Some(node) = all.get(next).and_then(|id| self.nodes.get(id)) {
            all.extend(node.children.values());
            next += 1;
        }
        all
    }

    /// Has what a node shows decided on and made again.
    pub(crate) fn forget_views(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        (node.shown, node.size) = (None, None);
        if let Some(content) = &mut node.content {
            content.policy = NO_POLICY;
        }
    }

    fn detach(&mut self, id: u64, place: Place) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_detached()) else { return };
        node.place = place;
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

    /// Forgets a node that nothing refers to, and then perhaps its parent.
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
