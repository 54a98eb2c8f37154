//! The watched directories, by their IDs. A node is small, since there may be a hundred thousand of
//! them.

use std::collections::HashMap;

use super::directories::WatchId;
use crate::model::WorkspacePath;

/// The ID of a directory in the tree.
pub(super) type Id = u32;

/// The ID of the root.
pub(super) const ROOT: Id = 0;

#[derive(Debug)]
struct Node {
    parent: Id,
    name: Box<str>,
    watch: Option<WatchId>,
    /// The IDs of the children, sorted by name.
    children: Vec<Id>,
}

/// The watched directories, from the root on.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Option<Node>>,
    free: Vec<Id>,
    by_watch: HashMap<WatchId, Id>,
}

impl Default for Tree {
    fn default() -> Self {
        let name = Box::from("");
        let root = Node { parent: ROOT, name, watch: None, children: Vec::new() };
        Self { nodes: vec![Some(root)], free: Vec::new(), by_watch: HashMap::new() }
    }
}

impl Tree {
    /// Returns the number of directories.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn contains(&self, id: Id) -> bool {
        self.get(id).is_some()
    }

    /// Returns the directory with this watch.
    pub(super) fn by_watch(&self, watch: WatchId) -> Option<Id> {
        self.by_watch.get(&watch).copied()
    }

    pub(super) fn watch(&self, id: Id) -> Option<WatchId> {
        self.get(id)?.watch
    }

    /// Sets the watch of a directory; another directory with it loses it.
    pub(super) fn set_watch(&mut self, id: Id, watch: Option<WatchId>) {
        let Some(node) = self.get_mut(id) else { return };
        let old = std::mem::replace(&mut node.watch, watch);
        if let Some(old) = old.filter(|old| self.by_watch.get(old) == Some(&id)) {
            self.by_watch.remove(&old);
        }
        if let Some(before) = watch.and_then(|watch| self.by_watch.insert(watch, id))
            && before != id
            && let Some(node) = self.get_mut(before)
        {
            node.watch = None;
        }
    }

    /// Returns the path of a directory; `None` if it is too long.
    pub(super) fn path(&self, id: Id) -> Option<WorkspacePath> {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.get(at)?;
            names.push(&*node.name);
            at = node.parent;
        }
        names.reverse();
        WorkspacePath::parse(&names.join("/")).ok()
    }

    pub(super) fn children(&self, id: Id) -> Vec<Id> {
        self.get(id).map(|node| node.children.clone()).unwrap_or_default()
    }

    /// Returns the directory of this name in another.
    pub(super) fn child(&self, id: Id, name: &str) -> Option<Id> {
        let node = self.get(id)?;
        let at = self.search(node, name).ok()?;
        node.children.get(at).copied()
    }

    /// Adds a directory, unless it exists; returns its ID.
    pub(super) fn add(&mut self, parent: Id, name: &str) -> Option<Id> {
        let node = self.get(parent)?;
        let at = match self.search(node, name) {
            Ok(at) => return node.children.get(at).copied(),
            Err(at) => at,
        };
        let new = Node { parent, name: Box::from(name), watch: None, children: Vec::new() };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.nodes.push(None);
                Id::try_from(self.nodes.len() - 1).ok()?
            }
        };
        *self.nodes.get_mut(id as usize)? = Some(new);
        self.get_mut(parent)?.children.insert(at, id);
        Some(id)
    }

    /// Removes a directory with everything beneath it. Returns the IDs that are free now, with the
    /// watches that they had.
    pub(super) fn remove(&mut self, id: Id) -> Vec<(Id, Option<WatchId>)> {
        let mut removed = Vec::new();
        if id != ROOT {
            self.unlink(id);
        }
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            pending.extend(self.children(id));
            let watch = self.watch(id);
            self.set_watch(id, None);
            if id == ROOT {
                if let Some(root) = self.get_mut(ROOT) {
                    root.children.clear();
                }
            } else if let Some(slot) = self.nodes.get_mut(id as usize) {
                *slot = None;
                self.free.push(id);
            }
            removed.push((id, watch));
        }
        removed
    }

    fn unlink(&mut self, id: Id) {
        let Some((parent, name)) = self.get(id).map(|node| (node.parent, node.name.clone())) else {
            return;
        };
        let at = self.get(parent).and_then(|node| self.search(node, &name).ok());
        if let (Some(at), Some(node)) = (at, self.get_mut(parent)) {
            node.children.remove(at);
        }
    }

    fn search(&self, node: &Node, name: &str) -> Result<usize, usize> {
        node.children.binary_search_by(|id| {
            self.get(*id).map_or(std::cmp::Ordering::Less, |child| (*child.name).cmp(name))
        })
    }

    fn get(&self, id: Id) -> Option<&Node> {
        self.nodes.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: Id) -> Option<&mut Node> {
        self.nodes.get_mut(id as usize)?.as_mut()
    }
}

/// A set of IDs.
#[derive(Debug, Clone, Default)]
pub(super) struct IdSet(Vec<u64>);

impl IdSet {
    pub(super) fn has(&self, id: Id) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, id: Id, there: bool) {
        let at = id as usize / 64;
        if at >= self.0.len() {
            if !there {
                return;
            }
            self.0.resize(at + 1, 0);
        }
        if let Some(word) = self.0.get_mut(at) {
            *word = *word & !(1 << (id % 64)) | u64::from(there) << (id % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tree: &Tree, id: Id) -> String {
        tree.path(id).unwrap().to_string()
    }

    #[test]
    fn a_directory_goes_with_all_beneath_it_and_leaves_its_place() {
        let mut tree = Tree::default();
        let z = tree.add(ROOT, "z").unwrap();
        let b = tree.add(z, "b").unwrap();
        let c = tree.add(b, "c").unwrap();
        let a = tree.add(ROOT, "a").unwrap();
        assert_eq!(tree.add(z, "b"), Some(b));
        tree.set_watch(c, Some(7));
        assert_eq!(text(&tree, tree.by_watch(7).unwrap()), "z/b/c");
        let mut removed = tree.remove(z);
        removed.sort_unstable();
        assert_eq!(removed, [(z, None), (b, None), (c, Some(7))]);
        assert_eq!((tree.len(), tree.by_watch(7), tree.child(ROOT, "z")), (2, None, None));
        let new = tree.add(ROOT, "new").unwrap();
        assert!(new < 5 && new != a, "{new}");
    }

    #[test]
    fn a_watch_belongs_to_one_directory() {
        let mut tree = Tree::default();
        let (a, b) = (tree.add(ROOT, "a").unwrap(), tree.add(ROOT, "b").unwrap());
        tree.set_watch(a, Some(1));
        tree.set_watch(b, Some(1));
        assert_eq!((tree.watch(a), tree.by_watch(1)), (None, Some(b)));
        tree.set_watch(b, Some(2));
        assert_eq!((tree.by_watch(1), tree.by_watch(2)), (None, Some(b)));
    }

    #[test]
    fn places_are_kept_one_by_one() {
        let mut places = IdSet::default();
        for id in [0, 63, 64, 1000] {
            places.set(id, true);
            assert!(places.has(id) && !places.has(id + 1));
        }
        places.set(64, false);
        places.set(5000, false);
        assert!(!places.has(64) && places.has(63));
    }
}
