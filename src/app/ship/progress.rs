//! How far each target has a copy, in `STATE/ship/`.

use std::io::Read as _;

use cap_std::fs::Dir;
use portcullis_audit::{Checkpoint, Hash, MAX_NOTE, Note};
use serde::{Deserialize, Serialize};

use super::log::End;
use crate::{config::audit::Target, review::open_kept_in};

/// How far a target has everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Progress {
    /// The target.
    pub(crate) to: String,
    /// The place of the copy beneath the target.
    pub(crate) copy: String,
    /// The open segment, and the bytes of it that were sent.
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// Records that the last checkpoint sent covers.
    pub(crate) records: u64,
    /// Where they end.
    pub(super) end: Option<End>,
    /// When that began, in seconds since 1970.
    pub(crate) at: u64,
    /// Why the last attempt failed.
    pub(crate) error: Option<String>,
}

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

/// How far it was when that was last noted.
pub(super) fn known(state: &Dir, name: &str) -> Option<Progress> {
    let mut bytes = Vec::new();
    let file = open_kept_in(state, &format!("{name}.json")).ok()?;
    file.take(MAX_NOTE as u64).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}
