//! The readiness of all workspaces, for `/readyz`.
//!
//! A separate thread checks the directories: a file system that hangs must not hang
//! the broker. So a reply is the result of the last check, and each request starts
//! the next. The check opens nothing. A workspace that could not be served counts as
//! such until a worker has started; a request triggers another attempt, because
//! there are no other requests for it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use portcullis_rpc::lock;
use rustix::fs::{FileType, stat};

use super::plan::{Plan, ServedWorkspace};
use crate::app::failure::{Context as _, Failure};

/// Duration after which a check counts as hanging.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The checking thread, with its last result.
pub(super) struct Readiness {
    checks: SyncSender<CheckRequest>,
    seen: Arc<Mutex<LastCheck>>,
}

/// The paths of a check.
struct CheckRequest {
    /// Root and state directory, by the workspace's name.
    places: Vec<(String, [PathBuf; 2])>,
    /// The self-test's file: without it no worker can prove that it is confined.
    control: PathBuf,
}

#[derive(Default)]
struct LastCheck {
    /// Workspaces that are missing.
    lost: BTreeSet<String>,
    no_control: bool,
    /// The beginning of the check in progress.
    since: Option<Instant>,
}

impl Readiness {
    /// Starts the thread. Initially everything counts as present: it was opened.
    pub(super) fn start() -> Result<Self, Failure> {
        let (checks, asked) = sync_channel(1);
        let seen = Arc::<Mutex<LastCheck>>::default();
        let theirs = Arc::clone(&seen);
        thread::Builder::new()
            .name("readiness".to_owned())
            .spawn(move || look(&asked, &theirs))
            .or_fail("cannot start a thread")?;
        Ok(Self { checks, seen })
    }

    /// Checks if all workspaces can be served, as far as known; those in `failing`
    /// cannot.
    pub(super) fn check(
        &self,
        plan: &Plan,
        control: &Path,
        failing: BTreeSet<String>,
    ) -> Result<(), String> {
        let places = &plan.places;
        let mut seen = lock(&self.seen);
        if seen.since.is_some_and(|since| since.elapsed() >= CHECK_TIMEOUT) {
            return Err("a workspace does not answer".to_owned());
        }
        if seen.since.is_none() {
            let of = |place: &ServedWorkspace| {
                (place.name.clone(), [place.root.clone(), place.state.clone()])
            };
            let look = CheckRequest {
                places: places.values().map(of).collect(),
                control: control.to_owned(),
            };
            // The thread lives as long as `self`.
            seen.since = self.checks.try_send(look).is_ok().then(Instant::now);
        }
        if seen.no_control {
            return Err("the self-test's file is gone: no worker can start".to_owned());
        }
        // A workspace that is not served any more is irrelevant.
        let lost = seen.lost.iter().filter(|name| places.contains_key(*name)).cloned();
        let lost: BTreeSet<_> = lost.chain(failing).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let all = places.len() + plan.unserved.len();
        Err(format!("{} of {all} workspaces cannot be served", lost.len()))
    }
}

fn look(asked: &Receiver<CheckRequest>, seen: &Mutex<LastCheck>) {
    while let Ok(CheckRequest { places, control }) = asked.recv() {
        let is = |path: &Path, kind| {
            stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
        };
        let is_lost = |paths: &[PathBuf]| !paths.iter().all(|path| is(path, FileType::Directory));
        let lost = places.into_iter().filter(|(_, paths)| is_lost(paths));
        let lost = lost.map(|(name, _)| name).collect();
        let no_control = !is(&control, FileType::RegularFile);
        *lock(seen) = LastCheck { lost, no_control, since: None };
    }
}
