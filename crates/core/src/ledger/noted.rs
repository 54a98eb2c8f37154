//! The newest checkpoint that was signed, as it is noted beside the private key.

use portcullis_audit::{Checkpoint, Note};
use rustix::fs::RenameFlags;

use super::{
    Error,
    disk::Folder,
    small_file::{put, read},
};

/// Beside it: the newest checkpoint that was signed. Who can write to the log's
/// directory alone cannot make it seem that none was, or an older one.
pub(super) const SIGNED: &str = "signed";

/// The note beside the key about the newest checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Noted {
    /// None was ever signed.
    Nothing,
    /// One was, but which the file does not say: power was lost.
    Unclear,
    /// This one.
    Head(Checkpoint),
}

impl Noted {
    /// Reads it. The place is as safe as the key's, so no signature is checked.
    pub(super) fn read(keys: &Folder) -> Result<Self, Error> {
        let Some(text) = read(keys, SIGNED)? else { return Ok(Self::Nothing) };
        let checkpoint = Note::parse(text.as_bytes()).and_then(|note| Checkpoint::of(&note));
        Ok(checkpoint.map_or(Self::Unclear, Self::Head))
    }

    /// Notes that this was signed. Only the first time it must not be lost: the
    /// log's own directory has a copy on stable storage.
    pub(super) fn write(keys: &Folder, note: &str) -> Result<(), Error> {
        let first = Self::read(keys)? == Self::Nothing;
        put(keys, SIGNED, note.as_bytes(), RenameFlags::empty(), first)
    }

    /// The checkpoint, where it is known.
    pub(super) fn head(&self) -> Option<&Checkpoint> {
        match self {
            Self::Head(checkpoint) => Some(checkpoint),
            Self::Nothing | Self::Unclear => None,
        }
    }
}
