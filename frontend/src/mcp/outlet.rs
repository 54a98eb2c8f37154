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

use crate::{lock, output::write_now};

/// What may wait before no more is begun, in bytes.
const CAPACITY: usize = 4 << 20;

/// The way out.
#[derive(Debug)]
pub(super) struct Outlet {
    output: File,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
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

impl Outlet {
    /// Starts the thread; `gone` is called when the client does not take lines
    /// any more.
    pub(super) fn start(
        output: File,
        gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let outlet = Arc::new(Self { output, state, changed });
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
        state.waiting.push_back(line);
        self.changed.notify_all();
    }

    /// Waits until there is some room, or nothing more goes out.
    pub(super) fn wait_room(&self) {
        let mut state = self.lock();
        while !state.closed && !state.broken && state.bytes >= CAPACITY {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether there is some room.
    pub(super) fn has_room(&self) -> bool {
        self.lock().bytes < CAPACITY
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
            let Some(line) = state.waiting.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.writing = true;
            drop(state);
            let written = (&self.output).write_all(&line);
            state = self.lock();
            state.writing = false;
            state.bytes = state.bytes.saturating_sub(line.len());
            state.failed |= written.is_err();
            state.broken |= written.is_err();
            self.changed.notify_all();
            written?;
        }
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
        let outlet = Outlet::start(File::from(OwnedFd::from(writer)), || {}).unwrap();
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
        let outlet = Outlet::start(File::from(OwnedFd::from(writer)), gone).unwrap();
        outlet.send(b"{}\n".to_vec());
        hear.recv().unwrap();
        outlet.wait_room();
        outlet.close(Duration::from_secs(60));
    }
}
