//! Confinement of the gateway process: it reaches the workspace and the state directory, reads the
//! policies, and can neither run a program nor open a socket.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::{Mode, OFlags, open, openat},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

use super::{
    capabilities,
    channel::Channel,
    landlock::{self, AccessRight, LandlockError, Ports, Restriction, Rule},
    process, resolver,
    seccomp::{self, Purpose, SeccompError},
};

/// Number of checks for a thread that was joined, and the time between.
const MAX_END_CHECKS: u32 = 1000;
const END_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Restrictions that the kernel enforces on the gateway process now.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfinementReport {
    /// The kernel's Landlock ABI; 0 if the kernel has none or one that is too old, and files are
    /// not restricted.
    pub landlock_abi: u32,
    /// True if capabilities were dropped.
    pub dropped_capabilities: bool,
}

/// The gateway process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// A step failed that does not fail on an intact system.
    #[error("cannot {0}: {1}")]
    Step(&'static str, io::Error),
    /// The system call filter was refused.
    #[error("cannot filter the gateway's system calls: {0}")]
    Seccomp(String),
    /// The Landlock ruleset was refused.
    #[error("cannot restrict the gateway's file access with Landlock: {0}")]
    Landlock(#[from] LandlockError),
    /// The kernel lacks the Landlock that separates workspaces.
    #[error(
        "this kernel has no Landlock of ABI 3 (Linux 6.2 with `lsm=landlock`), which keeps workspaces \
         apart"
    )]
    NoLandlock,
    /// The self-test of the confinement failed.
    #[error("the gateway's own confinement does not hold: {0}")]
    SelfTest(&'static str),
}

impl From<SeccompError> for ConfinementError {
    fn from(error: SeccompError) -> Self {
        Self::Seccomp(error.to_string())
    }
}

/// Prepares a gateway process that a broker started: closes inherited descriptors, ties its life to
/// the broker's, and takes the channel that is its standard input. Call it first.
///
/// # Errors
/// If the broker is gone already.
pub fn become_gateway(parent: u32) -> Result<Channel, ConfinementError> {
    process::close_inherited()
        .map_err(|e| ConfinementError::Step("close inherited descriptors", e))?;
    process::die_with(parent).map_err(|e| ConfinementError::Step("follow the broker", e))?;
    Channel::from_stdin()
        .map_err(|e| ConfinementError::Step("find the broker", io::Error::other(e)))
}

