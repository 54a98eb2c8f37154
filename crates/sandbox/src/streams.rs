//! A program's standard streams.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    fs::{FileType, Gid, Uid, fchown, fstat},
    net::{
        SocketType,
        sockopt::{socket_acceptconn, socket_type},
    },
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};

use super::forwarder::{Forwarder, INPUT_CHUNK, Stream};

/// A program's standard streams: pipes made for it. Through a descriptor of the host it would reach
/// more than the content: a file's mode, a user's input for another program, the other end of a
/// pipe, the network of a socket.
#[derive(Debug)]
pub(super) struct Streams {
    /// The program's ends; none where it has a pseudo-terminal.
    pub(super) theirs: Vec<OwnedFd>,
    /// The broker's ends, if it serves them itself.
    pub(super) ours: Option<[OwnedFd; 3]>,
    /// The copiers between them and the streams of this process, to be started.
    pub(super) forwarders: Vec<Forwarder>,
}

impl Streams {
    /// Makes pipes that belong to the agent's user, so that it can open `/dev/stderr`.
    pub(super) fn open(owner: Option<u32>) -> io::Result<Self> {
        let (stdin, our_stdin) = pipe(owner, End::Read)?;
        let (our_stdout, stdout) = pipe(owner, End::Write)?;
        let (our_stderr, stderr) = pipe(owner, End::Write)?;
        let ours = Some([our_stdin, our_stdout, our_stderr]);
        Ok(Self { theirs: vec![stdin, stdout, stderr], ours, forwarders: Vec::new() })
    }

    /// Makes no pipes: a terminal takes their place.
    pub(super) fn none() -> Self {
        Self { theirs: Vec::new(), ours: None, forwarders: Vec::new() }
    }

    /// Makes such pipes, each with a thread that copies between it and a stream of this process.
    ///
    /// # Errors
    /// If one of these is a directory, or a socket that is no connection.
    pub(super) fn own(owner: Option<u32>) -> io::Result<Self> {
        let from = io::stdin().as_fd().try_clone_to_owned()?;
        let to_stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let to_stderr = io::stderr().as_fd().try_clone_to_owned()?;
        for stream in [&from, &to_stdout, &to_stderr] {
            check(stream)?;
        }
        let (stdin, to) = pipe(owner, End::Read)?;
        fcntl_setpipe_size(&to, INPUT_CHUNK)?;
        let input = Forwarder { from, to, stream: Stream::Input };
        let output = |to, stream| {
            let (from, end) = pipe(owner, End::Write)?;
            Ok::<_, io::Error>((end, Forwarder { from, to, stream }))
        };
        // Output to both stays in order.
        if identity(&to_stdout)? == identity(&to_stderr)? {
            let (stdout, both) = output(to_stdout, Stream::Both)?;
            let stderr = stdout.try_clone()?;
            return Ok(Self {
                theirs: vec![stdin, stdout, stderr],
                ours: None,
                forwarders: vec![input, both],
            });
        }
        let (stdout, first) = output(to_stdout, Stream::Output)?;
        let (stderr, second) = output(to_stderr, Stream::Error)?;
        Ok(Self {
            theirs: vec![stdin, stdout, stderr],
            ours: None,
            forwarders: vec![input, first, second],
        })
    }
}

/// The program's end of a pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Read,
    Write,
}

/// Makes a pipe; returns its end to read and its end to write. The program's end belongs to
/// `owner`.
fn pipe(owner: Option<u32>, end: End) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some(owner) = owner {
        let theirs = if end == End::Read { &reader } else { &writer };
        fchown(theirs, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
    }
    Ok((reader, writer))
}

/// Refuses a stream that cannot be copied as a sequence of bytes.
fn check(stream: &OwnedFd) -> io::Result<()> {
    let refuse = |kind, reason: &str| {
        let advice = "redirect it from or to a file, a pipe or `/dev/null`";
        Err(io::Error::new(kind, format!("a standard stream is {reason}; {advice}")))
    };
    match FileType::from_raw_mode(fstat(stream)?.st_mode) {
        FileType::Directory => refuse(io::ErrorKind::IsADirectory, "a directory"),
        FileType::Socket if socket_type(stream)? != SocketType::STREAM => {
            refuse(io::ErrorKind::Unsupported, "a socket of datagrams")
        }
        FileType::Socket if socket_acceptconn(stream)? => {
            refuse(io::ErrorKind::Unsupported, "a listening socket")
        }
        _ => Ok(()),
    }
}

fn identity(stream: &OwnedFd) -> io::Result<(u64, u64)> {
    let facts = fstat(stream)?;
    Ok((facts.st_dev, facts.st_ino))
}
