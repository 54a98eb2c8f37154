//! Programs that wait for a reply, and whether they still do.

use std::{
    sync::{Condvar, MutexGuard, PoisonError},
    time::Duration,
};

use portcullis_core::Follower;
use rustix::io::Errno;

/// A thread that waits looks this often whether a program still does.
const LOOK: Duration = Duration::from_millis(50);

/// The program whose request this thread serves. It can be killed, or the mount end.
pub(crate) struct Program;

impl Follower for Program {
    fn is_given_up(&self) -> bool {
        !portcullis_fuse::is_wanted()
    }

    fn begins(&self) -> bool {
        portcullis_fuse::begins()
    }
}

/// What is done now is not for the gateway to begin: the same.
///
/// # Errors
/// `EINTR` if nobody waits for it any more.
pub(crate) fn begin() -> Result<(), Errno> {
    if portcullis_fuse::begins() { Ok(()) } else { Err(Errno::INTR) }
}

/// Waits as long as `waits` says so, which may change when `changed` tells.
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
        guard = changed.wait_timeout(guard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
    }
    Ok(guard)
}