/// Confines this process irrevocably, and tests the confinement. The process must have no other
/// thread yet. It keeps `directories`, workspace and state directory, to read and change. They get
/// the same rights, or renames between them would fail with `EXDEV`.
///
/// On a kernel without Landlock of ABI 3 or newer, files stay unrestricted and the report says so:
/// the gateway is trusted code, and its confinement a second line of defence. Any other failure is
/// an error.
///
/// # Errors
/// If a restriction cannot be put in force, or the test fails.
pub fn restrict_gateway(
    directories: &[BorrowedFd<'_>],
) -> Result<ConfinementReport, ConfinementError> {
    restrict(directories, Vec::new(), Purpose::Gateway)
}

/// Confines as [`restrict_gateway`] does, and allows reading `processes`, the `/proc` of a sandbox.
///
/// # Errors
/// As [`restrict_gateway`].
pub fn restrict_gateway_beside(
    directories: &[BorrowedFd<'_>],
    processes: BorrowedFd<'_>,
) -> Result<ConfinementReport, ConfinementError> {
    let processes = Rule { parent: processes, right: AccessRight::ReadOnlyData };
    restrict(directories, vec![processes], Purpose::Gateway)
}

/// Confines as [`restrict_gateway`] does, for one of several workers of a service, which must be
/// separated from each other. A worker cannot change the metadata of a file by its path either,
/// which Landlock does not cover, and signals no other process.
///
/// # Errors
/// As [`restrict_gateway`].
pub fn restrict_worker(
    directories: &[BorrowedFd<'_>],
) -> Result<ConfinementReport, ConfinementError> {
    restrict(directories, Vec::new(), Purpose::Worker)
}

/// Confines this process, which must have no other thread yet, to its open descriptors: it opens,
/// stats and changes no file at all, makes no socket, runs no program and sends no signal.
///
/// # Errors
/// If a restriction cannot be put in force, or the test fails.
pub fn restrict_front() -> Result<ConfinementReport, ConfinementError> {
    restrict(&[], Vec::new(), Purpose::Front)
}

/// Confines as [`restrict_front`] does, but allows pairs of connected sockets.
pub(super) fn restrict_relay() -> Result<ConfinementReport, ConfinementError> {
    restrict(&[], Vec::new(), Purpose::Relay)
}

/// Confines this process, which must have no other thread yet, to a connector's work: it reads the
/// files of the system's resolver, and makes sockets that connect to addresses of the network.
///
/// # Errors
/// If a restriction cannot be put in force, or the test fails.
pub fn restrict_connector() -> Result<ConfinementReport, ConfinementError> {
    let files = resolver::files();
    let files =
        files.iter().map(|file| Rule { parent: file.as_fd(), right: AccessRight::ReadOnlyData });
    restrict(&[], files.collect(), Purpose::Connector)
}

/// Checks that the process has no other thread. A thread that was joined may still be ending.
fn check_alone() -> Result<(), ConfinementError> {
    for _ in 0..MAX_END_CHECKS {
        let threads = rustix::fs::stat("/proc/self/task")
            .map_err(|e| ConfinementError::Step("count the threads of this process", e.into()))?;
        // The directory has one link for each thread and two of its own. Any other number means
        // that something else is mounted in its place, which does not count threads.
        if threads.st_nlink == 3 {
            return Ok(());
        }
        std::thread::sleep(END_CHECK_INTERVAL);
    }
    Err(ConfinementError::SelfTest(
        "the process has another thread, or `/proc/self/task` does not say",
    ))
}

fn restrict(
    directories: &[BorrowedFd<'_>],
    others: Vec<Rule<'_>>,
    purpose: Purpose,
) -> Result<ConfinementReport, ConfinementError> {
    let step = |what| move |e: rustix::io::Errno| ConfinementError::Step(what, e.into());
    // Restrictions apply to the calling thread only.
    check_alone()?;
    if !Sample::take(directories).reachable {
        return Err(ConfinementError::SelfTest("a directory that it needs cannot be opened"));
    }
    let dropped_capabilities = capabilities::any().map_err(step("look at capabilities"))?;
    capabilities::drop_all(None).map_err(step("give up capabilities"))?;
    process::not_dumpable().map_err(|e| ConfinementError::Step("hide the gateway's memory", e))?;
    let mut landlock_abi = 0;
    if landlock::available() {
        let directories =
            directories.iter().map(|fd| Rule { parent: *fd, right: AccessRight::Data });
        let rules: Vec<_> = directories.chain(others).collect();
        landlock_abi = landlock::restrict(&Restriction {
            rules: &rules,
            ports: (purpose != Purpose::Connector).then(Ports::default),
            logged: true,
        })?
        .abi;
    } else if purpose == Purpose::Worker {
        return Err(ConfinementError::NoLandlock);
    }
    seccomp::restrict(purpose)?;
    let sample = Sample::take(directories);
    sample.check(landlock_abi)?;
    if matches!(purpose, Purpose::Front | Purpose::Relay) && sample.root {
        return Err(ConfinementError::SelfTest("the root directory was opened"));
    }
    Ok(ConfinementReport { landlock_abi, dropped_capabilities })
}

/// Results of a few attempts. Refused ones may have been impossible before, inside another sandbox,
/// which is as good. Needed ones must succeed both times.
struct Sample {
    root: bool,
    socket: bool,
    unshare: bool,
    capability: bool,
    reachable: bool,
}

impl Sample {
    fn take(directories: &[BorrowedFd<'_>]) -> Self {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let reachable =
            directories.iter().all(|fd| openat(fd.as_fd(), ".", directory, Mode::empty()).is_ok());
        let flags = SocketFlags::CLOEXEC;
        Self {
            root: open("/", directory, Mode::empty()).is_ok() && rustix::fs::stat("/").is_ok(),
            socket: socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).is_ok(),
            unshare: unshare(CloneFlags::empty()).is_ok(),
            capability: capabilities::any().unwrap_or(true),
            reachable,
        }
    }

    fn check(&self, landlock_abi: u32) -> Result<(), ConfinementError> {
        let surprise = match self {
            Self { socket: true, .. } => "a socket could be opened",
            Self { unshare: true, .. } => "`unshare` could be called",
            Self { capability: true, .. } => "it has capabilities",
            Self { reachable: false, .. } => "a directory that it needs is out of reach",
            Self { root: true, .. } if landlock_abi > 0 => "the root directory was opened",
            _ => return Ok(()),
        };
        Err(ConfinementError::SelfTest(surprise))
    }
}
