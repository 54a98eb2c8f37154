//! The socket by which the broker, the stages of the sandbox and the gateway process communicate.
//!
//! A message is one packet of JSON, with descriptors attached. Both ends belong to this binary.
//! Nothing that an agent wrote is sent here, and the agent never has an end.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
        sendmsg, socketpair,
    },
};
use serde::{Serialize, de::DeserializeOwned};

/// Maximum of descriptors in one message: three for each of nine workspaces and two streams, or
/// nine mounts and the sockets of a sandbox.
const MAX_DESCRIPTORS: usize = 64;
/// Maximum size of a message in bytes; the kernel's default socket buffer has room for it.
const MAX_MESSAGE: usize = 192 * 1024;

/// An end of a channel.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// A message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The kernel refused.
    #[error("cannot {0} a message between processes: {1}")]
    Io(&'static str, io::Error),
    /// The other end sent something unexpected.
    #[error("cannot read a message between processes: {0}")]
    Format(#[from] serde_json::Error),
    /// The message is larger than a packet may be.
    #[error(
        "a message between processes is too large: {0} bytes (are the arguments or the environment very large?)"
    )]
    TooLarge(usize),
    /// The other end is closed.
    #[error("the other process ended")]
    Closed,
    /// The other end does not receive fast enough.
    #[error("the other process is too slow")]
    Full,
    /// No message arrived before the timeout.
    #[error("the other process did not answer in time")]
    Timeout,
}

impl Channel {
    /// Returns a connected pair; both ends close on exec.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn pair() -> Result<(Self, Self), ChannelError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| ChannelError::Io("open a channel for", e.into()))?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Takes the end that this process got as its standard input, which `/dev/null` replaces.
    ///
    /// # Errors
    /// If `/dev/null` cannot be opened.
    pub fn from_stdin() -> Result<Self, ChannelError> {
        take_stdin().map(Self).map_err(|e| ChannelError::Io("receive", e))
    }

    /// Returns a second descriptor of this end.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn try_clone(&self) -> Result<OwnedFd, ChannelError> {
        self.0.try_clone().map_err(|e| ChannelError::Io("share a channel for", e))
    }

    /// Sends `message` with `descriptors` attached.
    ///
    /// # Errors
    /// If the other end is closed or the message is too large.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.put(message, descriptors, SendFlags::NOSIGNAL)
    }

    /// Sends as [`send`](Self::send) does, without waiting for room.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`ChannelError::Full`].
    pub fn send_now<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.put(message, descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn put<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MAX_MESSAGE {
            return Err(ChannelError::TooLarge(text.len()));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::TooLarge(text.len()));
        }
        match sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::AGAIN) => Err(ChannelError::Full),
            Err(rustix::io::Errno::PIPE) => Err(ChannelError::Closed),
            Err(e) => Err(ChannelError::Io("send", e.into())),
        }
    }

    /// Waits for one message. Returns [`ChannelError::Closed`] when all copies of the other end are
    /// closed.
    ///
    /// # Errors
    /// If the message is not a `T`.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut text = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut text)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                // An end that closed with unread messages reports that first; the messages that it
                // sent come after.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                other => break other.map_err(|e| ChannelError::Io("receive", e.into()))?,
            }
        };
        if got.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ChannelError::TooLarge(got.bytes));
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        let message = serde_json::from_slice(text.get(..got.bytes).unwrap_or_default())?;
        Ok((message, descriptors))
    }

    /// Receives as [`receive`](Self::receive) does, but waits no longer than `max_wait`.
    ///
    /// # Errors
    /// As `receive`, and [`ChannelError::Timeout`].
    pub fn receive_within<T: DeserializeOwned>(
        &self,
        max_wait: Duration,
    ) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let limit = Timespec::try_from(max_wait).ok();
        loop {
            let mut wait = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut wait, limit.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(ChannelError::Io("receive", e.into())),
                Ok(0) => return Err(ChannelError::Timeout),
                Ok(_) => return self.receive(),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

/// Returns a connected pair of stream sockets, to be handed to other processes.
///
/// # Errors
/// If the process has no descriptors left.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Takes the descriptor of standard input, and leaves `/dev/null` there.
pub(super) fn take_stdin() -> io::Result<OwnedFd> {
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(null()?)?;
    Ok(taken)
}

/// Takes the descriptor of standard output, and leaves `/dev/null` there.
pub(super) fn take_stdout() -> io::Result<OwnedFd> {
    let taken = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(null()?)?;
    Ok(taken)
}

/// Replaces standard error by `/dev/null`.
pub(super) fn leave_stderr() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(null()?)?)
}

/// Takes standard input and output for another process, and leaves `/dev/null` there, so that their
/// ends close when that process ends.
///
/// # Errors
/// If `/dev/null` cannot be opened.
pub fn take_standard_streams() -> io::Result<[OwnedFd; 2]> {
    Ok([take_stdin()?, take_stdout()?])
}

fn null() -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors_and_an_end_is_seen() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        ours.send(&"word", &[reader.as_fd()]).unwrap();
        let (word, descriptors) = theirs.receive::<String>().unwrap();
        assert_eq!((word.as_str(), descriptors.len()), ("word", 1));
        drop((ours, writer));
        assert!(matches!(theirs.receive::<String>(), Err(ChannelError::Closed)));
    }

    #[test]
    fn the_last_words_of_an_end_that_left_messages_unread_are_heard() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(&"unread", &[]).unwrap();
        theirs.send(&"last words", &[]).unwrap();
        drop(theirs);
        assert_eq!(ours.receive::<String>().unwrap().0, "last words");
        assert!(matches!(ours.receive::<String>(), Err(ChannelError::Closed)));
    }

    #[test]
    fn waits_no_longer_than_it_should() {
        let (_ours, theirs) = Channel::pair().unwrap();
        let got = theirs.receive_within::<String>(Duration::from_millis(5));
        assert!(matches!(got, Err(ChannelError::Timeout)));
    }
}
