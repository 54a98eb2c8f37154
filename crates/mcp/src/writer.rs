//! Lines to the client, intact and in order.
//!
//! A line goes out at once where the client takes it without waiting; else a
//! thread of its own writes it, so that a client that does not read holds up
//! nobody. A sender of large lines waits for room before.

use std::{
    fs::File,
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use portcullis_rpc::{BoundedQueue, Reservation};
use rustix::net::{Shutdown, shutdown};

use super::memory::ClientMemory;
use crate::output::write_now;

/// Bytes that may wait before no more calls begin.
const CAPACITY: usize = 4 << 20;
/// Bytes that may wait before no more of the client is read: replies to quick
/// requests do not wait for room.
const MAX_WAITING: usize = 64 << 20;
/// Bytes that are written at once where others may wait.
const PIECE: usize = 256 << 10;
/// How long a client may take to read [`MIN_READ`] bytes while others wait for memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// See [`STALL_TIMEOUT`].
const MIN_READ: usize = 1 << 20;

/// Writes lines.
#[derive(Debug)]
pub(super) struct LineWriter {
    output: Arc<File>,
    /// The memory of several clients together.
    memory: Option<Arc<ClientMemory>>,
    lines: BoundedQueue<(Vec<u8>, Option<Reservation>)>,
    /// The client did not take a line.
    failed: AtomicBool,
}

impl LineWriter {
    /// Starts the thread; `gone` is called when the client does not take lines
    /// any more.
    pub(super) fn start(
        output: File,
        memory: Option<Arc<ClientMemory>>,
        gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let (output, lines) = (Arc::new(output), BoundedQueue::new(CAPACITY));
        let at_once = Arc::clone(&output);
        // The thread meets an error again, and knows what to do.
        lines.set_shortcut(move |(mut line, reserved): (Vec<u8>, _)| {
            let written = write_now(&*at_once, &line).unwrap_or_default();
            line.drain(..written.min(line.len()));
            if line.is_empty() { None } else { Some((line, reserved)) }
        });
        let failed = AtomicBool::new(false);
        let writer = Arc::new(Self { output, memory, lines, failed });
        let writing = Arc::clone(&writer);
        thread::Builder::new().name("mcp-out".to_owned()).spawn(move || {
            let written = writing.run();
            writing.failed.fetch_or(written.is_err(), Ordering::SeqCst);
            writing.lines.finish();
            if written.is_err() {
                // Nor is its input of use; where this is no socket, that stays open.
                let _ = shutdown(&*writing.output, Shutdown::Both);
                gone();
            }
        })?;
        Ok(writer)
    }

    /// Sends a line, which ends with its `\n`.
    pub(super) fn send(&self, line: Vec<u8>) {
        let reserved = self.memory.as_ref().map(|memory| memory.replies.overdraw(line.len()));
        let weight = line.len();
        // A client that is gone hears nothing.
        let _ = self.lines.push_over((line, reserved), weight);
    }

    /// Waits until there is some room, or nothing more goes out.
    pub(super) fn wait_for_room(&self) {
        self.lines.wait_for_room();
    }

    /// True if there is some room, or nothing more goes out.
    pub(super) fn has_room(&self) -> bool {
        !self.lines.holds(CAPACITY)
    }

    /// True if so much waits that no more of the client is read.
    pub(super) fn is_full(&self) -> bool {
        self.lines.holds(MAX_WAITING)
    }

    /// Lets no more lines in, and waits for the rest to go out, no longer than
    /// `timeout`.
    pub(super) fn close(&self, timeout: Duration) {
        self.lines.close();
        self.lines.wait_finished(timeout);
        self.lines.discard();
    }

    /// True if the client did not take a line.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    fn run(&self) -> io::Result<()> {
        while let Some((line, _reserved)) = self.lines.pop() {
            self.write(&line)?;
        }
        Ok(())
    }

    /// Writes a line, however long the client takes, unless others wait for memory.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        let Some(memory) = &self.memory else { return (&*self.output).write_all(line) };
        let (mut rest, mut taken, mut since) = (line, 0, Instant::now());
        while !rest.is_empty() {
            // A socket of a client that shares its memory has a timeout.
            let piece = rest.get(..PIECE).unwrap_or(rest);
            match (&*self.output).write(piece) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    taken += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if taken >= MIN_READ {
                (taken, since) = (0, Instant::now());
            } else if since.elapsed() >= STALL_TIMEOUT && memory.waiting_for() >= STALL_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
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
        let (reader, output) = io::pipe().unwrap();
        let writer = LineWriter::start(File::from(OwnedFd::from(output)), None, || {}).unwrap();
        let line = |n: usize| format!("{n}{}\n", "x".repeat(n % 7 * 20_000));
        let sender = thread::spawn(move || {
            for n in 0..100 {
                writer.wait_for_room();
                writer.send(line(n).into_bytes());
            }
            writer.close(Duration::from_secs(60));
        });
        let lines: Vec<_> =
            BufReader::new(reader).lines().take(100).map(|line| line.unwrap() + "\n").collect();
        sender.join().unwrap();
        assert_eq!(lines, (0..100).map(line).collect::<Vec<_>>());
    }

    #[test]
    fn a_client_that_is_gone_is_noticed_and_holds_nobody_up() {
        let (reader, output) = io::pipe().unwrap();
        drop(reader);
        let (say, hear) = std::sync::mpsc::channel();
        let gone = move || say.send(()).unwrap();
        let writer = LineWriter::start(File::from(OwnedFd::from(output)), None, gone).unwrap();
        writer.send(b"{}\n".to_vec());
        hear.recv().unwrap();
        writer.wait_for_room();
        writer.close(Duration::from_secs(60));
    }

    /// There was never room again, and nothing more of the client was heard, not even
    /// that it hung up.
    #[test]
    fn what_a_client_left_unread_holds_nobody_up_once_it_is_gone() {
        let (reader, output) = io::pipe().unwrap();
        let (say, hear) = std::sync::mpsc::channel();
        let gone = move || say.send(()).unwrap();
        let writer = LineWriter::start(File::from(OwnedFd::from(output)), None, gone).unwrap();
        for _ in 0..2 {
            writer.send(vec![b'x'; MAX_WAITING]);
        }
        assert!(!writer.has_room() && writer.is_full());
        drop(reader);
        hear.recv().unwrap();
        assert!(writer.has_room() && !writer.is_full());
    }
}
