//! A program's standard streams.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    thread::{self, JoinHandle},
};

use rustix::{
    fs::{FileType, Gid, Uid, fchown, fstat, fstatfs},
    pipe::{PipeFlags, pipe_with},
};

/// `PIPEFS_MAGIC`: the pipes that have no name.
const PIPE: i64 = 0x5049_5045;

/// A program's standard streams: pipes without a name, and sockets. By a descriptor of a file, a
/// directory or a terminal of the host it would reach more than what is in it: modes, times, what
/// a user types for another program.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// The other ends, if they are for the broker.
    pub(super) ours: Option<[OwnedFd; 3]>,
    /// The threads to be that copy between them and the streams of this process.
    pub(super) forwarders: Vec<Forwarder>,
}

impl Streams {
    /// Pipes that belong to the agent's user, so that it can open
    /// `/dev/stderr`.
    pub(super) fn open(owner: Option<u32>) -> io::Result<Self> {
        let (stdin, our_stdin) = pipe(owner, End::Read)?;
        let (our_stdout, stdout) = pipe(owner, End::Write)?;
        let (our_stderr, stderr) = pipe(owner, End::Write)?;
        let ours = Some([our_stdin, our_stdout, our_stderr]);
        Ok(Self { stdin, stdout, stderr, ours, forwarders: Vec::new() })
    }

    /// Streams that lead to those of this process: these themselves, or a pipe and a thread.
    ///
    /// # Errors
    /// When one of them is a directory.
    pub(super) fn own(owner: Option<u32>) -> io::Result<Self> {
        let [stdin, stdout, stderr] = [
            io::stdin().as_fd().try_clone_to_owned()?,
            io::stdout().as_fd().try_clone_to_owned()?,
            io::stderr().as_fd().try_clone_to_owned()?,
        ];
        let mut forwarders = Vec::new();
        let stdin = if is_pipe_or_socket(&stdin, owner)? {
            stdin
        } else {
            let (end, to) = pipe(owner, End::Read)?;
            forwarders.push(Forwarder { from: stdin, to, is_output: false });
            end
        };
        // What is written to both stays in order.
        let is_one = identity(&stdout)? == identity(&stderr)?;
        let mut output = |stream: OwnedFd| {
            if is_pipe_or_socket(&stream, owner)? {
                return Ok::<_, io::Error>(stream);
            }
            let (from, end) = pipe(owner, End::Write)?;
            forwarders.push(Forwarder { from, to: stream, is_output: true });
            Ok(end)
        };
        let stdout = output(stdout)?;
        let stderr = if is_one { stdout.try_clone()? } else { output(stderr)? };
        Ok(Self { stdin, stdout, stderr, ours: None, forwarders })
    }
}

/// Which end of a pipe is the program's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Read,
    Write,
}

/// A pipe: the end to read and the one to write. It belongs to `owner`.
fn pipe(owner: Option<u32>, end: End) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some(owner) = owner {
        give(if end == End::Read { &reader } else { &writer }, owner)?;
    }
    Ok((reader, writer))
}

fn give(pipe: &OwnedFd, owner: u32) -> io::Result<()> {
    Ok(fchown(pipe, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?)
}

/// Returns whether a stream is a socket, or a pipe without a name, which becomes the program's
/// user's: by these the program reaches nothing but what is in them.
fn is_pipe_or_socket(stream: &OwnedFd, owner: Option<u32>) -> io::Result<bool> {
    match FileType::from_raw_mode(fstat(stream)?.st_mode) {
        FileType::Directory => Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            "a standard stream is a directory; redirect it from a file or from `/dev/null`",
        )),
        FileType::Socket => Ok(true),
        FileType::Fifo if fstatfs(stream)?.f_type == PIPE => {
            if let Some(owner) = owner {
                // Without that it is only not opened again.
                let _ = give(stream, owner);
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn identity(stream: &OwnedFd) -> io::Result<(u64, u64)> {
    let facts = fstat(stream)?;
    Ok((facts.st_dev, facts.st_ino))
}

/// Copies what a program reads or writes, from one descriptor to another one.
#[derive(Debug)]
pub(super) struct Forwarder {
    from: OwnedFd,
    to: OwnedFd,
    is_output: bool,
}

impl Forwarder {
    /// Begins, in a thread of its own; that of an output ends when the last program is gone.
    pub(super) fn start(self) -> Option<JoinHandle<()>> {
        let Self { from, to, is_output } = self;
        let thread = thread::Builder::new().name("stream".to_owned());
        let started = thread.spawn(move || {
            // Where nobody reads any more, closing it tells who writes.
            let _ = io::copy(&mut File::from(from), &mut File::from(to));
        });
        started.ok().filter(|_| is_output)
    }
}
