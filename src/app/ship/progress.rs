//! How far each target has a copy, in `STATE/ship/`.

use std::{collections::BTreeMap, fmt::Display, io, path::Path};

use portcullis_audit::{Checkpoint, Hash, Note};
use serde::{Deserialize, Serialize};

use super::log::End;
use crate::{config::audit::Target, review::read_kept};

/// How far a target has everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ShipProgress {
    /// The target.
    pub(crate) to: String,
    /// The place of the copy beneath the target.
    pub(crate) copy: String,
    /// The open segment, and the bytes of it that were sent.
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// Bytes of each sealed segment, as it was sent.
    pub(super) sealed: BTreeMap<u64, u64>,
    /// Records that the last checkpoint sent covers.
    pub(crate) records: u64,
    /// Where they end.
    pub(super) end: Option<End>,
    /// When that began, in seconds since 1970.
    pub(crate) at: u64,
    /// Why the last attempt failed.
    pub(crate) error: Option<String>,
}

/// Bytes of what is known of a target: more than of a million segments.
const MOST: u64 = 32 << 20;
/// Characters that are kept of what is said of a failure.
const WORDS: usize = 500;

/// The directory of what was sent, in the state directory.
pub(super) const FOLDER: &str = "ship";

/// What is known of a target is in files of this name there.
pub(super) fn file_name(target: &Target) -> String {
    let hash = Hash::of(target.to.as_bytes()).to_string();
    format!("{FOLDER}/{}", hash.get(..16).unwrap_or(&hash))
}

/// Records that a checkpoint covers.
pub(super) fn records_of(note: &[u8]) -> Option<u64> {
    Checkpoint::of(&Note::parse(note).ok()?).ok().map(|checkpoint| checkpoint.size)
}

/// How far it was when that was last noted; nothing where nothing was.
///
/// # Errors
/// When what is there cannot be read: that is no reason to take it for nothing.
pub(super) fn known(state: &Path, target: &Target) -> Result<Option<ShipProgress>, String> {
    let name = format!("{}.json", file_name(target));
    let unreadable =
        |why: &dyn Display| format!("`{name}` in the state directory cannot be read: {why}");
    match read_kept(&state.join(&name), MOST) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

/// What is said of an attempt that failed: a target may answer with a page of any length, and
/// its words are kept and shown.
pub(super) fn shortened(why: &str) -> String {
    match why.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", why.get(..end).unwrap_or_default()),
        None => why.to_owned(),
    }
}
