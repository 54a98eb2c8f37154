//! Cosignatures of witnesses, added to the checkpoints that are kept.

use portcullis_audit::{Checkpoint, HISTORY, NEWEST, Note, NoteError, PublicKey};
use rustix::fs::RenameFlags;

use super::{
    AuditLog, Error,
    checkpoints::{LOCK, lock},
    disk::{Folder, Held},
    signing, small_file,
};

impl AuditLog {
    /// Adds the signatures of `cosigned` to the kept checkpoints with the same
    /// text; says how many are new. Those by `witnesses` must be right.
    ///
    /// # Errors
    ///
    /// When there is no such checkpoint, a signature is wrong, or the file cannot
    /// be written.
    pub fn cosign(
        state: &cap_std::fs::Dir,
        cosigned: &Note,
        witnesses: &[PublicKey],
    ) -> Result<usize, Error> {
        let audit = Folder::open(state, "audit")?;
        let history = Folder::open(&audit, HISTORY)?;
        let lock = lock(&history)?;
        let _held = Held::wait(&lock, LOCK)?;
        let keys: Vec<_> =
            signing::keys_of(&audit)?.into_iter().chain(witnesses.iter().cloned()).collect();
        let _signed = cosigned.verify(&keys)?;
        let size = Checkpoint::of(cosigned)?.size.to_string();
        let mut most = None;
        for (folder, name) in [(&audit, NEWEST), (&history, size.as_str())] {
            let Some(text) = small_file::read(folder, name)? else { continue };
            let Ok((merged, added)) = Note::parse(text.as_bytes())?.merge(cosigned) else {
                continue;
            };
            if added > 0 {
                small_file::write(
                    folder,
                    name,
                    merged.to_string().as_bytes(),
                    RenameFlags::empty(),
                )?;
            }
            most = most.max(Some(added));
        }
        // One that was the newest and is not kept by its size yet.
        if most.is_some() && history.stat(&size).is_ok_and(|stat| stat.is_none()) {
            small_file::write(
                &history,
                &size,
                cosigned.to_string().as_bytes(),
                RenameFlags::empty(),
            )?;
        }
        most.ok_or(Error::Note(NoteError::Checkpoint))
    }
}
