//! The connection from the sandbox, and from nowhere else, to the gateway, with
//! this program beside it as its client.
//!
//! A sandbox with a root directory of its own has the sandbox socket, a UNIX
//! socket. It is bound in a directory of the broker's, mounted into the
//! sandbox, and unlinked on the host before anything listens, so that nothing
//! outside can connect. Without namespaces there are named pipes instead. The
//! messages are not parsed here.

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
};

use super::{
    descriptor_passing::refuse_descriptors,
    mounts,
    named_pipes::{self, NamedPipes, PLACE},
    program_files,
    random::random_hex,
    relay::Relay,
    resolve::Resolved,
    spec::{GatewayAddress, Mode as CellMode},
};

/// Path of this program in a sandbox with a root directory of its own.
const PROGRAM: &str = "/.portcullis/portcullis";
/// Path of the sandbox socket there.
pub(super) const SOCKET: &str = "/.portcullis/gateway";

/// Prefix of the directory's name.
pub(super) const PREFIX: &str = ".portcullis-";

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The gateway's end of the connection.
#[derive(Debug)]
pub struct Opened {
    /// The descriptor on which the gateway accepts connections, or receives
    /// them from the relay.
    pub descriptor: OwnedFd,
    /// The paths in the sandbox.
    pub entrance: GatewayAddress,
    /// The relay, to be kept as long as the agent runs.
    pub(super) relay: Option<Relay>,
}

/// A connection that the gateway does not serve yet.
#[derive(Debug)]
pub(super) struct PendingSocket {
    program: PathBuf,
    way: ConnectionMethod,
}

#[derive(Debug)]
enum ConnectionMethod {
    Socket(Socket),
    Pipes(NamedPipes),
}

impl PendingSocket {
    /// Makes the connection that a sandbox of that mode can have. `sees`
    /// returns true for paths that the agent may read, among those that this
    /// program needs besides itself.
    pub(super) fn make(mode: CellMode, sees: impl Fn(&Path) -> bool) -> Result<Self, String> {
        if !mode.is_confined() {
            return Err("the agent is not confined".to_owned());
        }
        let program = this_program(mode.user(), sees)?;
        let way = match mode.is_full() {
            true => Socket::bind().map(ConnectionMethod::Socket),
            false => NamedPipes::make(mode.user()).map(ConnectionMethod::Pipes),
        };
        Ok(Self { program, way: way.map_err(describe)? })
    }

    /// Returns the paths that the sandbox will have.
    pub(super) fn entrance(&self) -> GatewayAddress {
        let (program, address, is_relayed) = match &self.way {
            ConnectionMethod::Socket(_) => (Path::new(PROGRAM), Path::new(SOCKET), false),
            ConnectionMethod::Pipes(pipes) => (self.program.as_path(), pipes.path(), true),
        };
        GatewayAddress { program: program.to_owned(), address: address.to_owned(), is_relayed }
    }

    /// Returns the files to be mounted into the sandbox, each with its path
    /// there.
    pub(super) fn files(&self) -> Vec<(&'static str, &Path)> {
        match &self.way {
            ConnectionMethod::Socket(socket) => {
                vec![(PROGRAM, &self.program), (SOCKET, &socket.path)]
            }
            ConnectionMethod::Pipes(_) => Vec::new(),
        }
    }

    /// Opens the gateway's end. Call it once the sandbox has its own.
    pub(super) fn open(self) -> Result<Opened, String> {
        let entrance = self.entrance();
        Ok(match self.way {
            ConnectionMethod::Socket(socket) => {
                Opened { descriptor: socket.seal().map_err(describe)?, entrance, relay: None }
            }
            ConnectionMethod::Pipes(pipes) => {
                let (relay, descriptor) = Relay::start(pipes)?;
                Opened { descriptor, entrance, relay: Some(relay) }
            }
        })
    }
}

