//! Worker threads for lines: results come back in order, and a bounded number of bytes is in
//! flight.

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::Scope,
};

use super::digest::{Digests, Lines, digest};
use crate::{MAX_JUNK, MAX_LINE};

/// Number of bytes that are read at once.
pub(super) const READ_SIZE: usize = 512 << 10;
/// Maximum number of pieces that wait for each thread.
const MAX_PIECES_AHEAD: usize = 2;

/// The threads.
pub(super) struct Workers {
    threads: Vec<(SyncSender<Lines>, Receiver<Digests>)>,
    given: usize,
    taken: usize,
}

impl Workers {
    pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, count: usize) -> Self {
        let start = |_number| {
            let (give, given) = sync_channel::<Lines>(MAX_PIECES_AHEAD);
            let (done, take) = sync_channel(MAX_PIECES_AHEAD);
            scope.spawn(move || {
                // The thread ends when the other side has dropped its channels.
                given.into_iter().try_for_each(|lines| done.send(digest(lines)).map_err(drop))
            });
            (give, take)
        };
        Self { threads: (0..count.max(1)).map(start).collect(), given: 0, taken: 0 }
    }

    /// True if a result must be taken before more is given.
    pub(super) fn is_full(&self) -> bool {
        self.given - self.taken >= self.threads.len() * MAX_PIECES_AHEAD
    }

    pub(super) fn give(&mut self, lines: Lines) -> io::Result<()> {
        let count = self.threads.len();
        let thread = self.threads.get(self.given % count).ok_or(io::ErrorKind::BrokenPipe)?;
        self.given += 1;
        thread.0.send(lines).map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }

    /// Takes the oldest result.
    pub(super) fn take(&mut self) -> io::Result<Digests> {
        let count = self.threads.len();
        let thread = self.threads.get(self.taken % count).ok_or(io::ErrorKind::BrokenPipe)?;
        self.taken += 1;
        thread.1.recv().map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }
}

/// A piece of a segment.
pub(super) enum Piece {
    /// Complete lines.
    Lines(Lines),
    /// A line that is too long, by its length in bytes with the newline. Past [`MAX_JUNK`] nothing
    /// follows it.
    Long(u64),
    /// Bytes without a newline at the end, by their number.
    Rest(u64),
    /// The rest cannot be read: the file is not a valid compressed segment.
    Ruin(String),
}

/// A cutter of a segment into pieces.
pub(super) struct PieceReader<R> {
    file: R,
    /// The bytes of an incomplete line.
    carry: Vec<u8>,
    ended: bool,
    waiting: VecDeque<Piece>,
    /// A buffer for reuse.
    spare: Vec<u8>,
}

impl<R: Read> PieceReader<R> {
    pub(super) fn new(file: R) -> Self {
        let (carry, spare) = (Vec::new(), Vec::new());
        Self { file, carry, ended: false, waiting: VecDeque::new(), spare }
    }

    /// Provides the buffer for the next read: reuse costs less than allocation.
    pub(super) fn reuse(&mut self, buffer: Vec<u8>) {
        self.spare = buffer;
    }

    /// Returns the next piece; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Piece>> {
        while self.waiting.is_empty() && !self.ended {
            match self.read() {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.ended = true;
                    self.waiting.push_back(Piece::Ruin(error.to_string()));
                }
                read => read?,
            }
        }
        Ok(self.waiting.pop_front())
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.clear();
        bytes.reserve(1 + self.carry.len() + READ_SIZE + 1);
        bytes.push(0);
        bytes.append(&mut self.carry);
        let read = (&mut self.file).take(READ_SIZE as u64).read_to_end(&mut bytes)?;
        self.ended = read == 0;
        match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => {
                self.carry = bytes.split_off(last + 1);
                self.waiting.push_back(Piece::Lines(Lines(bytes)));
            }
            None => {
                bytes.remove(0);
                self.carry = bytes;
            }
        }
        if self.carry.len() > MAX_LINE {
            self.long()?;
        } else if self.ended && !self.carry.is_empty() {
            self.waiting.push_back(Piece::Rest(self.carry.len() as u64));
            self.carry.clear();
        }
        Ok(())
    }

    /// Skips the rest of a line or, if it does not end, of the segment.
    fn long(&mut self) -> io::Result<()> {
        let mut length = self.carry.len() as u64;
        self.carry.clear();
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let read = self.file.read(&mut buffer)?;
            let bytes = buffer.get(..read).unwrap_or_default();
            let end = bytes.iter().position(|byte| *byte == b'\n');
            length += end.map_or(read, |end| end + 1) as u64;
            if let Some(end) = end {
                self.carry = bytes.get(end + 1..).unwrap_or_default().to_vec();
            }
            let endless = end.is_none() && length > MAX_JUNK;
            if end.is_some() || read == 0 || endless {
                self.ended |= read == 0 || endless;
                self.waiting.push_back(Piece::Long(length));
                return self.lines_of_carry();
            }
        }
    }

    /// Queues the complete lines that follow a long line.
    fn lines_of_carry(&mut self) -> io::Result<()> {
        if let Some(last) = self.carry.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.carry.split_off(last + 1);
            let mut bytes = vec![0];
            bytes.append(&mut self.carry);
            self.carry = rest;
            self.waiting.push_back(Piece::Lines(Lines(bytes)));
        }
        Ok(())
    }
}
