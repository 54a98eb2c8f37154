//! The states of paths, on disk and in backups.

use std::collections::BTreeMap;

use portcullis_audit::Hash;

use super::Error;
use crate::{
    gateway::{
        Backup, BackupError, BackupId, BackupKind, BackupNodeKind, BackupStore, Fingerprint,
        Gateway,
    },
    model::WorkspacePath,
    policy::ObjectKind,
};

/// The nodes of a tree, by path.
pub(super) type Nodes = BTreeMap<WorkspacePath, CurrentState>;

/// The state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CurrentState {
    Missing,
    /// A content, with its mode if that can be compared.
    Content(Hash, Option<u32>),
    /// Neither a file, a link nor a directory, or not reachable by this path.
    Odd,
    /// An unchanged entry of a tree from a backup.
    AsKept,
}

/// Returns the state of a path on disk.
pub(super) fn on_disk_at(gateway: &Gateway, path: &WorkspacePath) -> Result<CurrentState, Error> {
    // Larger contents were never backed up.
    let most = gateway.backups().retention().size;
    Ok(match gateway.workspace().fingerprint(path, most)? {
        Fingerprint::Missing => CurrentState::Missing,
        Fingerprint::File(hash, mode) => CurrentState::Content(hash, Some(mode)),
        Fingerprint::Other(hash) => CurrentState::Content(hash, None),
        Fingerprint::Unsupported => CurrentState::Odd,
    })
}

/// True if a directory is at the path.
pub(super) fn is_directory(gateway: &Gateway, path: &WorkspacePath) -> bool {
    gateway.workspace().stat(path).is_ok_and(|stat| stat.kind == ObjectKind::Directory)
}

/// Returns the backup that a step restores, if it still exists.
pub(super) fn entry(
    backup_store: &BackupStore,
    path: &WorkspacePath,
    id: BackupId,
) -> Result<Option<Backup>, Error> {
    if let Some(entry) = backup_store.entry_of(path, &id)? {
        return Ok(Some(entry));
    }
    // It is stored under the other path of a rename.
    match backup_store.find(&id.to_string()) {
        Ok(entry) => Ok(Some(entry)),
        Err(BackupError::Unknown(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the nodes of a tree in a backup as they are after it is restored at `root`; none if it
/// is no longer there.
pub(super) fn nodes(
    backup_store: &BackupStore,
    root: &WorkspacePath,
    id: BackupId,
) -> Result<Nodes, Error> {
    let mut nodes = Nodes::new();
    let entry = entry(backup_store, root, id)?;
    if let Some(entry) = entry.filter(|entry| entry.kind == BackupKind::Tree) {
        let mut tree = backup_store.tree(&entry)?.at(root.clone());
        while let Some(node) = tree.next_node()? {
            let Ok(path) = tree.path(&node) else { continue };
            let mode = node.attributes.as_ref().map(|attributes| attributes.mode & 0o777);
            let there = match (node.kind, node.sha256, &node.target) {
                (BackupNodeKind::File, Some(sha256), _) => CurrentState::Content(sha256, mode),
                (BackupNodeKind::Link, _, Some(target)) => {
                    CurrentState::Content(Hash::of(target), None)
                }
                _ => CurrentState::AsKept,
            };
            nodes.insert(path, there);
        }
    }
    Ok(nodes)
}
