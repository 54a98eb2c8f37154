//! Cosignatures of witnesses on stored checkpoints.

use portcullis_audit::{Checkpoint, HISTORY, NEWEST, Note, PublicKey};
use rustix::fs::RenameFlags;

use super::{
    AuditLog, Error,
    checkpoints::{LOCK, lock},
    disk::{FileLock, Folder},
    small_file,
};

impl AuditLog {
    /// Adds the signatures by `witnesses` of `cosigned` to the stored checkpoints with the same
    /// text; returns how many are new, `None` if there is no such checkpoint. Only signatures that
    /// the log's own verifier can check are added.
    ///
    /// # Errors
    ///
    /// When a signature is wrong, or the file cannot be written.
    pub fn cosign(
        state: &cap_std::fs::Dir,
        cosigned: &Note,
        witnesses: &[PublicKey],
    ) -> Result<Option<usize>, Error> {
        let audit = Folder::open(state, "audit")?;
        let history = Folder::open(&audit, HISTORY)?;
        let lock = lock(&history)?;
        let _held = FileLock::wait(&lock, LOCK)?;
        let size = Checkpoint::of(cosigned)?.size.to_string();
        let (mut most, mut newest) = (None, None);
        for (folder, name) in [(&audit, NEWEST), (&history, size.as_str())] {
            let Some(text) = small_file::read(folder, name)? else { continue };
            let kept = Note::parse(text.as_bytes())?;
            if kept.text() != cosigned.text() {
                continue;
            }
            let (merged, added) = kept.cosigned(cosigned, witnesses)?;
            if added > 0 {
                small_file::write(
                    folder,
                    name,
                    merged.to_string().as_bytes(),
                    RenameFlags::empty(),
                )?;
            }
            most = most.max(Some(added));
            newest.get_or_insert(merged);
        }
        // The newest checkpoint may not be stored by its size yet.
        if let Some(newest) = newest
            && history.stat(&size).is_ok_and(|stat| stat.is_none())
        {
            let text = newest.to_string();
            small_file::write(&history, &size, text.as_bytes(), RenameFlags::empty())?;
        }
        Ok(most)
    }
}
