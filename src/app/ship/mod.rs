//! Copies of the log elsewhere: what a signed checkpoint covers, in order, at
//! least once.
//!
//! Runs in the broker's threads, one for each target, and knows no gate: it
//! reads files. So a slow or dead target delays nothing but its own copy.
//! What it has sent is in `STATE/ship/`.

#[cfg(feature = "full")]
mod client;
mod directory;
mod lag;
mod log;
mod place;
mod progress;
mod shipper;
#[cfg(feature = "full")]
mod store;
mod target;
mod whole;

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

use place::within;
use shipper::{Shipper, refuse_overlap};

pub(crate) use lag::{Lag, lag};
pub(crate) use whole::lacking;

/// How long a broker that is about to end waits for what came last to arrive.
const LAST: Duration = Duration::from_secs(3);

/// What is sent in the background, as long as this lives.
pub(crate) struct Shipping(Arc<Ending>);

/// Tells those who send that this is the end, and waits for them.
#[derive(Default)]
struct Ending {
    state: Mutex<Ends>,
    changed: Condvar,
}

#[derive(Default)]
struct Ends {
    near: bool,
    sending: usize,
}

impl Ending {
    /// Waits so long, or until the end is near: then `true`.
    fn wait(&self, patience: Duration) -> bool {
        let ends = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ends, patience, |ends| !ends.near);
        waited.unwrap_or_else(PoisonError::into_inner).0.near
    }

    fn is_near(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    fn change(&self, change: impl FnOnce(&mut Ends)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Shipping {
    /// Sends in the background. Looks at no target, which may be slow: what is in the way of a
    /// copy is said by the thread that makes it.
    ///
    /// # Errors
    /// When this build cannot, or there can be no thread.
    pub(crate) fn start(state: &Path, targets: &[Target]) -> Result<Self, Failure> {
        let shipping = Self(Arc::default());
        for target in targets {
            // What this build cannot do is said before anything runs.
            if !target.to.starts_with('/') && !cfg!(feature = "full") {
                return Err(Failure::new(place::remote(target).err().unwrap_or_default()));
            }
            let (ends, state, target) = (Arc::clone(&shipping.0), state.to_owned(), target.clone());
            ends.change(|ends| ends.sending += 1);
            thread::Builder::new()
                .name("ship".to_owned())
                .spawn(move || {
                    shipper::go_on(&state, &target, &ends);
                    ends.change(|ends| ends.sending -= 1);
                })
                .or_fail("cannot start a thread")?;
        }
        Ok(shipping)
    }

    /// Sends what the last checkpoint covers, and waits for that a moment; what
    /// a target does not take so soon, the next broker sends.
    pub(crate) fn finish(self) {
        self.finish_within(LAST);
    }

    /// The same for whoever has less time than a moment.
    pub(crate) fn finish_within(self, patience: Duration) {
        let end = Instant::now() + patience.min(LAST);
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
    /// Nobody else would end the threads.
    fn drop(&mut self) {
        self.0.change(|ends| ends.near = true);
    }
}

/// Refuses targets in the state directory, before anything is sent to them.
///
/// # Errors
/// When one is.
pub(crate) fn check(state: &Path, targets: &[Target]) -> Result<(), Failure> {
    let checked = targets.iter().try_for_each(|target| refuse_overlap(state, target));
    checked.or_fail("cannot copy the audit log")
}

/// The targets for one of several logs: each has a place of its own there.
pub(crate) fn beneath(targets: &[Target], name: &str) -> Vec<Target> {
    targets.iter().map(|target| within(target, name)).collect()
}

/// Sends what there is to every target: the place of each copy, and the records that it
/// has or why that failed.
pub(crate) fn once(state: &Path, targets: &[Target]) -> Vec<(String, Result<u64, String>)> {
    let send = |target: &Target| {
        let mut shipper = match Shipper::new(state, target) {
            Ok(shipper) => shipper,
            Err(error) => return (target.shown(), Err(error)),
        };
        let sent = match shipper.lock() {
            Ok(Some(_lock)) => shipper.send(),
            Ok(None) => Err("another process sends to it at the moment".to_owned()),
            Err(error) => Err(error),
        };
        (shipper.place().shown(), sent.map(|()| shipper.progress.records))
    };
    targets.iter().map(send).collect()
}
