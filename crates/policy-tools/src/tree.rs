//! The entries of a workspace about which a policy can be asked. Reads names and facts, never
//! content, and follows links no further than the gateway does.

use crate::{
    gateway::{Follow, Listing, Stat, Workspace, WorkspaceError},
    model::WorkspacePath,
    policy::{Object, ObjectKind},
};

/// Maximum number of entries.
const MAX_ENTRIES: usize = 1_000_000;

/// The entries of a workspace.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// All of them, including the root; those of a directory follow it.
    pub entries: Vec<TreeEntry>,
    /// Number of entries that no gateway serves: the name is not UTF-8, the entry belongs to
    /// another file system, or it cannot be read.
    pub not_served: u64,
}

/// One entry.
#[derive(Debug, Clone)]
pub struct TreeEntry {
    /// Its path.
    pub path: WorkspacePath,
    /// Its own kind and facts, not those of a link's target.
    pub object: Object,
    /// The target, if it is a symbolic link that stays within the workspace.
    pub target: Option<(WorkspacePath, Object)>,
}

impl Tree {
    /// Reads all entries of `workspace`.
    ///
    /// # Errors
    /// If the root cannot be read, or if there are more than a million entries.
    pub fn of(workspace: &Workspace) -> Result<Self, WorkspaceError> {
        let workspace = workspace.view();
        let mut tree = Self::default();
        let root = Object { kind: ObjectKind::Directory, links: 1, through_symlink: false };
        let mut open = vec![(WorkspacePath::root(), root)];
        while let Some((path, object)) = open.pop() {
            let listing = match object.kind {
                ObjectKind::Directory => match workspace.list(&path) {
                    Ok(listing) => listing,
                    Err(error) if path.is_root() => return Err(error),
                    Err(WorkspaceError::TooLarge) => return Err(WorkspaceError::TooLarge),
                    Err(_) => {
                        tree.not_served += 1;
                        Listing::default()
                    }
                },
                _ => Listing::default(),
            };
            let target = (object.kind == ObjectKind::Symlink)
                .then(|| workspace.resolve(&path, Follow::Yes).ok())
                .flatten()
                .map(|resolved| (resolved.path().clone(), resolved.object()));
            tree.not_served += listing.not_utf8;
            // The stack returns the last entry first.
            for (name, stat) in listing.entries.into_iter().rev() {
                match (path.join(&name), stat) {
                    (Ok(path), Some(stat)) => open.push((path, Stat::object(&stat, false))),
                    _ => tree.not_served += 1,
                }
            }
            tree.entries.push(TreeEntry { path, object, target });
            if tree.entries.len() > MAX_ENTRIES {
                return Err(WorkspaceError::TooLarge);
            }
        }
        Ok(tree)
    }
}
