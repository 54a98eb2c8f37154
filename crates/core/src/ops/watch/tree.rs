//! The directories that are watched, by their places: small, since there may be
//! a hundred thousand of them.

use std::collections::HashMap;

use crate::{model::WorkspacePath, workspace::WatchId};

/// A directory's place in the tree.
pub(super) type Id = u32;

/// The root's.
pub(super) const ROOT: Id = 0;

#[derive(Debug)]
struct Node {
    parent: Id,
    name: Box<str>,
    watch: Option<WatchId>,
    /// How many were added before it.
    born: u64,
    /// Sorted by name.
    children: Vec<Id>,
}

/// The watched directories, from the root on.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Option<Node>>,
    free: Vec<Id>,
    by_watch: HashMap<WatchId, Id>,
    born: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let name = Box::from("");
        let root = Node { parent: ROOT, name, watch: None, born: 0, children: Vec::new() };
        Self { nodes: vec![Some(root)], free: Vec::new(), by_watch: HashMap::new(), born: 0 }
    }
}

impl Tree {
    /// How many directories there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// How many directories were ever added.
    pub(super) fn born(&self) -> u64 {
        self.born
    }

    /// Whether the directory was there when `born` were, and is not another
    /// that got its place.
    pub(super) fn is_of_old(&self, id: Id, born: u64) -> bool {
        self.get(id).is_some_and(|node| node.born <= born)
    }

    pub(super) fn contains(&self, id: Id) -> bool {
        self.get(id).is_some()
    }

    /// The directory that has this watch.
    pub(super) fn by_watch(&self, watch: WatchId) -> Option<Id> {
        self.by_watch.get(&watch).copied()
    }

    pub(super) fn watch(&self, id: Id) -> Option<WatchId> {
        self.get(id)?.watch
    }

    /// Gives a directory its watch; whoever had it before has none.
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

    /// The path of a directory; `None` when it is too long.
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

    /// The watches of a directory and of all beneath it.
    pub(super) fn watches(&self, id: Id) -> Vec<WatchId> {
        let (mut watches, mut pending) = (Vec::new(), vec![id]);
        while let Some(id) = pending.pop() {
            watches.extend(self.watch(id));
            pending.extend(self.children(id));
        }
        watches
    }

    pub(super) fn children(&self, id: Id) -> Vec<Id> {
        self.get(id).map(|node| node.children.clone()).unwrap_or_default()
    }

    /// The directory of this name in another.
    pub(super) fn child(&self, id: Id, name: &str) -> Option<Id> {
        let node = self.get(id)?;
        let at = self.search(node, name).ok()?;
        node.children.get(at).copied()
    }

    /// Adds a directory, if it is not there.
    pub(super) fn add(&mut self, parent: Id, name: &str) -> Option<Id> {
        let node = self.get(parent)?;
        let at = match self.search(node, name) {
            Ok(at) => return node.children.get(at).copied(),
            Err(at) => at,
        };
        self.born += 1;
        let (name, born) = (Box::from(name), self.born);
        let new = Node { parent, name, watch: None, born, children: Vec::new() };
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

    /// Takes a directory with all beneath it out; gives the places that are
    /// free now, and the watches that nobody has any more.
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

    /// Gives a directory another place, with all beneath it. False, and nothing
    /// is done, when that place is beneath itself or taken.
    pub(super) fn rename(&mut self, id: Id, parent: Id, name: &str) -> bool {
        let mut above = parent;
        while above != ROOT {
            let Some(node) = self.get(above).filter(|_| above != id) else { return false };
            above = node.parent;
        }
        if id == ROOT || !self.contains(id) || self.child(parent, name).is_some() {
            return false;
        }
        self.unlink(id);
        if let Some(node) = self.get_mut(id) {
            (node.parent, node.name) = (parent, Box::from(name));
        }
        let Some(node) = self.get(parent) else { return false };
        let at = self.search(node, name).unwrap_or_else(|at| at);
        if let Some(node) = self.get_mut(parent) {
            node.children.insert(at, id);
        }
        true
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

/// A set of places.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(Vec<u64>);

impl Places {
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
    fn directories_keep_their_watches_when_they_move() {
        let mut tree = Tree::default();
        let a = tree.add(ROOT, "a").unwrap();
        let b = tree.add(a, "b").unwrap();
        let c = tree.add(b, "c").unwrap();
        assert_eq!(tree.add(a, "b"), Some(b));
        tree.set_watch(c, Some(7));
        let z = tree.add(ROOT, "z").unwrap();
        assert_eq!((tree.watches(a), tree.watches(z)), (vec![7], vec![]));
        assert!(tree.rename(b, z, "y"));
        assert_eq!(text(&tree, tree.by_watch(7).unwrap()), "z/y/c");
        assert!(!tree.rename(z, c, "loop"));
        assert!(!tree.rename(a, ROOT, "z"));
        assert_eq!((tree.child(a, "b"), tree.child(z, "y")), (None, Some(b)));
        let mut removed = tree.remove(z);
        removed.sort_unstable();
        assert_eq!(removed, [(b, None), (c, Some(7)), (z, None)]);
        assert_eq!((tree.len(), tree.by_watch(7)), (2, None));
        let born = tree.born();
        let new = tree.add(ROOT, "new").unwrap();
        assert!(new < 5 && tree.is_of_old(a, born) && !tree.is_of_old(new, born));
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
        let mut places = Places::default();
        for id in [0, 63, 64, 1000] {
            places.set(id, true);
            assert!(places.has(id) && !places.has(id + 1));
        }
        places.set(64, false);
        places.set(5000, false);
        assert!(!places.has(64) && places.has(63));
    }
}