/// A bound socket on which nothing listens yet.
#[derive(Debug)]
struct Socket {
    socket: OwnedFd,
    /// The socket's file, to check that no other name of it is left.
    file: OwnedFd,
    directory: PathBuf,
    path: PathBuf,
}

impl Socket {
    fn bind() -> io::Result<Self> {
        let directory = mounts::existing(Path::new(PLACE))?;
        let directory = directory.join(format!("{PREFIX}{}", random_hex()?));
        mkdir(&directory, Mode::RWXU)?;
        let path = directory.join("gateway");
        let (socket, file) = bound(&path).inspect_err(|_| clear(&path, &directory))?;
        Ok(Self { socket, file, directory, path })
    }

    /// Unlinks the socket and listens. Call it once the sandbox has the mount,
    /// which remains.
    fn seal(self) -> io::Result<OwnedFd> {
        clear(&self.path, &self.directory);
        if fstat(&self.file)?.st_nlink != 0 {
            return Err(io::Error::other("the socket has another name"));
        }
        listen(&self.socket, BACKLOG)?;
        self.socket.try_clone()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        clear(&self.path, &self.directory);
    }
}

/// Tests, in the finished sandbox, that the connection can be used.
pub(super) fn prove(entrance: &GatewayAddress) -> Result<(), String> {
    match entrance.is_relayed {
        true => prove_pipes(&entrance.address)?,
        false => prove_socket(&entrance.address)?,
    }
    let ran = Command::new(&entrance.program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("the sandbox cannot execute this program: {error}"))?;
    match ran.success() {
        true => Ok(()),
        false => Err(format!("this program does not run in the sandbox: {ran}")),
    }
}

fn prove_pipes(directory: &Path) -> Result<(), String> {
    let opened = |path: PathBuf, flags| {
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(&path, flags, Mode::empty())
            .map_err(|error| format!("the agent cannot open `{}`: {error}", path.display()))
    };
    opened(directory.join(named_pipes::ANNOUNCEMENTS), OFlags::WRONLY)?;
    for slot in 0..named_pipes::MAX_CLIENTS {
        opened(directory.join(named_pipes::input(slot)), OFlags::WRONLY)?;
        opened(directory.join(named_pipes::output(slot)), OFlags::RDONLY)?;
    }
    Ok(())
}

fn prove_socket(path: &Path) -> Result<(), String> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|_| "the sandbox may not open UNIX sockets on this kernel".to_owned())?;
    let address = SocketAddrUnix::new(path).map_err(describe)?;
    match connect(&socket, &address) {
        // The socket is there, and nothing listens yet.
        Err(rustix::io::Errno::CONNREFUSED) => Ok(()),
        Err(error) => Err(format!("the sandbox cannot reach the gateway's socket: {error}")),
        Ok(()) => Err("another process listens at the gateway's socket too soon".to_owned()),
    }
}

/// Returns this program's file, if the agent can execute it.
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
    let anywhere = program_files::AgentAccess::default();
    let needs = program_files::find(path.as_os_str(), None, Path::new("/"), &anywhere);
    let needs = needs.map_err(|e| e.to_string())?;
    match needs.needs.iter().find(|need| **need != path && !sees(need)) {
        Some(missing) => Err(format!("the agent may not read `{}`", missing.display())),
        None => Ok(path),
    }
}

fn bound(path: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    refuse_descriptors(&socket)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The directory denies other users; the agent may be one of them.
    chmodat(CWD, path, Mode::from_raw_mode(0o666), AtFlags::empty())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((socket, open(path, flags, Mode::empty())?))
}

/// Removes the socket and its directory, which may be gone already.
fn clear(path: &Path, directory: &Path) {
    let _ = unlink(path);
    let _ = rmdir(directory);
}

fn describe(error: impl Into<io::Error>) -> String {
    error.into().to_string()
}

/// True if one of the grants contains `path`.
pub(super) fn holds(granted: &[&[Resolved]], path: &Path) -> bool {
    granted.iter().flat_map(|found| found.iter()).any(|found| path.starts_with(&found.target))
}
