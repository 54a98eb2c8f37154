//! A prepared change and its backups, which are retained if it is made, and discarded if it is not.

use portcullis_audit::Receipt;

use super::error::Failure;
use crate::{
    audit_log::Grant,
    backup::{self, BackupStore, Saved},
    model::WorkspacePath,
    ops::{self, Committed, SealedChange},
    workspace::TempName,
};

/// A prepared change, and the backups of what it will replace.
pub(super) struct PreparedChange<'a> {
    pub(super) sealed: SealedChange<'a>,
    pub(super) saved: Vec<Saved>,
}

/// A change that was applied, or failed.
pub(super) struct Applied {
    /// The receipt of its intent.
    pub(super) receipt: Receipt,
    pub(super) committed: Result<Committed, ops::Error>,
    pub(super) saved: Vec<Saved>,
    /// Bytes that the change stores.
    pub(super) bytes: Option<u64>,
}

impl PreparedChange<'_> {
    /// Returns the canonical path of the changed entry.
    pub(super) fn path(&self) -> &WorkspacePath {
        self.sealed.permit().path()
    }

    /// Makes the change once its backups are durable.
    pub(super) fn commit(mut self, grant: Grant, backup_store: &BackupStore) -> Applied {
        let bytes = self.sealed.facts().bytes;
        let (receipt, committed) = match settle(backup_store, &mut self.saved) {
            Ok(()) => self.sealed.commit(grant, &self.saved),
            Err(error) => (grant.into_receipt(), Err(error.into())),
        };
        Applied { receipt, committed, saved: self.saved, bytes }
    }
}

/// Syncs the backups to disk.
pub(super) fn settle(backup_store: &BackupStore, saved: &mut [Saved]) -> Result<(), backup::Error> {
    saved.iter_mut().try_for_each(|one| backup_store.settle(one))
}

/// Refuses a directory that has entries in its backup: another process made them since the directory
/// was found empty. Names reserved for the gateway do not count, as in lists.
pub(super) fn check_is_empty(backup_store: &BackupStore, saved: &Saved) -> Result<(), Failure> {
    if saved.objects == 1 {
        return Ok(());
    }
    let mut tree = backup_store.tree(&backup_store.entry(saved)?)?;
    while let Some(node) = tree.next_node()? {
        if node.depth == 1 && !TempName::is_reserved_name(&node.name) {
            return Err(ops::Error::NotEmpty.into());
        }
    }
    Ok(())
}

/// Retains the backups of a change that was made; older versions may be deleted.
pub(super) fn keep(backup_store: &BackupStore, saved: Vec<Saved>) {
    for one in saved {
        if let Err(error) = backup_store.keep(one) {
            tracing::warn!(%error, "an old backup could not be removed");
        }
    }
}

/// Discards the backups of a change that was not made.
pub(super) fn discard(backup_store: &BackupStore, saved: Vec<Saved>) {
    for one in saved {
        if let Err(error) = backup_store.discard(one) {
            tracing::warn!(%error, "a needless backup could not be removed");
        }
    }
}
