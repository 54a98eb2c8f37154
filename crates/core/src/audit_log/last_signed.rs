//! The newest checkpoint that was signed, stored beside the private key.

use portcullis_audit::{Checkpoint, Note};
use rustix::fs::RenameFlags;

use super::{
    Error,
    disk::Folder,
    small_file::{put, read},
};

/// The file beside the key with the newest checkpoint that was signed. A process that can write to
/// the log's directory alone cannot remove or replace it.
pub(super) const SIGNED: &str = "signed";

/// The state of that file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LastSigned {
    /// No checkpoint was ever signed.
    Nothing,
    /// A checkpoint was signed, but a power failure has damaged the file.
    Unclear,
    /// This checkpoint was signed.
    Head(Checkpoint),
}

impl LastSigned {
    /// Reads the file. Its directory is as safe as the key's, so no signature is checked.
    pub(super) fn read(keys: &Folder) -> Result<Self, Error> {
        let Some(text) = read(keys, SIGNED)? else { return Ok(Self::Nothing) };
        let checkpoint = Note::parse(text.as_bytes()).and_then(|note| Checkpoint::of(&note));
        Ok(checkpoint.map_or(Self::Unclear, Self::Head))
    }

    /// Writes the checkpoint that was signed. Only the first write is synced: the log's own
    /// directory has a synced copy.
    pub(super) fn write(keys: &Folder, note: &str) -> Result<(), Error> {
        let first = Self::read(keys)? == Self::Nothing;
        put(keys, SIGNED, note.as_bytes(), RenameFlags::empty(), first)
    }

    /// Returns the checkpoint, if it is known.
    pub(super) fn head(&self) -> Option<&Checkpoint> {
        match self {
            Self::Head(checkpoint) => Some(checkpoint),
            Self::Nothing | Self::Unclear => None,
        }
    }
}
