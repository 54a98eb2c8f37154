//! Background work: packing the backup store, and compressing old segments of the
//! log.

use std::{
    thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;

use super::failure::{Context as _, Failure};
use crate::gateway::{AuditLog, BackupMaintenance, Gateway};

/// Interval of checks by a long-lived gateway if packing is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of checks for old segments.
const SEGMENT_CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The log whose segments are compressed, and their minimum age.
struct Segments {
    state: Dir,
    age: Duration,
}

/// Packs the backup store if enough was saved since the last pack. An error is only
/// logged: the store is unchanged then.
pub(crate) fn pack_if_due(backups: &BackupMaintenance) {
    match backups.pack_if_due() {
        Ok(None) => {}
        Ok(Some(done)) => tracing::info!(
            entries = done.entries,
            before = done.before,
            after = done.after,
            damaged = done.damaged,
            "packed backups"
        ),
        Err(error) => tracing::warn!(%error, "backups could not be packed"),
    }
}

fn compress(segments: &Segments) {
    match AuditLog::compress_segments(&segments.state, segments.age) {
        Ok((0, _)) => {}
        Ok((segments, saved)) => tracing::info!(segments, saved, "compressed the audit log"),
        Err(error) => tracing::warn!(%error, "old segments could not be compressed"),
    }
}

/// Maintains a gateway's backup store and log on a thread of its own while the
/// process lives; segments older than `age` are compressed. The process may end at
/// any moment: both survive that.
///
/// # Errors
/// When the thread does not start.
pub(crate) fn start(gateway: &Gateway, state: &Dir, age: Option<Duration>) -> Result<(), Failure> {
    let backups = gateway.maintenance();
    let state = state.try_clone().or_fail("cannot open the state directory")?;
    let segments = age.map(|age| Segments { state, age });
    let work = move || {
        // Lower priority, so that requests go first; an error is ignored.
        let _ = rustix::process::setpriority_process(None, 19);
        let mut looked: Option<Instant> = None;
        loop {
            thread::sleep(CHECK_INTERVAL);
            pack_if_due(&backups);
            if let Some(segments) = &segments
                && looked.is_none_or(|at| at.elapsed() >= SEGMENT_CHECK_INTERVAL)
            {
                compress(segments);
                looked = Some(Instant::now());
            }
        }
    };
    thread::Builder::new()
        .name("housekeeping".to_owned())
        .spawn(work)
        .map(drop)
        .or_fail("cannot start a thread")
}
