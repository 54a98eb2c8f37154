//! The lag of copies behind the log. Nothing is opened for writing, nothing is
//! created.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portcullis_audit::NEWEST;
use serde::Serialize;

use super::{
    completeness::look,
    destinations::{GONE, existing, within},
    log::SegmentReader,
    progress::{ShipProgress, known, records_of},
};
use crate::{config::audit::Target, operator_files};

/// The lag of a target.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lag {
    /// The target.
    pub(crate) to: String,
    /// The location of the copy, once begun.
    pub(crate) copy: Option<String>,
    /// Number of records in the copy.
    pub(crate) records: u64,
    /// Number of records that a checkpoint covers and the copy lacks.
    pub(crate) behind: u64,
    /// Maximum of seconds for which the oldest of those has been waiting; `None` if
    /// the copy has all.
    pub(crate) seconds: Option<u64>,
    /// The error of the last attempt.
    pub(crate) error: Option<String>,
}

impl Lag {
    /// Returns the location of the copy, existing or future.
    pub(crate) fn place(&self) -> &str {
        self.copy.as_ref().unwrap_or(&self.to)
    }
}

/// Returns the lag of each target behind the checkpoints in the state directory.
pub(crate) fn lag(state: &Path, targets: &[Target]) -> Vec<Lag> {
    let log = state.join("audit");
    let newest = SegmentReader::new(state).newest().ok().flatten();
    let covered = newest.as_deref().and_then(records_of).unwrap_or(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let of = |target: &Target| {
        let (known, unknown) = match known(state, target) {
            Ok(known) => (known.unwrap_or_default(), None),
            Err(reason) => (ShipProgress::default(), Some(reason)),
        };
        let place = (!known.copy.is_empty()).then(|| within(target, &known.copy));
        let (records, gap) = match &place {
            Some(place) if known.records > 0 && place.to.starts_with('/') => arrived(place, &known),
            _ => (known.records, None),
        };
        let ShipProgress { at, error, .. } = known;
        let error = unknown.or(gap).or(error);
        let behind = covered.saturating_sub(records);
        // The wait began with the first checkpoint after the last one that was copied;
        // known are the time of that copy, and the time of the newest checkpoint.
        let since = if at == 0 { None } else { Some(now.saturating_sub(at)) };
        let since = since.or_else(|| age(&log)).unwrap_or(0);
        let seconds = (behind > 0).then_some(since);
        let copy = place.as_ref().map(Target::shown);
        Lag { to: target.shown(), copy, records, behind, seconds, error }
    };
    targets.iter().map(of).collect()
}

/// Returns the number of records in a copy, and the reason why it is not the number
/// sent.
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
        Err(reason) => (0, Some(reason)),
    }
}

/// Returns the age of the newest checkpoint in seconds.
fn age(log: &Path) -> Option<u64> {
    let made = operator_files::metadata(log.join(NEWEST)).ok()?.modified().ok()?;
    made.elapsed().ok().as_ref().map(Duration::as_secs)
}
