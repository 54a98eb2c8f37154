//! The differences of two trees.

use std::collections::BTreeSet;

use super::{Entry, Error, Mode, ObjectId, Source, Tree};

/// Maximum number of paths that one commit may change.
const MAX_CHANGES: usize = 100_000;
/// Maximum number of trees that are compared for that.
const MAX_TREES: usize = 100_000;
/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 4096;

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
/// If a tree cannot be read, or there are too many.
pub fn diff(
    source: &mut dyn Source,
    old: Option<&ObjectId>,
    new: Option<&ObjectId>,
) -> Result<Vec<Change>, Error> {
    let (mut changes, mut trees) = (Vec::new(), 0);
    let mut open = vec![(Vec::new(), old.cloned(), new.cloned())];
    while let Some((above, old, new)) = open.pop() {
        if old == new {
            continue;
        }
        trees += 1;
        if trees > MAX_TREES || changes.len() > MAX_CHANGES {
            return Err(Error::Budget);
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
            if leaf_old.is_some() || leaf_new.is_some() {
                changes.push(Change { path: path.clone(), old: leaf_old, new: leaf_new });
            }
            if below_old.is_some() || below_new.is_some() {
                open.push((path, below_old, below_new));
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
