//! Where desks are: `approvals/ID.sock` and `approvals/ID.nonce` in the state
//! directory, which nobody but the operator may enter.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, chmodat, mkdirat, openat, renameat, unlinkat},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    },
};

const FOLDER: &str = "approvals";
const SOCKET: &str = ".sock";
const NONCE: &str = ".nonce";
/// Most that may wait to be heard.
const BACKLOG: i32 = 16;

/// The folder of all desks of one state directory.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens it, and makes it when it is missing.
    pub(super) fn make(state: BorrowedFd<'_>) -> io::Result<Self> {
        match mkdirat(state, FOLDER, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::open(state)
    }

    /// Opens it.
    pub(super) fn open(state: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(state, FOLDER, flags, Mode::empty())?))
    }

    /// The names of the desks that are there, whether or not anybody is at
    /// them.
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

    /// Puts up a socket and its nonce. The socket takes its name only when it
    /// listens, so that one which refuses is nobody's any more.
    pub(super) fn put_up(&self, name: &str, nonce: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.0, format!("{name}{NONCE}"), flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(nonce.as_bytes())?;
        let socket = stream()?;
        let fresh = format!("{name}.tmp");
        bind(&socket, &self.address(&fresh)?)?;
        chmodat(&self.0, fresh.as_str(), Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        listen(&socket, BACKLOG)?;
        renameat(&self.0, fresh.as_str(), &self.0, format!("{name}{SOCKET}"))?;
        Ok(socket)
    }

    /// Takes a desk away.
    pub(super) fn take_down(&self, name: &str) {
        for ending in [SOCKET, NONCE] {
            match unlinkat(&self.0, format!("{name}{ending}"), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => tracing::warn!(%error, "a desk for approvals could not be removed"),
            }
        }
    }

    /// Goes to a desk; `None` when nobody is at it any more.
    pub(super) fn go_to(&self, name: &str) -> io::Result<Option<(OwnedFd, String)>> {
        let socket = stream()?;
        match connect(&socket, &self.address(&format!("{name}{SOCKET}"))?) {
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

    /// By the folder's descriptor, for a socket's path has little room.
    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        let folder = self.0.as_fd().as_raw_fd();
        Ok(SocketAddrUnix::new(format!("/proc/self/fd/{folder}/{name}"))?)
    }
}

fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
