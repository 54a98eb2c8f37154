//! Cosignatures of witnesses, added to the checkpoints that are kept.

use portcullis_audit::{Checkpoint, HISTORY, NEWEST, Note, PublicKey};
use rustix::fs::RenameFlags;

use super::{
    AuditLog, Error,
    checkpoints::{LOCK, lock},
    disk::{FileLock, Folder},
    small_file,
};

impl AuditLog {
    /// Adds the signatures by `witnesses` of `cosigned` to the kept checkpoints with the
    /// same text; says how many are new, `None` where no such checkpoint is kept. What is
    /// kept is what the log's own verifier can check.
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
        // One that was the newest and is not kept by its size yet.
        if let Some(newest) = newest
            && history.stat(&size).is_ok_and(|stat| stat.is_none())
        {
            let text = newest.to_string();
            small_file::write(&history, &size, text.as_bytes(), RenameFlags::empty())?;
        }
        Ok(most)
    }
}
