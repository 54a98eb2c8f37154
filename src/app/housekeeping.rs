//! Work that nobody waits for: packing the vault, compressing old segments of
//! the log.

use std::{
    thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;

use super::failure::{Context as _, Failure};
use crate::gateway::{AuditLog, BackupMaintenance, Gateway};

/// How often a gate that runs for long looks whether there is enough to pack.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often it looks for old segments.
const SEGMENTS_EVERY: Duration = Duration::from_secs(60 * 60);

/// The log whose segments are compressed, and how old they must be.
struct Segments {
    state: Dir,
    age: Duration,
}

/// Packs the vault now if enough was saved since it was packed last. What goes
/// wrong is only said: everything is kept as it is then.
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

/// Looks after a gate's vault and log from a thread of its own, as long as the
/// process lives; segments of this `age` are compressed. The process may end at
/// any moment: both survive that.
///
/// # Errors
/// When there can be no thread.
pub(crate) fn start(gateway: &Gateway, state: &Dir, age: Option<Duration>) -> Result<(), Failure> {
    let backups = gateway.maintenance();
    let state = state.try_clone().or_fail("cannot open the state directory")?;
    let segments = age.map(|age| Segments { state, age });
    let work = move || {
        // Requests go first. Where this is refused, they wait a little.
        let _ = rustix::process::setpriority_process(None, 19);
        let mut looked: Option<Instant> = None;
        loop {
            thread::sleep(LOOK_EVERY);
            pack_if_due(&backups);
            if let Some(segments) = &segments
                && looked.is_none_or(|at| at.elapsed() >= SEGMENTS_EVERY)
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
