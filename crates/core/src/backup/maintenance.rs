//! Maintenance of the backup store: retention and packing. It is the only way for another crate to
//! have backups deleted, and only those that retention, as the gateway's policy states it, deletes.

use std::{ops::ControlFlow, sync::Arc};

use super::{BackupStore, Error, Packed, Pruned};

/// Maintains the backup store of a gateway, from any thread.
#[derive(Debug, Clone)]
pub struct BackupMaintenance(Arc<BackupStore>);

impl BackupMaintenance {
    pub(crate) fn of(store: &Arc<BackupStore>) -> Self {
        Self(Arc::clone(store))
    }

    /// True if the gateway of this process made a backup.
    pub fn has_saved(&self) -> bool {
        self.0.has_saved()
    }

    /// Packs the store if enough was saved since it was last packed.
    ///
    /// # Errors
    /// Of the system; no backup is lost.
    pub fn pack_if_due(&self) -> Result<Option<Packed>, Error> {
        if !self.0.is_due()? {
            return Ok(None);
        }
        self.0.pack(&mut |_| ControlFlow::Continue(())).map(Some)
    }

    /// Returns the result that pruning would have.
    ///
    /// # Errors
    /// Of the system.
    pub fn preview(&self) -> Result<Pruned, Error> {
        self.0.would_prune()
    }

    /// Deletes the backups past the retention and packs the others. `progress` gets the bytes
    /// packed and the bytes to pack.
    ///
    /// # Errors
    /// Of the system; no other backup is lost.
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(Pruned, Packed), Error> {
        let pruned = self.0.prune()?;
        let packed = self.0.pack(&mut |at| {
            progress(at.done, at.total);
            ControlFlow::Continue(())
        })?;
        Ok((pruned, packed))
    }
}
