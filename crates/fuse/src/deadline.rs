//! The request of each thread, and its end before the reply: whoever waits for that cannot be
//! killed, whatever the thread waits for. So another thread answers what takes too long, what a program
//! asked that is being killed, and what is not begun when the session ends.

use std::{
    cell::RefCell,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::io::{Errno, Result};

use crate::{file_system::FileSystem, reply, types::Caller};

thread_local! {
    /// The slot of this thread, if it serves.
    static OWN: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Returns whether somebody still waits for the request that this thread serves. Where nobody does, what was
/// not begun is not to be begun.
pub fn is_wanted() -> bool {
    OWN.with_borrow(|slot| slot.as_ref().is_none_or(|slot| slot.is_wanted()))
}

/// The request that this thread serves takes effect from now on, and goes on to its end; false if nobody
/// waits for it any more.
pub fn begins() -> bool {
    OWN.with_borrow(|slot| slot.as_ref().is_none_or(|slot| slot.begins()))
}

/// What one thread is at.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    serving: Mutex<Option<Serving>>,
    /// The session ends.
    is_ended: AtomicBool,
}

#[derive(Debug)]
struct Serving {
    unique: u64,
    caller: Caller,
    since: Instant,
    is_answered: bool,
    /// Nothing is to come of it. What is only late goes on.
    is_given_up: bool,
    /// A signal came for whoever waits.
    is_interrupted: bool,
    has_begun: bool,
}

impl Slot {
    /// Has this thread serve requests, by this slot.
    pub(crate) fn serve<T>(self: &Arc<Self>, serve: impl FnOnce() -> T) -> T {
        OWN.set(Some(Arc::clone(self)));
        let served = serve();
        OWN.set(None);
        served
    }

    /// The thread begins with a request.
    pub(crate) fn begin(&self, unique: u64, caller: Caller) {
        *self.lock() = Some(Serving {
            unique,
            caller,
            since: Instant::now(),
            is_answered: false,
            is_given_up: false,
            is_interrupted: false,
            has_begun: false,
        });
    }

    /// The thread is done with it; false if the request is answered already. That it is stays known
    /// until the next one, for what the kernel did not get is yet to be taken back.
    pub(crate) fn end(&self) -> bool {
        self.lock().take_if(|serving| !serving.is_answered).is_some()
    }

    /// Answers the request where whoever waits for it is not to wait any longer.
    pub(crate) fn look(
        &self,
        device: BorrowedFd<'_>,
        timeout: Duration,
        is_ending: impl Fn(Caller) -> bool,
    ) {
        let is_ended = self.is_ended.load(Ordering::Acquire);
        // While this is locked, the thread does not answer.
        let mut serving = self.lock();
        let Some(serving) = serving.as_mut().filter(|serving| !serving.is_answered) else { return };
        let gives_up = || is_ended || serving.is_interrupted && is_ending(serving.caller);
        serving.is_given_up = !serving.has_begun && gives_up();
        let errno = match serving.is_given_up {
            true => Errno::INTR,
            false if serving.since.elapsed() >= timeout => Errno::TIMEDOUT,
            false => return,
        };
        serving.is_answered = true;
        // Nothing is mounted any more where this fails.
        let _ = reply::send(device, serving.unique, Err(errno));
    }

    /// Notes a signal for whoever waits for the request `unique`; false if the thread is at another one.
    fn interrupt(&self, unique: u64) -> bool {
        let mut serving = self.lock();
        let serving = serving.as_mut().filter(|serving| serving.unique == unique);
        serving.map(|serving| serving.is_interrupted = true).is_some()
    }

    fn is_wanted(&self) -> bool {
        let is_ended = self.is_ended.load(Ordering::Acquire);
        let wants = |serving: &Serving| serving.has_begun || !serving.is_given_up && !is_ended;
        self.lock().as_ref().is_none_or(wants)
    }

    fn begins(&self) -> bool {
        let is_ended = self.is_ended.load(Ordering::Acquire);
        let begin = |serving: &mut Serving| {
            serving.has_begun |= !serving.is_given_up && !is_ended;
            serving.has_begun
        };
        self.lock().as_mut().is_none_or(begin)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all threads of a session are at.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) all: Vec<Arc<Slot>>,
    timeout: Duration,
}

impl Slots {
    pub(crate) fn new(threads: usize, timeout: Duration) -> Self {
        Self { all: (0..threads.max(1)).map(|_| Arc::default()).collect(), timeout }
    }

    /// Answers what nobody is to wait for any longer.
    pub(crate) fn look(&self, device: BorrowedFd<'_>, fs: &impl FileSystem) {
        let is_ending = |caller| fs.is_ending(caller);
        self.all.iter().for_each(|slot| slot.look(device, self.timeout, is_ending));
    }

    /// The session ends: what is not begun is given up.
    pub(crate) fn end(&self, device: BorrowedFd<'_>, fs: &impl FileSystem) {
        self.all.iter().for_each(|slot| slot.is_ended.store(true, Ordering::Release));
        self.look(device, fs);
    }

    /// A signal came for whoever waits for the request `unique`. It need not be one that ends the program,
    /// and others do not interrupt: programs do not expect that of files.
    pub(crate) fn interrupt(
        &self,
        device: BorrowedFd<'_>,
        fs: &impl FileSystem,
        (interrupt, unique): (u64, u64),
    ) -> Result<()> {
        if self.all.iter().any(|slot| slot.interrupt(unique)) {
            self.look(device, fs);
            return Ok(());
        }
        // A thread has read it and is about to begin, or the kernel has the reply; then it does not
        // send this again.
        match reply::send(device, interrupt, Err(Errno::AGAIN)) {
            Err(Errno::NODEV) => Err(Errno::NODEV),
            _ => Ok(()),
        }
    }
}
