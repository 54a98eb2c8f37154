//! Opens objects beneath a directory, and no others.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};

use super::Error;

/// Attempts at a lookup that the kernel asks to repeat (`EAGAIN`, a rename somewhere during the
/// walk).
const MAX_LOOKUPS: usize = 64;
/// Attempts at a lookup that seems to leave the directory: `EXDEV` is a mount, or an object that
/// was found and then moved out before the walk was complete.
const MAX_DEPARTURES: usize = 8;

/// Opens `path` beneath `dir`: no link, no mount, no way up, never blocking, never becoming a
/// controlling terminal.
pub(super) fn open_beneath(
    dir: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    // openat2 refuses flags that have no meaning together with O_PATH.
    let flags = if flags.contains(OFlags::PATH) {
        flags | OFlags::CLOEXEC
    } else {
        flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
    };
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV
        | ResolveFlags::NO_SYMLINKS;
    let mut last = Errno::AGAIN;
    let mut departures = 0;
    for _ in 0..MAX_LOOKUPS {
        match openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(error @ (Errno::AGAIN | Errno::INTR)) => last = error,
            Err(Errno::XDEV) if departures < MAX_DEPARTURES => departures += 1,
            other => return other,
        }
    }
    Err(last)
}

/// Maps the errors of [`open_beneath`] on a path that had no link a moment ago: a link now means
/// that an object moved.
pub(super) fn lookup_error(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| match errno {
        Errno::LOOP | Errno::AGAIN => Error::Moved,
        Errno::XDEV => Error::Mount,
        errno => Error::os(action)(errno),
    }
}
