//! Standard error, for processes that must not block when it is not read.
//!
//! The parent of a gateway may leave its standard error in a pipe that fills up, the sooner
//! if the agent writes much there. A thread that handles orders or replies must not wait for
//! that.

use std::{
    fmt,
    io::{self, Write},
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    stdio::stderr,
};

use crate::acp::write_now;

/// Time for which a message waits for a reader, if the one before it was read.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// True if this process must not block.
static IS_NONBLOCKING: AtomicBool = AtomicBool::new(false);

static STATE: Mutex<State> = Mutex::new(State { rest: Vec::new(), missed: 0 });

/// Messages that are held back, if they are.
static HELD: Mutex<Option<PendingMessages>> = Mutex::new(None);

/// Maximum of bytes of held messages.
const MAX_HELD: usize = 64 * 1024;

#[derive(Default)]
struct PendingMessages {
    messages: Vec<u8>,
    lost: u64,
}

/// Output that could not be written yet.
struct State {
    /// The rest of a message that is partly written.
    rest: Vec<u8>,
    /// Number of messages dropped since the last one was written.
    missed: u64,
}

/// Makes messages that are not read be dropped from now on, and be counted for a later
/// reader.
pub(crate) fn drop_unread() {
    IS_NONBLOCKING.store(true, Ordering::Relaxed);
}

/// Holds messages back from now on, because a program has the terminal on which they would
/// appear.
pub(crate) fn hold() {
    held().get_or_insert_default();
}

/// Writes the messages held back, and later ones at once.
pub(crate) fn show_held() {
    let Some(PendingMessages { messages, lost }) = held().take() else { return };
    let _ = Stderr.write_all(&messages);
    if lost > 0 {
        say(format_args!("portcullis: warning: {lost} more messages were lost\n"));
    }
}

/// Returns true while messages are held back.
pub(crate) fn is_held() -> bool {
    held().is_some()
}

fn held() -> MutexGuard<'static, Option<PendingMessages>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a message if messages are held back.
fn keep(message: &[u8]) -> bool {
    let mut held = held();
    let Some(PendingMessages { messages, lost }) = &mut *held else { return false };
    if messages.len().saturating_add(message.len()) <= MAX_HELD {
        messages.extend_from_slice(message);
    } else {
        *lost = lost.saturating_add(1);
    }
    true
}

/// Writes a message, if possible.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    if keep(text.to_string().as_bytes()) {
        return;
    }
    // An error here cannot be reported anywhere.
    if IS_NONBLOCKING.load(Ordering::Relaxed) {
        write_within_timeout(text.to_string().as_bytes());
    } else {
        let _ = io::stderr().lock().write_fmt(text);
    }
}

/// Writes a message, and waits for the reader as long as necessary. No other thread waits for
/// this.
pub(crate) fn write_blocking(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    if keep(text.as_bytes()) {
        return;
    }
    while !lock().put(text.as_bytes()) {
        room_before(None);
    }
}

fn write_within_timeout(message: &[u8]) {
    let mut state = lock();
    let max_wait = if state.missed > 0 { Duration::ZERO } else { READER_TIMEOUT };
    let end = Instant::now() + max_wait;
    while !state.put(message) {
        if !room_before(Some(end)) {
            state.missed = state.missed.saturating_add(1);
            return;
        }
    }
}

/// Writes a complete text: waits until the reader has taken it, at most until `end`.
///
/// # Errors
/// When it cannot be written, or is not read in time.
pub(crate) fn write_whole(text: &[u8], end: Option<Instant>) -> io::Result<()> {
    let mut state = lock();
    let all = [&mem::take(&mut state.rest), text].concat();
    let mut left = all.as_slice();
    while !left.is_empty() {
        let written = try_write(left)?;
        left = left.get(written..).unwrap_or_default();
        if written == 0 && !room_before(end) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Standard error as a writer for diagnostics.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if keep(bytes) {
            return Ok(bytes.len());
        }
        if IS_NONBLOCKING.load(Ordering::Relaxed) {
            write_within_timeout(bytes);
            return Ok(bytes.len());
        }
        io::stderr().lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl State {
    /// Writes a message completely or not at all. Returns true when it is written, is partly
    /// written, or can never be written.
    fn put(&mut self, message: &[u8]) -> bool {
        if !self.finish() {
            return false;
        }
        if self.missed > 0 {
            let missed = self.missed;
            let note = format!(
                "portcullis: warning: standard error was not read for a while; {missed} messages \
                 were lost\n"
            );
            if !self.begin(note.as_bytes()) {
                return false;
            }
            self.missed = 0;
            if !self.rest.is_empty() {
                return false;
            }
        }
        self.begin(message)
    }

    /// Writes as much of a message as possible, and stores the rest.
    fn begin(&mut self, message: &[u8]) -> bool {
        let written = write(message);
        let rest = message.get(written..).unwrap_or_default();
        if written > 0 {
            self.rest.extend_from_slice(rest);
        }
        written > 0 || rest.is_empty()
    }

    /// Writes the rest of a message; returns false while there is some.
    fn finish(&mut self) -> bool {
        if !self.rest.is_empty() {
            let written = write(&self.rest);
            self.rest.drain(..written.min(self.rest.len()));
        }
        self.rest.is_empty()
    }
}

/// Writes what can be written now; returns the complete length after an error.
fn write(bytes: &[u8]) -> usize {
    try_write(bytes).unwrap_or(bytes.len())
}

/// Writes what can be written now, possibly nothing.
fn try_write(bytes: &[u8]) -> io::Result<usize> {
    match write_now(stderr(), bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        // Files and terminals do not support this, and take as much as they have room for.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
            let room = room_before(Some(Instant::now()));
            if room { Ok(rustix::io::write(stderr(), bytes)?) } else { Ok(0) }
        }
        written => written,
    }
}

/// Waits until standard error can be written; returns false if that is not before `end`.
fn room_before(end: Option<Instant>) -> bool {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)], left.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            // The next write returns the error.
            Err(_) => return true,
        }
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
