//! The lock of plain data.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks data that a panic elsewhere leaves intact.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
