//! Waits for locks and budgets that end when the program is killed.

use std::{
    sync::{Condvar, MutexGuard, PoisonError},
    time::Duration,
};

use portcullis_core::Follower;
use rustix::io::Errno;

/// Interval of checks if the program still waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The program whose request this thread serves. It may be killed, or the mount may
/// end.
pub(crate) struct Program;

impl Follower for Program {
    fn is_given_up(&self) -> bool {
        !portcullis_fuse::is_wanted()
    }

    fn begins(&self) -> bool {
        portcullis_fuse::begins()
    }
}

/// Begins a change that the gateway does not begin itself.
///
/// # Errors
/// `EINTR` if no program waits for it any more.
pub(crate) fn begin() -> Result<(), Errno> {
    if portcullis_fuse::begins() { Ok(()) } else { Err(Errno::INTR) }
}

/// Waits while `waits` returns true, which may change with each notification of
/// `changed`.
///
/// # Errors
/// `EINTR` if no program waits any more.
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    mut guard: MutexGuard<'a, T>,
    mut waits: impl FnMut(&mut T) -> bool,
) -> Result<MutexGuard<'a, T>, Errno> {
    while waits(&mut guard) {
        if !portcullis_fuse::is_wanted() {
            return Err(Errno::INTR);
        }
        guard =
            changed.wait_timeout(guard, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
    }
    Ok(guard)
}
