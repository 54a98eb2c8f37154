//! The session of a mount, from INIT to its end.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, read},
};
use zerocopy::IntoBytes as _;

use crate::{
    abi::{self, InitOut, init},
    deadline::{Slot, Slots},
    dispatch,
    file_system::FileSystem,
    notify::Notifier,
    reply,
    request::{Operation, Request},
};

/// Maximum of bytes in a WRITE.
const MAX_WRITE: u32 = 256 << 10;
/// Maximum of bytes in the reply to a READ or READDIR.
pub(crate) const MAX_READ: usize = MAX_WRITE as usize;
/// Size of a request with its content, in bytes.
pub(crate) const BUFFER: usize = MAX_READ + 4096;
/// Maximum of background requests of the kernel at the same time, such as read-ahead.
const MAX_BACKGROUND_REQUESTS: u16 = 16;
/// Time for which one thread polls for the next request before it sleeps: a wakeup takes longer.
const POLL_TIMEOUT: Duration = Duration::from_micros(30);
/// Default timeout of a request.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of checks of the last requests.
const FINAL_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which a thread checks for requests even if nothing wakes it.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A mount whose INIT is done.
#[derive(Debug)]
pub struct Session {
    device: Arc<OwnedFd>,
    stop: Arc<Stop>,
    timeout: Duration,
}

/// The stop signal, set once: serving threads check the flag, sleeping ones are woken by the event.
#[derive(Debug)]
struct Stop {
    is_set: AtomicBool,
    /// Set if `stop` was called. If the mount is gone by itself, requests that were read continue.
    is_ordered: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// Stops a session from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Stop>);

/// The reason why a session did not begin, or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A system call failed.
    #[error("cannot {0}: {1}")]
    Io(&'static str, Errno),
    /// The kernel did not send INIT first.
    #[error("the kernel did not initialize the mount in time")]
    NoInit,
    /// The kernel has an unsupported version.
    #[error("the kernel speaks FUSE {0}.{1}, and 7.31 is needed (Linux 5.4)")]
    Version(u32, u32),
}

fn io(action: &'static str) -> impl FnOnce(Errno) -> SessionError {
    move |errno| SessionError::Io(action, errno)
}

impl Session {
    /// Begins a session over a mounted descriptor of `/dev/fuse`. Waits for the kernel's INIT until
    /// `deadline`, and replies to it; from then on other processes can reach the mount, and wait
    /// until [`Session::run`] serves them.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn begin(device: OwnedFd, deadline: Instant) -> Result<Self, SessionError> {
        let flags = fcntl_getfl(&device).map_err(io("look at the device"))?;
        fcntl_setfl(&device, flags | OFlags::NONBLOCK).map_err(io("set up the device"))?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io("make an eventfd"))?;
        let stop = Arc::new(Stop {
            is_set: AtomicBool::new(false),
            is_ordered: AtomicBool::new(false),
            event,
        });
        let session = Self { device: Arc::new(device), stop, timeout: DEFAULT_REQUEST_TIMEOUT };
        session.initialize(deadline)?;
        Ok(session)
    }

    /// Sets the timeout of a request.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns a notifier for the kernel's caches.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.device))
    }

    /// Returns a handle that stops the session.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Serves requests on `threads` threads until the mount is gone or the session is stopped.
    ///
    /// A request that exceeds its timeout fails with `ETIMEDOUT`; the file system continues with
    /// it. A request of a program that is being killed, and each one when the session is stopped,
    /// fails with `EINTR` unless the file system has called [`begins`](crate::begins); if the mount
    /// is gone by itself, requests that were read continue. Requests that no thread reads wait
    /// while the session exists: drop it afterwards, and programs that use the mount get
    /// `ENOTCONN`.
    ///
    /// # Errors
    /// [`SessionError::Io`].
    pub fn run(&self, fs: &impl FileSystem, threads: usize) -> Result<(), SessionError> {
        let polls = AtomicBool::new(false);
        let slots = Slots::new(threads, self.timeout);
        let is_over = AtomicBool::new(false);
        let (slots, polls, is_over) = (&slots, &polls, &is_over);
        std::thread::scope(|scope| {
            let work = move |slot: &Arc<Slot>| {
                let ended = slot.serve(|| self.work(fs, polls, (slot, slots)));
                // The end of one thread ends all.
                self.stop.set();
                ended
            };
            scope.spawn(move || self.watch(fs, slots, is_over));
            let mut others = Vec::new();
            for slot in slots.all.iter().skip(1) {
                others.push(scope.spawn(move || work(slot)));
            }
            let mut ended = slots.all.first().map_or(Ok(()), work);
            for other in others {
                // A thread that panicked has aborted the process.
                if let Ok(Err(error)) = other.join() {
                    ended = Err(error);
                }
            }
            is_over.store(true, Ordering::Release);
            ended
        })
    }

    fn initialize(&self, deadline: Instant) -> Result<(), SessionError> {
        let mut buffer = vec![0; BUFFER];
        let length = loop {
            match read(&self.device, &mut buffer) {
                Ok(length) => break length,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(io("read from the device")(errno)),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SessionError::NoInit);
            }
            let left = Timespec::try_from(left).unwrap_or(CHECK_INTERVAL);
            match poll(&mut [PollFd::new(&self.device, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io("wait for the kernel")(errno)),
            }
        };
        let request = Request::parse(buffer.get(..length).unwrap_or_default());
        let Ok(Request { unique, operation, .. }) = request else {
            return Err(SessionError::NoInit);
        };
        let Operation::Init { major, minor, readahead, flags, flags2 } = operation else {
            return Err(SessionError::NoInit);
        };
        if major != abi::MAJOR || minor < abi::MIN_MINOR {
            let _ = reply::send(&self.device, unique, Err(Errno::PROTO));
            return Err(SessionError::Version(major, minor));
        }
        let wanted = init::ASYNC_READ
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::AUTO_INVAL_DATA
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            // No file shows set-id bits or capabilities. Otherwise the kernel asks before each
            // write whether there are capabilities to clear.
            | init::HANDLE_KILLPRIV_V2
            | init::INIT_EXT;
        let answer = InitOut {
            major: abi::MAJOR,
            minor: minor.min(abi::MINOR),
            max_readahead: readahead,
            flags: flags & wanted,
            max_background: MAX_BACKGROUND_REQUESTS,
            congestion_threshold: MAX_BACKGROUND_REQUESTS / 4 * 3,
            max_write: MAX_WRITE,
            time_gran: 1,
            max_pages: u16::try_from(MAX_WRITE / 4096).unwrap_or(1),
            flags2: flags2 & init::DIRECT_IO_ALLOW_MMAP,
            ..InitOut::default()
        };
        reply::send(&self.device, unique, Ok(&[answer.as_bytes()]))
            .map_err(io("initialize the mount"))
    }

    /// Replies to requests whose programs must not wait any longer, until all threads have ended.
    fn watch(&self, fs: &impl FileSystem, slots: &Slots, is_over: &AtomicBool) {
        let pause =
            Timespec::try_from(self.timeout / 2).unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL);
        while !is_over.load(Ordering::Acquire) {
            match self.stop.is_ordered.load(Ordering::Acquire) {
                true => slots.end(self.device.as_fd(), fs),
                false => slots.look(self.device.as_fd(), fs),
            }
            match self.stop.is_set.load(Ordering::Acquire) {
                true => std::thread::sleep(FINAL_CHECK_INTERVAL),
                // A wakeup for any reason starts another check.
                false => {
                    let _ = poll(&mut [PollFd::new(&self.stop.event, PollFlags::IN)], Some(&pause));
                }
            }
        }
    }

    /// Runs a thread: reads a request, serves it, and waits for the next.
    fn work(
        &self,
        fs: &impl FileSystem,
        polls: &AtomicBool,
        (slot, slots): (&Slot, &Slots),
    ) -> Result<(), SessionError> {
        let waiting = Waiting::on(&self.device, &self.stop.event)?;
        let mut buffer = vec![0; BUFFER];
        let (mut last, mut is_polling): (Option<Instant>, bool) = (None, false);
        // A thread never sleeps while requests keep coming.
        while !self.stop.is_set.load(Ordering::Acquire) {
            match read(&self.device, &mut buffer) {
                Ok(length) => {
                    if std::mem::take(&mut is_polling) {
                        polls.store(false, Ordering::Release);
                    }
                    let request = buffer.get(..length).unwrap_or_default();
                    match dispatch::serve(self.device.as_fd(), fs, request, (slot, slots)) {
                        Ok(()) => last = Some(Instant::now()),
                        Err(_unmounted) => return Ok(()),
                    }
                    continue;
                }
                Err(Errno::AGAIN) => {}
                // The request was aborted before it was read.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(errno) => return Err(io("read from the device")(errno)),
            }
            // At most one thread polls.
            let is_soon = last.is_some_and(|last| last.elapsed() < POLL_TIMEOUT);
            if is_soon && (is_polling || !polls.swap(true, Ordering::Acquire)) {
                is_polling = true;
                std::hint::spin_loop();
                continue;
            }
            if std::mem::take(&mut is_polling) {
                polls.store(false, Ordering::Release);
            }
            last = None;
            waiting.wait()?;
        }
        Ok(())
    }
}

