//! Early replies to requests: a program cannot be killed while it waits for a reply, whatever
//! delays the serving thread. So another thread replies to requests that take too long, to requests
//! of programs that are being killed, and at the end of the session to requests that have not
//! begun.

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

use crate::{change_queue::ChangeQueue, file_system::FileSystem, reply, types::Caller};

thread_local! {
    /// The slot of this thread, if it serves requests.
    static OWN: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Returns true if a program still waits for the request that this thread serves. Otherwise an
/// operation that has not begun must not begin.
pub fn is_wanted() -> bool {
    OWN.with_borrow(|slot| slot.as_ref().is_none_or(|slot| slot.is_wanted()))
}

/// Marks the request that this thread serves as begun: from now on it takes effect, and is carried
/// out to its end. Returns false if no program waits for it any more.
pub fn begins() -> bool {
    OWN.with_borrow(|slot| slot.as_ref().is_none_or(|slot| slot.begins()))
}

/// The request that a thread serves.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    serving: Mutex<Option<Serving>>,
    /// Set when the session ends.
    is_ended: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Serving {
    unique: u64,
    caller: Caller,
    /// The begin of its timeout; `None` while it waits for a thread.
    since: Option<Instant>,
    is_answered: bool,
    /// Set if it must not begin. A request that is only late continues.
    is_given_up: bool,
    /// Set when a signal was sent to the waiting program.
    is_interrupted: bool,
    has_begun: bool,
}

impl Serving {
    pub(crate) fn new(unique: u64, caller: Caller) -> Self {
        Self {
            unique,
            caller,
            since: None,
            is_answered: false,
            is_given_up: false,
            is_interrupted: false,
            has_begun: false,
        }
    }

    fn is_late(&self, timeout: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= timeout)
    }
}

impl Slot {
    /// Serves requests on this thread with this slot.
    pub(crate) fn serve<T>(self: &Arc<Self>, serve: impl FnOnce() -> T) -> T {
        OWN.set(Some(Arc::clone(self)));
        let served = serve();
        OWN.set(None);
        served
    }

    /// Returns the slot of a request that waits for a thread.
    pub(crate) fn waiting(unique: u64, caller: Caller) -> Self {
        let serving = Mutex::new(Some(Serving::new(unique, caller)));
        Self { serving, is_ended: AtomicBool::new(false) }
    }

    /// Takes the request, unless it has its reply.
    pub(crate) fn take(&self) -> Option<Serving> {
        self.lock().take_if(|serving| !serving.is_answered)
    }

    /// Returns true if the request has its reply already.
    pub(crate) fn is_answered(&self) -> bool {
        self.lock().as_ref().is_some_and(|serving| serving.is_answered)
    }

    /// Begins a request.
    pub(crate) fn begin(&self, serving: Serving) {
        *self.lock() = Some(Serving { since: Some(Instant::now()), ..serving });
    }

    /// Ends a request; returns false if it has its reply already. That stays known until the next
    /// request, because references and handles that the kernel did not get must be released.
    pub(crate) fn end(&self) -> bool {
        self.take().is_some()
    }

    /// Replies to the request if its program must not wait any longer.
    pub(crate) fn look(
        &self,
        device: BorrowedFd<'_>,
        timeout: Duration,
        is_ending: impl Fn(Caller) -> bool,
    ) {
        let is_ended = self.is_ended.load(Ordering::Acquire);
        // The lock keeps the thread from replying meanwhile.
        let mut serving = self.lock();
        let Some(serving) = serving.as_mut().filter(|serving| !serving.is_answered) else { return };
        let gives_up = || is_ended || serving.is_interrupted && is_ending(serving.caller);
        serving.is_given_up = !serving.has_begun && gives_up();
        let errno = match serving.is_given_up {
            true => Errno::INTR,
            false if serving.is_late(timeout) => Errno::TIMEDOUT,
            false => return,
        };
        serving.is_answered = true;
        // This fails once the mount is gone.
        let _ = reply::send(device, serving.unique, Err(errno));
    }

    /// Notes a signal to the program of the request `unique`; returns false if the thread serves
    /// another one.
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

/// The slots of all threads of a session.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) all: Vec<Arc<Slot>>,
    pub(crate) changes: ChangeQueue,
    timeout: Duration,
}

impl Slots {
    pub(crate) fn new(threads: usize, timeout: Duration) -> Self {
        let all = (0..threads.max(1)).map(|_| Arc::default()).collect();
        Self { all, changes: ChangeQueue::new(threads), timeout }
    }

    /// Replies to requests whose programs must not wait any longer.
    pub(crate) fn look(&self, device: BorrowedFd<'_>, fs: &impl FileSystem) {
        let is_ending = |caller| fs.is_ending(caller);
        let waiting = self.changes.waiting();
        self.all.iter().chain(&waiting).for_each(|slot| slot.look(device, self.timeout, is_ending));
    }

    /// Ends the session: requests that have not begun are cancelled.
    pub(crate) fn end(&self, device: BorrowedFd<'_>, fs: &impl FileSystem) {
        let waiting = self.changes.waiting();
        let end = |slot: &Arc<Slot>| slot.is_ended.store(true, Ordering::Release);
        self.all.iter().chain(&waiting).for_each(end);
        self.look(device, fs);
    }

    /// Notes a signal to the program of the request `unique`. Only signals that kill the program
    /// cancel the request: programs do not expect files to be interrupted by others.
    pub(crate) fn interrupt(
        &self,
        device: BorrowedFd<'_>,
        fs: &impl FileSystem,
        (interrupt, unique): (u64, u64),
    ) -> Result<()> {
        let waiting = self.changes.waiting();
        if let Some(slot) = self.all.iter().chain(&waiting).find(|slot| slot.interrupt(unique)) {
            slot.look(device, self.timeout, |caller| fs.is_ending(caller));
            return Ok(());
        }
        // A thread has the request and is about to begin it, or the kernel has the reply; then
        // it does not send the interrupt again.
        match reply::send(device, interrupt, Err(Errno::AGAIN)) {
            Err(Errno::NODEV) => Err(Errno::NODEV),
            _ => Ok(()),
        }
    }
}
