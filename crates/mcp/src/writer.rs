//! The writer of lines to the client, complete and in order.
//!
//! A line is written at once if that does not block; otherwise a thread writes it, so
//! that a client that does not read delays no other. A sender of large lines waits for
//! room first.

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

/// Maximum of queued bytes with which calls begin.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Maximum of queued bytes with which the client's input is read: replies to quick
/// requests do not wait for room.
const MAX_WAITING: usize = 64 << 20;
/// Maximum of bytes of one write where others may wait.
const MAX_WRITE: usize = 256 << 10;
/// Timeout for a client to read [`MIN_READ`] bytes while others wait for memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// See [`STALL_TIMEOUT`].
const MIN_READ: usize = 1 << 20;

/// Writes lines to the client.
#[derive(Debug)]
pub(super) struct LineWriter {
    output: Arc<File>,
    /// The memory shared by several clients.
    memory: Option<Arc<ClientMemory>>,
    lines: BoundedQueue<(Vec<u8>, Option<Reservation>)>,
    /// Set when a write failed.
    failed: AtomicBool,
}

impl LineWriter {
    /// Starts the thread; `gone` is called when a write has failed.
    pub(super) fn start(
        output: File,
        memory: Option<Arc<ClientMemory>>,
        gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let (output, lines) = (Arc::new(output), BoundedQueue::new(MAX_QUEUED_BYTES));
        let at_once = Arc::clone(&output);
        // The thread gets the error again, and handles it.
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
                // Its input is useless, too; this fails for a file that is no socket,
                // which stays open.
                let _ = shutdown(&*writing.output, Shutdown::Both);
                gone();
            }
        })?;
        Ok(writer)
    }

    /// Sends a line, which ends with its `\n`.
    pub(super) fn send(&self, line: Vec<u8>) {
        // A short line has more room than it needs.
        let weight = line.capacity();
        let reserved = self.memory.as_ref().map(|memory| memory.replies.overdraw(weight));
        // Nothing is sent to a client that is gone.
        let _ = self.lines.push_over((line, reserved), weight);
    }

    /// Waits until there is room, or the output has ended.
    pub(super) fn wait_for_room(&self) {
        self.lines.wait_for_room();
    }

    /// Returns true if there is room, or the output has ended.
    pub(super) fn has_room(&self) -> bool {
        !self.lines.holds(MAX_QUEUED_BYTES)
    }

    /// Returns true if so much is queued that the client's input is not read. Clients that share
    /// memory are many.
    pub(super) fn is_full(&self) -> bool {
        let most = if self.memory.is_some() { MAX_QUEUED_BYTES } else { MAX_WAITING };
        self.lines.holds(most)
    }

    /// Accepts no more lines, and waits for the queued ones to be written, at most for
    /// `timeout`.
    pub(super) fn close(&self, timeout: Duration) {
        self.lines.close();
        self.lines.wait_finished(timeout);
        self.lines.discard();
    }

    /// Returns true if a write failed.
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
            // The socket of a client that shares its memory has a timeout.
            let piece = rest.get(..MAX_WRITE).unwrap_or(rest);
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

    /// The bytes of replies to pings were counted, and not the kilobyte that each of them took.
    #[test]
    fn short_lines_that_a_client_leaves_unread_count_with_their_room() {
        let (_reader, output) = io::pipe().unwrap();
        let (output, memory) = (File::from(OwnedFd::from(output)), ClientMemory::default());
        let writer = LineWriter::start(output, Some(Arc::new(memory)), || {}).unwrap();
        for _ in 0..10_000 {
            let mut line = Vec::with_capacity(1 << 10);
            line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
            writer.send(line);
        }
        assert!(writer.is_full());
    }

    /// There was never room again, and the client's input was not read again, not even
    /// its end.
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
