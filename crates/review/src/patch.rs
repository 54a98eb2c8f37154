//! Differences that changes made to files, from their backups and the workspace.

use std::{collections::BTreeMap, io::Read as _};

use portcullis_audit::Hash;

use super::MAX_READ;
use crate::{
    change::Change,
    gateway::{
        Backup, BackupError, BackupKind, BackupStore, CONTEXT, Fingerprint, Workspace, unified_diff,
    },
    model::{OperationKind, WorkspacePath, is_text},
};

/// Maximum size of a content that is compared, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The difference that a change made to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// A unified diff; empty if nothing changed.
    Text(String),
    /// A side, or both, that is not text.
    Binary,
    /// A side, or both, that is too large for a comparison.
    TooLarge,
    /// No copy of this side exists any more: `before` or `after`.
    Unavailable(&'static str),
    /// No backup has this side, and the workspace is not available.
    NotChecked(&'static str),
    /// The change was not one of a single file's content, or the record itself has the content: the
    /// target of a link.
    None,
}

/// Finds contents in the backup store and on the disk, and compares them. They are the stored
/// contents, without redaction.
pub struct Patches<'a> {
    backup_store: Option<&'a BackupStore>,
    workspace: Option<&'a Workspace>,
    entries: BTreeMap<WorkspacePath, Vec<Backup>>,
}

impl<'a> Patches<'a> {
    /// Uses this backup store and this workspace, if it is available.
    pub fn new(backup_store: Option<&'a BackupStore>, workspace: Option<&'a Workspace>) -> Self {
        Self { backup_store, workspace, entries: BTreeMap::new() }
    }

    /// Returns the difference that the change made.
    ///
    /// # Errors
    /// If the backup store cannot be read.
    pub fn of(&mut self, change: &Change) -> Result<Patch, BackupError> {
        if !change.is_made()
            || matches!(
                change.operation,
                OperationKind::Mkdir
                    | OperationKind::Rename
                    | OperationKind::SetAttributes
                    | OperationKind::Symlink
            )
        {
            return Ok(Patch::None);
        }
        let before = match change.before {
            None => Content::Nothing,
            Some(hash) => self.find(&change.path, hash)?,
        };
        let after = match change.after {
            None => Content::Nothing,
            Some(hash) => self.find(&change.path, hash)?,
        };
        Ok(match (before, after) {
            (Content::Nothing, Content::Nothing) | (Content::Tree, _) | (_, Content::Tree) => {
                Patch::None
            }
            (Content::Lost, _) => self.lost("before"),
            (_, Content::Lost) => self.lost("after"),
            (Content::Large, _) | (_, Content::Large) => Patch::TooLarge,
            (before, after) => diff(&change.path, before, after),
        })
    }

    fn lost(&self, side: &'static str) -> Patch {
        if self.workspace.is_some() { Patch::Unavailable(side) } else { Patch::NotChecked(side) }
    }

    fn find(&mut self, path: &WorkspacePath, hash: Hash) -> Result<Content, BackupError> {
        let Some(backup_store) = self.backup_store else {
            return Ok(self.on_disk(path, hash).unwrap_or(Content::Lost));
        };
        if !self.entries.contains_key(path) {
            let entries = backup_store.entries_of(path)?.entries;
            self.entries.insert(path.clone(), entries);
        }
        let entries = self.entries.get(path).map(Vec::as_slice).unwrap_or_default();
        if let Some(entry) = entries.iter().find(|entry| entry.sha256 == hash) {
            return match entry.kind {
                BackupKind::Tree => Ok(Content::Tree),
                _ if entry.bytes > MAX_BYTES => Ok(Content::Large),
                _ => {
                    let mut bytes = Vec::new();
                    let mut content = backup_store.content(entry)?;
                    match content.read_to_end(&mut bytes) {
                        Ok(_) => Ok(Content::Bytes(bytes)),
                        Err(error) => Err(content.failed(error)),
                    }
                }
            };
        }
        Ok(self.on_disk(path, hash).unwrap_or(Content::Lost))
    }

    /// Returns the content on disk, if it has this hash.
    fn on_disk(&self, path: &WorkspacePath, hash: Hash) -> Option<Content> {
        let workspace = self.workspace?.view();
        match workspace.read(path, MAX_BYTES) {
            Ok(Some(bytes)) if Hash::of(&bytes) == hash => Some(Content::Bytes(bytes)),
            _ => match workspace.fingerprint(path, MAX_READ).ok()? {
                Fingerprint::File(found, _) if found == hash => Some(Content::Large),
                Fingerprint::Other(found) if found == hash => Some(Content::Tree),
                _ => None,
            },
        }
    }
}

enum Content {
    Nothing,
    Bytes(Vec<u8>),
    Large,
    Tree,
    Lost,
}

fn diff(path: &WorkspacePath, before: Content, after: Content) -> Patch {
    let text = |content| match content {
        Content::Bytes(bytes) if is_text(&bytes) => String::from_utf8(bytes).ok(),
        Content::Bytes(_) => None,
        _ => Some(String::new()),
    };
    let side = |name: &str, content: &Content| match content {
        Content::Nothing => "/dev/null".to_owned(),
        _ => format!("{name}/{path}"),
    };
    let (old, new) = (side("a", &before), side("b", &after));
    match (text(before), text(after)) {
        (Some(before), Some(after)) => {
            Patch::Text(unified_diff(&before, &after, (&old, &new), CONTEXT))
        }
        _ => Patch::Binary,
    }
}
