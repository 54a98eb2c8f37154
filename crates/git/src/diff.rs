//! The differences of two trees.

use std::collections::BTreeSet;

use super::{Entry, Error, Mode, ObjectId, Source, Tree, name::MAX_PATH};

/// Maximum number of paths that one commit may change.
const MAX_CHANGES: usize = 100_000;
/// Maximum number of trees that are compared for that.
const MAX_TREES: usize = 100_000;
/// Maximum number of bytes of all these paths.
const MAX_PATH_BYTES: usize = 64 << 20;

/// A path that differs. Directories are not listed, but their entries are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path from the root.
    pub path: Vec<u8>,
    /// The old entry.
    pub old: Option<Entry>,
    /// The new entry.
    pub new: Option<Entry>,
}

/// Finds the paths that differ between two trees of a source.
///
/// # Errors
/// If a tree cannot be read, or too many paths differ.
pub fn diff(
    source: &mut dyn Source,
    old: Option<&ObjectId>,
    new: Option<&ObjectId>,
) -> Result<Vec<Change>, Error> {
    let (mut changes, mut trees, mut bytes) = (Vec::new(), 0, 0);
    let mut open = vec![(Vec::new(), old.cloned(), new.cloned())];
    while let Some((above, old, new)) = open.pop() {
        if old == new {
            continue;
        }
        let (old, new) = (Tree::read(source, old.as_ref())?, Tree::read(source, new.as_ref())?);
        let names: BTreeSet<_> = old.0.keys().chain(new.0.keys()).collect();
        for name in names {
            let (before, after) = (old.0.get(name), new.0.get(name));
            if before == after {
                continue;
            }
            let mut path = above.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            if path.len() > MAX_PATH {
                return Err(Error::path(&path, "the path is too long"));
            }
            let (below_old, leaf_old) = sides(before);
            let (below_new, leaf_new) = sides(after);
            bytes += path.len();
            if leaf_old.is_some() || leaf_new.is_some() {
                changes.push(Change { path: path.clone(), old: leaf_old, new: leaf_new });
            }
            if below_old.is_some() || below_new.is_some() {
                trees += 1;
                open.push((path, below_old, below_new));
            }
            // A single tree may have more entries than that.
            if trees > MAX_TREES || changes.len() > MAX_CHANGES || bytes > MAX_PATH_BYTES {
                return Err(Error::Changes);
            }
        }
    }
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(changes)
}

/// Splits an entry into the tree of a directory and any other entry.
fn sides(entry: Option<&Entry>) -> (Option<ObjectId>, Option<Entry>) {
    match entry {
        Some(Entry { mode: Mode::Directory, id }) => (Some(id.clone()), None),
        other => (None, other.cloned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{Format, Object, ObjectKind};

    /// Trees in memory, with the number of those that were read.
    #[derive(Default)]
    struct Trees(HashMap<ObjectId, Vec<u8>>, usize);

    impl Trees {
        fn add(
            &mut self,
            names: impl Iterator<Item = String>,
            mode: Mode,
            id: &ObjectId,
        ) -> ObjectId {
            let entry = Entry { mode, id: id.clone() };
            let tree = Tree(names.map(|name| (name.into_bytes(), entry.clone())).collect());
            let Object { id, bytes, .. } = tree.object(Format::Sha1);
            self.0.insert(id.clone(), bytes);
            id
        }
    }

    impl Source for Trees {
        fn read(&mut self, id: &ObjectId, _: ObjectKind, _: u64) -> Result<Vec<u8>, Error> {
            self.1 += 1;
            self.0.get(id).cloned().ok_or_else(|| Error::Missing(id.clone()))
        }
    }

    /// Counts the trees that are read for a directory of `entries` alike beneath a path of
    /// `depth` times 250 bytes.
    fn read_of(entries: usize, depth: usize, mode: Mode) -> usize {
        let mut trees = Trees::default();
        let blob = Object::new(Format::Sha1, ObjectKind::Blob, Vec::new()).id;
        let one = trees.add(["l".to_owned()].into_iter(), Mode::Link, &blob);
        let id = if mode == Mode::Directory { &one } else { &blob };
        let mut root = trees.add((0..entries).map(|number| format!("{number:x}")), mode, id);
        for _ in 0..depth {
            root = trees.add(["d".repeat(250)].into_iter(), Mode::Directory, &root);
        }
        let found = diff(&mut trees, None, Some(&root));
        assert!(matches!(found, Err(Error::Changes)), "{found:?}");
        trees.1
    }

    #[test]
    fn the_entries_of_one_tree_are_counted_before_their_paths_are_stored() {
        for mode in [Mode::Directory, Mode::Link] {
            // By number, and by bytes.
            assert_eq!(read_of(100_001, 0, mode), 1);
            assert_eq!(read_of(20_000, 15, mode), 16);
        }
    }
}
