//! The gateways that use a state directory.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
    thread,
    time::Duration,
};

use crate::{operator_files, review::open_regular};

/// Attempts to lock a log, and the pause between two.
const MAX_LOCK_ATTEMPTS: u32 = 100;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Waits a moment for an append to end.
pub(crate) fn lock_soon(lock: &File) -> io::Result<bool> {
    for _ in 0..MAX_LOCK_ATTEMPTS {
        match lock.try_lock_shared() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => {
                thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns true if another process holds the lock of the log in `directory` for more than a moment.
pub(crate) fn is_locked(directory: &Path) -> bool {
    let lock = open_regular(&directory.join("lock"));
    lock.is_ok_and(|lock| lock_soon(&lock).is_ok_and(|is_free| !is_free))
}

/// Returns the number of gateways that are alive: those that hold the lock of their lifetime.
/// Called only while the log is locked, so that none starts meanwhile.
pub(crate) fn count(state: &Path) -> io::Result<usize> {
    let entries = match operator_files::read_dir(state.join("gateways")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    let mut alive = 0;
    for entry in entries {
        let file = match open_regular(&entry?.path()) {
            // One that stops in order removes its file meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => alive += 1,
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(alive)
}

/// Locks the log of the state directory at `state`, and counts its gateways. No other one starts
/// while the file, the lock of the log, is open; without a log there is none.
///
/// # Errors
/// When the log stays locked by another process, or cannot be read.
pub(crate) fn lock(state: &Path) -> io::Result<(Option<File>, usize)> {
    let lock = match open_regular(&state.join("audit/lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, 0)),
        other => other?,
    };
    if !lock_soon(&lock)? {
        return Err(io::Error::other("another process uses the log"));
    }
    Ok((Some(lock), count(state)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a gateway counted as one that had ended, and `uninstall` removed its log.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test makes the files")]
    fn a_gateway_that_cannot_be_looked_at_is_not_taken_for_an_ended_one() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(count(state.path()).unwrap(), 0);
        let gateways = state.path().join("gateways");
        std::fs::create_dir(&gateways).unwrap();
        std::fs::write(gateways.join("ended"), "").unwrap();
        let file = File::create(gateways.join("alive")).unwrap();
        file.lock().unwrap();
        assert_eq!(count(state.path()).unwrap(), 1);
        std::os::unix::fs::symlink("ended", gateways.join("odd")).unwrap();
        assert!(count(state.path()).is_err());
    }
}
