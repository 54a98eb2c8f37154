//! The backups of one change: kept once it was made, discarded if it was not.

use crate::backup::{self, BackupStore, Saved};

/// Brings all that was kept to stable storage.
pub(super) fn settle(vault: &BackupStore, saved: &mut [Saved]) -> Result<(), backup::Error> {
    saved.iter_mut().try_for_each(|one| vault.settle(one))
}

/// The change was made: what was kept stays, older versions may go.
pub(super) fn keep(vault: &BackupStore, saved: Vec<Saved>) {
    for one in saved {
        if let Err(error) = vault.keep(one) {
            tracing::warn!(%error, "an old backup could not be removed");
        }
    }
}

/// Lets go of what was kept for a change that was not made.
pub(super) fn discard(vault: &BackupStore, saved: Vec<Saved>) {
    for one in saved {
        if let Err(error) = vault.discard(one) {
            tracing::warn!(%error, "a needless backup could not be removed");
        }
    }
}
