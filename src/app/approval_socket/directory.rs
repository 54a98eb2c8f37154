//! The directory of approval sockets: `approvals/ID.sock` and `approvals/ID.nonce` in
//! the state directory, accessible to the operator only.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, chmodat, mkdirat, openat, renameat, unlinkat},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};

use crate::sandbox::refuse_descriptors;

const DIRECTORY: &str = "approvals";
const SOCKET: &str = ".sock";
const NONCE: &str = ".nonce";
/// Maximum of connections in the queue.
const BACKLOG: i32 = 16;

/// The directory of the approval sockets of a state directory.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// Opens it; creates it if it is missing.
    pub(super) fn make(state: BorrowedFd<'_>) -> io::Result<Self> {
        match mkdirat(state, DIRECTORY, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::open(state)
    }

    /// Opens it.
    pub(super) fn open(state: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(state, DIRECTORY, flags, Mode::empty())?))
    }

    /// Returns the names of all sockets, also of dead gateways.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            names.extend(name.strip_suffix(SOCKET).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Creates a socket and its nonce. The socket gets its name only once it listens,
    /// so a socket that refuses connections belongs to a dead gateway.
    pub(super) fn create(&self, name: &str, nonce: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.0, format!("{name}{NONCE}"), flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(nonce.as_bytes())?;
        let socket = stream()?;
        refuse_descriptors(&socket)?;
        let fresh = format!("{name}.tmp");
        bind(&socket, &self.address(&fresh)?)?;
        chmodat(&self.0, fresh.as_str(), Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        listen(&socket, BACKLOG)?;
        renameat(&self.0, fresh.as_str(), &self.0, format!("{name}{SOCKET}"))?;
        Ok(socket)
    }

    /// Removes a socket and its nonce.
    pub(super) fn remove(&self, name: &str) {
        for ending in [SOCKET, NONCE] {
            match unlinkat(&self.0, format!("{name}{ending}"), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => tracing::warn!(%error, "an approval socket cannot be removed"),
            }
        }
    }

    /// Connects to a socket; `None` if its gateway has ended.
    pub(super) fn connect(&self, name: &str) -> io::Result<Option<(OwnedFd, String)>> {
        let socket = stream()?;
        match rustix::net::connect(&socket, &self.address(&format!("{name}{SOCKET}"))?) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.0, format!("{name}{NONCE}"), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let mut nonce = String::new();
        File::from(file).take(256).read_to_string(&mut nonce)?;
        Ok(Some((socket, nonce)))
    }

    /// Returns an address through the directory's descriptor, since the length of a
    /// socket's path is limited.
    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        let directory = self.0.as_fd().as_raw_fd();
        Ok(SocketAddrUnix::new(format!("/proc/self/fd/{directory}/{name}"))?)
    }
}

fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
