//! How far copies of the log are behind it, for whoever asks: nothing is
//! opened for writing, nothing is made.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portcullis_audit::{MAX_NOTE, NEWEST};
use serde::Serialize;

use super::{
    directory::checkpoint,
    progress::{Progress, file_name, records_of},
    shipper::GONE,
    within,
};
use crate::{config::audit::Target, operator_files, review::read_kept};

/// One target and the log.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lag {
    /// The target.
    pub(crate) to: String,
    /// The place of the copy, once one was begun.
    pub(crate) copy: Option<String>,
    /// Records that it has.
    pub(crate) records: u64,
    /// Records that a checkpoint covers and it does not have.
    pub(crate) behind: u64,
    /// For how many seconds the oldest of those may have been waiting; nothing
    /// when it has them all.
    pub(crate) seconds: Option<u64>,
    /// Why the last attempt failed.
    pub(crate) error: Option<String>,
}

impl Lag {
    /// Where the copy is, or will be.
    pub(crate) fn place(&self) -> &str {
        self.copy.as_ref().unwrap_or(&self.to)
    }
}

/// How far each target is behind what checkpoints in the state directory cover.
pub(crate) fn lag(state: &Path, targets: &[Target]) -> Vec<Lag> {
    let log = state.join("audit");
    let covered = covered(&log).unwrap_or(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let of = |target: &Target| {
        let known = read_kept(&state.join(format!("{}.json", file_name(target))), MAX_NOTE as u64);
        let known = known.ok().and_then(|known| serde_json::from_slice(&known).ok());
        let Progress { copy, records: sent, at, error, .. } = known.unwrap_or_default();
        let place = (!copy.is_empty()).then(|| within(target, &copy));
        let records = match &place {
            Some(place) if sent > 0 && place.to.starts_with('/') => arrived(place).min(sent),
            _ => sent,
        };
        let error = match records < sent {
            true => Some(GONE.to_owned()),
            false => error,
        };
        let behind = covered.saturating_sub(records);
        // The first checkpoint after the last one that arrived began it; what
        // is known is when that arrived, and when the newest was made.
        let since = if at == 0 { None } else { Some(now.saturating_sub(at)) };
        let since = since.or_else(|| age(&log)).unwrap_or(0);
        let seconds = (behind > 0).then_some(since);
        let copy = place.as_ref().map(Target::shown);
        Lag { to: target.shown(), copy, records, behind, seconds, error }
    };
    targets.iter().map(of).collect()
}

/// Records that the newest checkpoint covers.
fn covered(log: &Path) -> Option<u64> {
    records_of(&read_kept(&log.join(NEWEST), MAX_NOTE as u64).ok()?)
}

/// Records that the newest checkpoint in a directory covers.
fn arrived(copy: &Target) -> u64 {
    let note = checkpoint(Path::new(&copy.to)).ok().flatten();
    note.as_deref().and_then(records_of).unwrap_or(0)
}

/// Seconds since the newest checkpoint was made.
fn age(log: &Path) -> Option<u64> {
    let made = operator_files::metadata(log.join(NEWEST)).ok()?.modified().ok()?;
    made.elapsed().ok().as_ref().map(Duration::as_secs)
}
