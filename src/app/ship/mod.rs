//! Copies of the log elsewhere: the records that a signed checkpoint covers, in order,
//! at least once.
//!
//! Each target has a thread in the broker, which knows no gateway and only reads files. So a
//! slow or dead target delays its own copy only. The progress is stored in `STATE/ship/`.

#[cfg(feature = "full")]
mod client;
mod completeness;
mod destinations;
mod directory;
mod lag;
mod log;
mod progress;
mod shipper;
#[cfg(feature = "full")]
mod store;
mod target;

use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    app::failure::{Context as _, Failure},
    config::audit::Target,
};

use destinations::within;
use shipper::{Sent, Shipper, refuse_overlap};

pub(crate) use completeness::lacking;
pub(crate) use lag::{Lag, lag};

/// Time in which a broker that is about to end still sends the last records.
const FINAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The background threads, which run while this lives.
pub(crate) struct Shipping(Arc<Shutdown>);

/// Announces the end to the sending threads, and waits for them.
#[derive(Default)]
struct Shutdown {
    state: Mutex<ShutdownState>,
    changed: Condvar,
}

#[derive(Default)]
struct ShutdownState {
    near: bool,
    sending: usize,
}

impl Shutdown {
    /// Waits until the end is near or `max_wait` has passed; returns true if the end is near.
    fn wait(&self, max_wait: Duration) -> bool {
        let ends = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ends, max_wait, |ends| !ends.near);
        waited.unwrap_or_else(PoisonError::into_inner).0.near
    }

    fn is_near(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    fn change(&self, change: impl FnOnce(&mut ShutdownState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Shipping {
    /// Starts to send in the background. Contacts no target, which may be slow: the thread of
    /// a copy reports its problems.
    ///
    /// # Errors
    /// When this build has no support for a target, or a thread does not start.
    pub(crate) fn start(state: &Path, targets: &[Target]) -> Result<Self, Failure> {
        let shipping = Self(Arc::default());
        for target in targets {
            // A missing feature is reported before anything runs.
            if !target.to.starts_with('/') && !cfg!(feature = "full") {
                return Err(Failure::new(destinations::remote(target).err().unwrap_or_default()));
            }
            let (ends, state, target) = (Arc::clone(&shipping.0), state.to_owned(), target.clone());
            ends.change(|ends| ends.sending += 1);
            thread::Builder::new()
                .name("ship".to_owned())
                .spawn(move || {
                    shipper::send_until_end(&state, &target, &ends);
                    ends.change(|ends| ends.sending -= 1);
                })
                .or_fail("cannot start a thread")?;
        }
        Ok(shipping)
    }

    /// Sends the records of the last checkpoint, and waits a moment for that; the next broker
    /// sends the rest.
    pub(crate) fn finish(self) {
        self.finish_within(FINAL_TIMEOUT);
    }

    /// Sends them as [`finish`](Self::finish) does, within a shorter time.
    pub(crate) fn finish_within(self, max_wait: Duration) {
        let end = Instant::now() + max_wait.min(FINAL_TIMEOUT);
        self.0.change(|ends| ends.near = true);
        let mut ends = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        while ends.sending > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.changed.wait_timeout(ends, left);
            ends = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Shipping {
    /// No other code ends the threads.
    fn drop(&mut self) {
        self.0.change(|ends| ends.near = true);
    }
}

/// Refuses targets in the state directory, before anything is sent.
///
/// # Errors
/// When a target lies in it.
pub(crate) fn check(state: &Path, targets: &[Target]) -> Result<(), Failure> {
    let checked = targets.iter().try_for_each(|target| refuse_overlap(state, target));
    checked.or_fail("cannot copy the audit log")
}

/// Returns the targets for one of several logs: each has a directory of its own there.
pub(crate) fn beneath(targets: &[Target], name: &str) -> Vec<Target> {
    targets.iter().map(|target| within(target, name)).collect()
}

/// Sends to every target, and looks for each sealed segment in its copy; returns the location of
/// each copy, with the number of its records or an error.
pub(crate) fn once(state: &Path, targets: &[Target]) -> Vec<(String, Result<u64, String>)> {
    let send = |target: &Target| {
        let mut shipper = match Shipper::new(state, target) {
            Ok(shipper) => shipper,
            Err(error) => return (target.shown(), Err(error)),
        };
        shipper.checks_segments = true;
        let sent = match shipper.send_alone() {
            Ok(Sent::All) => Ok(shipper.progress.records),
            Ok(Sent::ByAnother) => Err("another process sends to it at the moment".to_owned()),
            Err(error) => Err(error),
        };
        (shipper.place().shown(), sent)
    };
    targets.iter().map(send).collect()
}
