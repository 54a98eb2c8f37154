//! How far copies of the log are behind it, for whoever asks: nothing is
//! opened for writing, nothing is made.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portcullis_audit::{MAX_NOTE, NEWEST};
use serde::Serialize;

use super::{
    place::{GONE, existing, within},
    progress::{ShipProgress, known, records_of},
    whole::look,
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
        let (known, unknown) = match known(state, target) {
            Ok(known) => (known.unwrap_or_default(), None),
            Err(why) => (ShipProgress::default(), Some(why)),
        };
        let place = (!known.copy.is_empty()).then(|| within(target, &known.copy));
        let (records, gap) = match &place {
            Some(place) if known.records > 0 && place.to.starts_with('/') => arrived(place, &known),
            _ => (known.records, None),
        };
        let ShipProgress { at, error, .. } = known;
        let error = unknown.or(gap).or(error);
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

/// Records that the copy in a directory has, and why those are not all that were sent.
fn arrived(place: &Target, sent: &ShipProgress) -> (u64, Option<String>) {
    let found = existing(place).and_then(|store| match store {
        Some(mut store) => look(store.as_mut(), sent, sent.sealed.keys().copied()),
        None => Ok(None),
    });
    match found {
        Ok(Some(found)) => {
            let gap = (!found.is_whole).then(|| GONE.to_owned());
            (found.records.min(sent.records), gap)
        }
        Ok(None) => (0, Some(GONE.to_owned())),
        Err(why) => (0, Some(why)),
    }
}

/// Seconds since the newest checkpoint was made.
fn age(log: &Path) -> Option<u64> {
    let made = operator_files::metadata(log.join(NEWEST)).ok()?.modified().ok()?;
    made.elapsed().ok().as_ref().map(Duration::as_secs)
}
