//! Hearing a peer, until it ends or need not be heard any longer, and seeing
//! that it left while its lines wait.

use std::{
    io::{self, PipeReader, PipeWriter, Read},
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
    thread,
};

use portcullis_rpc::{Frame, framing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    brake::{self, Brake},
    lock,
    pace::Pace,
};

use super::write_now;

/// What both peers are heard by.
pub(super) struct Hearings {
    pub(super) editor: Hearing,
    pub(super) agent: Hearing,
}

/// Hears a peer, and can be ended when that says nothing.
pub(super) struct Hearing {
    /// Readable, or at its end, when it is time to end.
    told: PipeReader,
    teller: Mutex<Option<PipeWriter>>,
    /// The stream that is heard, to look at only.
    stream: OwnedFd,
    brake: Brake,
}

impl Hearing {
    pub(super) fn new(stream: &impl AsFd) -> io::Result<Self> {
        let (told, teller) = io::pipe()?;
        let stream = stream.as_fd().try_clone_to_owned()?;
        Ok(Self { told, teller: Mutex::new(Some(teller)), stream, brake: Brake::new() })
    }

    /// Another way to end it, see [`Self::pull`].
    pub(super) fn trigger(&self) -> io::Result<Option<PipeWriter>> {
        lock(&self.teller).as_ref().map(PipeWriter::try_clone).transpose()
    }

    pub(super) fn pull(trigger: Option<PipeWriter>) {
        trigger.map(|trigger| write_now(trigger, b"x"));
    }

    pub(super) fn end(&self) {
        Self::pull(lock(&self.teller).take());
    }

    /// Reads frames until the stream ends, or this is told.
    pub(super) fn hear(&self, stream: impl Read + AsFd, max_line: usize, each: impl FnMut(Frame)) {
        framing::read(Until { stream, told: &self.told, pace: Pace::default() }, max_line, each);
    }

    /// Leaves the peer unheard for what its brake says.
    pub(super) fn brake(&self) {
        let pause = self.brake.press();
        // What is left in the stream of one that is gone is bounded.
        if !pause.is_zero() && !self.is_over() {
            thread::sleep(pause);
        }
    }

    /// Whether the peer will say no more than what it said, heard or not.
    pub(super) fn is_over(&self) -> bool {
        brake::is_over(self.stream.as_fd(), Some(self.told.as_fd()))
    }
}

/// A stream that fails when it is to be heard no longer.
struct Until<'a, S> {
    stream: S,
    told: &'a PipeReader,
    pace: Pace,
}

impl<S: Read + AsFd> Read for Until<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut waiting = [
            PollFd::from_borrowed_fd(self.told.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN),
        ];
        let wait = self.pace.wait();
        let mut ready = 0;
        while ready == 0 {
            let at_once = wait.is_awake().then(Timespec::default);
            ready = poll(&mut waiting, at_once.as_ref())?;
        }
        self.pace.heard(&wait);
        let [told, _] = waiting.map(|fd| !fd.revents().is_empty());
        if told {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.stream.read(buffer)
    }
}
