//! The hatch: a UNIX socket through which a cell, and nobody else, reaches the
//! gate, and this program beside it, which connects to it.
//!
//! The socket is bound in a directory of the broker's, mounted into the cell,
//! and loses its name on the host before anybody listens: what has no name
//! nobody else can connect to. What is said through it is not looked at here.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, chmodat, fstat, mkdir, open, rmdir, stat, unlink},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    },
    rand::{GetRandomFlags, getrandom},
};

use super::{hint, layout::Resolved, mounts};

/// Where the cell has this program.
pub const PROGRAM: &str = "/.portcullis/portcullis";
/// Where the cell has the socket.
pub const SOCKET: &str = "/.portcullis/gate";

/// Connections that wait to be taken.
const BACKLOG: i32 = 64;

/// A socket that nobody listens at yet.
#[derive(Debug)]
pub(super) struct Hatch {
    socket: OwnedFd,
    /// The socket's file, to see that no other name is left of it.
    file: OwnedFd,
    directory: PathBuf,
    path: PathBuf,
    program: PathBuf,
}

impl Hatch {
    /// Binds the socket. `sees` tells what the agent may read, of what this
    /// program needs besides itself.
    pub(super) fn make(owner: Option<u32>, sees: impl Fn(&Path) -> bool) -> Result<Self, String> {
        let program = this_program(owner, sees)?;
        let mut random = [0; 8];
        getrandom(&mut random[..], GetRandomFlags::empty()).map_err(describe)?;
        // Short, or it would not fit an address.
        let directory = mounts::existing(Path::new("/tmp")).map_err(describe)?;
        let directory = directory.join(format!(".portcullis-{:016x}", u64::from_le_bytes(random)));
        mkdir(&directory, Mode::RWXU).map_err(describe)?;
        let path = directory.join("gate");
        let made = bound(&path);
        let (socket, file) = made.inspect_err(|_| clear(&path, &directory)).map_err(describe)?;
        Ok(Self { socket, file, directory, path, program })
    }

    /// The socket's path on the host, as long as it has one.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// This program's path on the host.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Takes the socket's name away and listens. To be called once the cell
    /// has it, which keeps it.
    pub(super) fn seal(self) -> io::Result<OwnedFd> {
        clear(&self.path, &self.directory);
        if fstat(&self.file)?.st_nlink != 0 {
            return Err(io::Error::other("the socket has another name"));
        }
        listen(&self.socket, BACKLOG)?;
        self.socket.try_clone()
    }
}

impl Drop for Hatch {
    fn drop(&mut self) {
        clear(&self.path, &self.directory);
    }
}

/// In the finished cell: whether both can be used there.
pub(super) fn prove() -> Result<(), String> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|_| "the cell may not open UNIX sockets on this kernel".to_owned())?;
    let address = SocketAddrUnix::new(SOCKET).map_err(describe)?;
    match connect(&socket, &address) {
        // It is there, and nobody listens yet.
        Err(rustix::io::Errno::CONNREFUSED) => {}
        Err(error) => return Err(format!("the cell cannot reach the gate's socket: {error}")),
        Ok(()) => return Err("somebody listens at the gate's socket too soon".to_owned()),
    }
    let ran = Command::new(PROGRAM)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("the cell cannot execute this program: {error}"))?;
    match ran.success() {
        true => Ok(()),
        false => Err(format!("this program does not run in the cell: {ran}")),
    }
}

/// This program's file, if whoever is in the cell can execute it.
fn this_program(owner: Option<u32>, sees: impl Fn(&Path) -> bool) -> Result<PathBuf, String> {
    let running = stat("/proc/self/exe").map_err(describe)?;
    let path = std::env::current_exe().map_err(|error| error.to_string())?;
    let found = match stat(&path) {
        Ok(found) => found,
        Err(_) => return Err("this program's file was replaced".to_owned()),
    };
    if (found.st_dev, found.st_ino) != (running.st_dev, running.st_ino) {
        return Err("this program's file was replaced".to_owned());
    }
    if owner.is_some() && running.st_mode & 0o005 != 0o005 {
        return Err("other users may not execute this program's file".to_owned());
    }
    let needs = hint::find(path.as_os_str(), None, Path::new("/")).map_err(|e| e.to_string())?;
    match needs.needs.iter().find(|need| **need != path && !sees(need)) {
        Some(missing) => Err(format!("the agent may not read `{}`", missing.display())),
        None => Ok(path),
    }
}

fn bound(path: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The directory keeps others out; the agent may be another user.
    chmodat(CWD, path, Mode::from_raw_mode(0o666), AtFlags::empty())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((socket, open(path, flags, Mode::empty())?))
}

/// What is gone already need not go.
fn clear(path: &Path, directory: &Path) {
    let _ = unlink(path);
    let _ = rmdir(directory);
}

fn describe(error: impl Into<io::Error>) -> String {
    error.into().to_string()
}

/// Whether one of what the agent gets holds `path`.
pub(super) fn holds(granted: &[&[Resolved]], path: &Path) -> bool {
    granted.iter().flat_map(|found| found.iter()).any(|found| path.starts_with(&found.target))
}
