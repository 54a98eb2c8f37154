//! A reader of a peer, which ends with the stream or by a shutdown pipe, and detects that the peer
//! hung up while its lines wait.

use std::{
    io::{self, PipeReader, PipeWriter, Read},
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
    thread,
    time::Duration,
};

use portcullis_rpc::{Frame, framing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{hangup, lock, spin_wait::SpinWait};

use super::write_now;

/// The readers of both peers.
pub(super) struct PeerReaders {
    pub(super) editor: PeerReader,
    pub(super) agent: PeerReader,
}

/// A reader of a peer, which can be stopped while the peer sends nothing.
pub(super) struct PeerReader {
    /// Readable, or at its end, once reading is to stop.
    stop: PipeReader,
    stopper: Mutex<Option<PipeWriter>>,
    /// A duplicate of the stream, for polling.
    stream: OwnedFd,
}

impl PeerReader {
    pub(super) fn new(stream: &impl AsFd) -> io::Result<Self> {
        let (stop, stopper) = io::pipe()?;
        let (stream, stopper) = (stream.as_fd().try_clone_to_owned()?, Mutex::new(Some(stopper)));
        Ok(Self { stop, stopper, stream })
    }

    /// Returns another end of the shutdown pipe, for [`Self::stop_by`].
    pub(super) fn stopper(&self) -> io::Result<Option<PipeWriter>> {
        lock(&self.stopper).as_ref().map(PipeWriter::try_clone).transpose()
    }

    pub(super) fn stop_by(stopper: Option<PipeWriter>) {
        stopper.map(|stopper| write_now(stopper, b"x"));
    }

    pub(super) fn stop(&self) {
        Self::stop_by(lock(&self.stopper).take());
    }

    /// Reads frames until the stream ends or reading is stopped.
    pub(super) fn read(&self, stream: impl Read + AsFd, max_line: usize, each: impl FnMut(Frame)) {
        let stream = Stoppable { stream, stop: &self.stop, spin_wait: SpinWait::default() };
        framing::read(stream, max_line, each);
    }

    /// Pauses reading.
    pub(super) fn pause(&self, pause: Duration) {
        // The remaining bytes of a peer that is gone are bounded.
        if !pause.is_zero() && !self.is_over() {
            thread::sleep(pause);
        }
    }

    /// True if no more input will arrive from the peer than has arrived.
    pub(super) fn is_over(&self) -> bool {
        hangup::is_over(self.stream.as_fd(), Some(self.stop.as_fd()))
    }
}

/// A stream that fails once reading is to stop.
struct Stoppable<'a, S> {
    stream: S,
    stop: &'a PipeReader,
    spin_wait: SpinWait,
}

impl<S: Read + AsFd> Read for Stoppable<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut waiting = [
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN),
        ];
        let wait = self.spin_wait.wait();
        let mut ready = 0;
        while ready == 0 {
            let at_once = wait.is_awake().then(Timespec::default);
            ready = poll(&mut waiting, at_once.as_ref())?;
        }
        self.spin_wait.line_arrived(&wait);
        let [stopped, _] = waiting.map(|fd| !fd.revents().is_empty());
        if stopped {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.stream.read(buffer)
    }
}
