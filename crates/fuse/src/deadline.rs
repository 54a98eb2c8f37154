//! The deadline of a request. Whoever waits for the reply cannot be killed while a thread is at
//! it, so what is not answered by then is answered with an error, whatever the thread waits
//! for.

use std::{
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::reply;

/// What one thread is at.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Serving>>);

#[derive(Debug)]
struct Serving {
    unique: u64,
    since: Instant,
    is_answered: bool,
}

impl Slot {
    /// The thread begins with a request.
    pub(crate) fn begin(&self, unique: u64) {
        *self.lock() = Some(Serving { unique, since: Instant::now(), is_answered: false });
    }

    /// The thread is done with it; false if the request is answered already.
    pub(crate) fn end(&self) -> bool {
        self.lock().take().is_some_and(|serving| !serving.is_answered)
    }

    /// Answers the request if it takes longer than `timeout`.
    pub(crate) fn answer_late(&self, device: BorrowedFd<'_>, timeout: Duration) {
        // While this is locked, the thread does not answer.
        if let Some(serving) = &mut *self.lock()
            && !serving.is_answered
            && serving.since.elapsed() >= timeout
        {
            serving.is_answered = true;
            // Nothing is mounted any more where this fails.
            let _ = reply::send(device, serving.unique, Err(Errno::TIMEDOUT));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Serving>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
