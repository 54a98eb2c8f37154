//! Lines to the client, whole and in order.
//!
//! A line goes out at once where the client takes it without waiting; else a
//! thread of its own writes it, so that nobody waits for a client that does not
//! read. Whoever makes large lines waits for room before.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write as _},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::net::{Shutdown, shutdown};

use crate::{
    lock,
    output::write_now,
    stock::{Hold, Stock},
};

/// What may wait before no more is begun, in bytes.
const CAPACITY: usize = 4 << 20;
/// What may wait before the client is not heard any more, in bytes: replies to what
/// is answered at once do not wait for room.
const UNHEARD: usize = 64 << 20;
/// How much is written at once where others may wait.
const PIECE: usize = 256 << 10;
/// How long a client may take to take [`ENOUGH`] while others wait for memory.
const STALL: Duration = Duration::from_secs(10);
/// In bytes.
const ENOUGH: usize = 1 << 20;

/// The way out.
#[derive(Debug)]
pub(super) struct Outlet {
    output: File,
    /// The memory of several clients together.
    stock: Option<Arc<Stock>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Vec<u8>, Option<Hold>)>,
    bytes: usize,
    /// The thread has taken a line and not written it yet.
    writing: bool,
    /// Nothing more goes in.
    closed: bool,
    /// Nothing more goes out.
    broken: bool,
    /// The client did not take a line.
    failed: bool,
}

impl State {
    /// Whether so much waits to go out, and can.
    fn holds(&self, bytes: usize) -> bool {
        !self.closed && !self.broken && self.bytes >= bytes
    }
}

impl Outlet {
    /// Starts the thread; `gone` is called when the client does not take lines
    /// any more.
    pub(super) fn start(
        output: File,
        stock: Option<Arc<Stock>>,
        gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let outlet = Arc::new(Self { output, stock, state, changed });
        let writer = Arc::clone(&outlet);
        thread::Builder::new().name("mcp-out".to_owned()).spawn(move || {
            if writer.run().is_err() {
                gone();
            }
        })?;
        Ok(outlet)
    }

    /// Sends a line, which ends with its `\n`.
    pub(super) fn send(&self, mut line: Vec<u8>) {
        let mut state = self.lock();
        if state.closed || state.broken {
            return;
        }
        if state.waiting.is_empty() && !state.writing {
            match write_now(&self.output, &line) {
                Ok(written) if written >= line.len() => return,
                Ok(written) => drop(line.drain(..written)),
                // The thread meets it again, and knows what to do.
                Err(_) => {}
            }
        }
        state.bytes = state.bytes.saturating_add(line.len());
        let hold = self.stock.as_ref().map(|stock| stock.told.owe(line.len()));
        state.waiting.push_back((line, hold));
        self.changed.notify_all();
    }

    /// Waits until there is some room, or nothing more goes out.
    pub(super) fn wait_room(&self) {
        let mut state = self.lock();
        while state.holds(CAPACITY) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether there is some room, or nothing more goes out.
    pub(super) fn has_room(&self) -> bool {
        !self.lock().holds(CAPACITY)
    }

    /// Whether so much waits that nothing more is to be heard.
    pub(super) fn is_full(&self) -> bool {
        self.lock().holds(UNHEARD)
    }

    /// Lets nothing more in, and waits for what is there to go out, no longer
    /// than `timeout`.
    pub(super) fn close(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
        while !state.broken && (state.writing || !state.waiting.is_empty()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (state, _) =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        state.broken = true;
        self.changed.notify_all();
    }

    /// Whether the client did not take a line.
    pub(super) fn failed(&self) -> bool {
        self.lock().failed
    }

    fn run(&self) -> io::Result<()> {
        let mut state = self.lock();
        loop {
            if state.broken || (state.closed && state.waiting.is_empty()) {
                return Ok(());
            }
            let Some((line, hold)) = state.waiting.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.writing = true;
            drop(state);
            let written = self.write(&line);
            let length = line.len();
            drop((line, hold));
            state = self.lock();
            state.writing = false;
            state.bytes = state.bytes.saturating_sub(length);
            state.failed |= written.is_err();
            state.broken |= written.is_err();
            self.changed.notify_all();
            if written.is_err() {
                state.waiting.clear();
                drop(state);
                // Nor is what it sends of use; where it is no socket, that stays open.
                let _ = shutdown(&self.output, Shutdown::Both);
                return written;
            }
        }
    }

    /// Writes a line, however long the client takes, unless others wait for the memory.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        let Some(stock) = &self.stock else { return (&self.output).write_all(line) };
        let (mut rest, mut taken, mut since) = (line, 0, Instant::now());
        while !rest.is_empty() {
            // Who shares its memory has a socket that lets us look now and then.
            let piece = rest.get(..PIECE).unwrap_or(rest);
            match (&self.output).write(piece) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    taken += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if taken >= ENOUGH {
                (taken, since) = (0, Instant::now());
            } else if since.elapsed() >= STALL && stock.short_for() >= STALL {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        os::fd::OwnedFd,
    };

    use super::*;

    #[test]
    fn lines_stay_whole_and_in_order_whatever_the_client_takes_at_once() {
        let (reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start(File::from(OwnedFd::from(writer)), None, || {}).unwrap();
        let line = |n: usize| format!("{n}{}\n", "x".repeat(n % 7 * 20_000));
        let sender = thread::spawn(move || {
            for n in 0..100 {
                outlet.wait_room();
                outlet.send(line(n).into_bytes());
            }
            outlet.close(Duration::from_secs(60));
        });
        let lines: Vec<_> =
            BufReader::new(reader).lines().take(100).map(|line| line.unwrap() + "\n").collect();
        sender.join().unwrap();
        assert_eq!(lines, (0..100).map(line).collect::<Vec<_>>());
    }

    #[test]
    fn a_client_that_is_gone_is_noticed_and_holds_nobody_up() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let (say, hear) = std::sync::mpsc::channel();
        let gone = move || say.send(()).unwrap();
        let outlet = Outlet::start(File::from(OwnedFd::from(writer)), None, gone).unwrap();
        outlet.send(b"{}\n".to_vec());
        hear.recv().unwrap();
        outlet.wait_room();
        outlet.close(Duration::from_secs(60));
    }

    /// There was never room again, and nothing more of the client was heard, not even
    /// that it hung up.
    #[test]
    fn what_a_client_left_unread_holds_nobody_up_once_it_is_gone() {
        let (reader, writer) = io::pipe().unwrap();
        let (say, hear) = std::sync::mpsc::channel();
        let gone = move || say.send(()).unwrap();
        let outlet = Outlet::start(File::from(OwnedFd::from(writer)), None, gone).unwrap();
        for _ in 0..2 {
            outlet.send(vec![b'x'; UNHEARD]);
        }
        assert!(!outlet.has_room() && outlet.is_full());
        drop(reader);
        hear.recv().unwrap();
        assert!(outlet.has_room() && !outlet.is_full());
    }
}