impl Stopper {
    /// Stops the session: each thread ends after its current request, which is cancelled if it has
    /// not begun to take effect.
    pub fn stop(&self) {
        self.0.is_ordered.store(true, Ordering::Release);
        self.0.set();
    }

    /// Returns true if `stop` was called.
    pub fn is_ordered(&self) -> bool {
        self.0.is_ordered.load(Ordering::Acquire)
    }

    /// Waits until the session is stopped, or the mount is gone.
    pub fn wait(&self) {
        while !self.0.is_set.load(Ordering::Acquire) {
            let _ = poll(&mut [PollFd::new(&self.0.event, PollFlags::IN)], Some(&CHECK_INTERVAL));
        }
    }
}

/// Lets a thread sleep until there is a request, or the session ends.
struct Waiting {
    epoll: OwnedFd,
}

impl Waiting {
    fn on(device: &OwnedFd, stop: &OwnedFd) -> Result<Self, SessionError> {
        let set_up = || io("wait for requests");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(set_up())?;
        // A request wakes one thread, not all.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&epoll, device, epoll::EventData::new_u64(0), flags).map_err(set_up())?;
        let flags = epoll::EventFlags::IN;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(1), flags).map_err(set_up())?;
        Ok(Self { epoll })
    }

    /// Sleeps until there may be a request.
    fn wait(&self) -> Result<(), SessionError> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 2];
        match epoll::wait(&self.epoll, &mut events[..], Some(&CHECK_INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(io("wait for requests")(errno)),
        }
    }
}
