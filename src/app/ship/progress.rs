//! The progress of each target's copy, in `STATE/ship/`.

use std::{collections::BTreeMap, fmt::Display, io, path::Path};

use portcullis_audit::{Checkpoint, Hash, Note};
use serde::{Deserialize, Serialize};

use super::log::LogEnd;
use crate::{config::audit::Target, review::read_regular};

/// The progress of a target's copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ShipProgress {
    /// The target.
    pub(crate) to: String,
    /// The location of the copy beneath the target.
    pub(crate) copy: String,
    /// The open segment, and the number of its bytes sent.
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// The number of bytes that the next piece has, from the first attempt to send it; 0 before.
    pub(super) piece: u64,
    /// The size of each sealed segment in bytes, as sent.
    pub(super) sealed: BTreeMap<u64, u64>,
    /// Number of records that the last sent checkpoint covers.
    pub(crate) records: u64,
    /// The end of these records.
    pub(super) end: Option<LogEnd>,
    /// The time at which that copy began, in seconds since 1970.
    pub(crate) at: u64,
    /// The error of the last attempt.
    pub(crate) error: Option<String>,
}

/// Maximum of bytes of a stored progress: more than of a million segments.
const MAX_PROGRESS: u64 = 32 << 20;
/// Maximum of stored characters of an error.
const MAX_ERROR: usize = 500;

/// The directory of the progress, in the state directory.
pub(super) const FOLDER: &str = "ship";

/// Returns the name of a target's files there.
pub(super) fn file_name(target: &Target) -> String {
    let hash = Hash::of(target.to.as_bytes()).to_string();
    format!("{FOLDER}/{}", hash.get(..16).unwrap_or(&hash))
}

/// Returns the number of records that a checkpoint covers.
pub(super) fn records_of(note: &[u8]) -> Option<u64> {
    Checkpoint::of(&Note::parse(note).ok()?).ok().map(|checkpoint| checkpoint.size)
}

/// Reads the stored progress; `None` if there is none.
///
/// # Errors
/// When it cannot be read, which must not count as no progress.
pub(super) fn known(state: &Path, target: &Target) -> Result<Option<ShipProgress>, String> {
    let name = format!("{}.json", file_name(target));
    let unreadable =
        |reason: &dyn Display| format!("`{name}` in the state directory cannot be read: {reason}");
    match read_regular(&state.join(&name), MAX_PROGRESS) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

/// Shortens the error of an attempt: a target may reply with a page of any length, and the
/// text is stored and shown.
pub(super) fn shortened(reason: &str) -> String {
    match reason.char_indices().nth(MAX_ERROR) {
        Some((end, _)) => format!("{}…", reason.get(..end).unwrap_or_default()),
        None => reason.to_owned(),
    }
}
