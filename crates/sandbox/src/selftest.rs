//! The self-test of the confined child, in the process that becomes the agent:
//! every action is tried before and after confinement, so that a refusal means
//! something, and the actions that the agent needs are tried too.
//!
//! It changes nothing outside the agent's own directories. io_uring and
//! io_setup have no safe wrapper to try them with; a filter installed beside
//! the tested one that refuses ptrace reports them as not implemented.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::{
    pty::{posix_openpt, ptsname_r, unlockpt},
    sched::{CloneFlags, unshare},
};
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode as FileMode, OFlags, StatxFlags, inotify, open, statx},
    io::Errno,
    mount::{UnmountFlags, unmount},
    net::{
        AddressFamily, Protocol, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
        getsockname, listen, socket_with, socketpair,
    },
    process::{
        Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, pidfd_getfd, pidfd_open,
        prlimit,
    },
    rand::{GetRandomFlags, getrandom},
    thread::{SecureComputingMode, no_new_privs, secure_computing_mode, set_thread_uid},
};

use super::{
    capabilities,
    layout::TERMINALS,
    messages::{Enter, Target},
    process,
    spec::Probe,
};

/// A file name that nothing else uses.
const TRACE: &str = ".portcullis-self-test";
/// `FUSE_SUPER_MAGIC` of statfs(2).
const FUSE: i64 = 0x6573_5546;
/// A PID that no process has: Linux stops at 4,194,304.
const NO_PROCESS: i32 = 0x7fff_fff0;

/// Permissions of the sandbox, as far as the self-test must know them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confinement {
    /// UDP sockets are allowed.
    pub(super) udp: bool,
    /// UDP sockets reach name servers only.
    pub(super) udp_ports: bool,
    /// UNIX sockets are allowed.
    pub(super) unix: bool,
    /// Processes outside cannot be signalled.
    pub(super) signals: bool,
    /// There is a `/proc`.
    pub(super) proc: bool,
    /// There is a mount at the path of each workspace.
    pub(super) mount: bool,
}

/// Results of the attempts before confinement.
#[derive(Debug)]
pub(super) struct Baseline(BTreeMap<String, String>);

/// Required result of an attempt in the finished sandbox.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequiredResult {
    /// It fails, whatever the result was before.
    Fail,
    /// It fails, and succeeded before.
    Turn,
    /// It fails with `EPERM`, the error of the system call filter.
    Filtered,
    /// It succeeds.
    Succeed,
}

struct Attempt<'a> {
    name: String,
    must: RequiredResult,
    /// True if it may be tried before confinement.
    early: bool,
    action: Box<dyn Fn() -> io::Result<()> + 'a>,
}

/// Tries every harmless action before confinement.
pub(super) fn before(spec: &Enter) -> Baseline {
    if !spec.mode.is_confined() {
        return Baseline(BTreeMap::new());
    }
    let everything = Confinement {
        udp: false,
        udp_ports: true,
        unix: true,
        signals: true,
        proc: true,
        mount: false,
    };
    let mut results: BTreeMap<_, _> = attempts(spec, &everything)
        .into_iter()
        .filter(|attempt| attempt.early)
        .map(|attempt| (attempt.name, word(&(attempt.action)())))
        .collect();
    // Here, where the host's `/proc` is visible; nothing is opened later.
    results.insert("inherited descriptors".to_owned(), word(&only_own_descriptors()));
    Baseline(results)
}

/// Tries every action in the finished sandbox.
pub(super) fn after(spec: &Enter, baseline: &Baseline, confinement: &Confinement) -> Vec<Probe> {
    let mut probes: Vec<_> = attempts(spec, confinement)
        .into_iter()
        .map(|attempt| {
            let after = (attempt.action)();
            let before = match baseline.0.get(&attempt.name) {
                Some(word) if attempt.early => word.clone(),
                _ => "-".to_owned(),
            };
            let refused_by_filter =
                after.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::PERM.raw_os_error()));
            let passed = match attempt.must {
                RequiredResult::Fail => after.is_err(),
                RequiredResult::Turn => after.is_err() && before == "ok",
                RequiredResult::Filtered => refused_by_filter,
                RequiredResult::Succeed => after.is_ok(),
            };
            Probe { name: attempt.name, before, after: word(&after), passed }
        })
        .collect();
    let descriptors = baseline.0.get("inherited descriptors").cloned().unwrap_or_default();
    probes.push(Probe {
        name: "inherited descriptors".to_owned(),
        passed: descriptors == "ok",
        before: "-".to_owned(),
        after: descriptors,
    });
    probes
}

fn attempts<'a>(spec: &'a Enter, confinement: &Confinement) -> Vec<Attempt<'a>> {
    let mut list = Attempts(Vec::new());
    places(spec, confinement, &mut list);
    powers(spec, &mut list);
    network(spec, confinement, &mut list);
    processes(spec, confinement, &mut list);
    needs(spec, confinement, &mut list);
    list.0
}

struct Attempts<'a>(Vec<Attempt<'a>>);

impl<'a> Attempts<'a> {
    fn add(
        &mut self,
        must: RequiredResult,
        early: bool,
        name: impl Into<String>,
        action: impl Fn() -> io::Result<()> + 'a,
    ) {
        self.0.push(Attempt { name: name.into(), must, early, action: Box::new(action) });
    }
}

/// Adds attempts on the workspaces, the state directory and the operator's
/// files.
fn places<'a>(spec: &'a Enter, confinement: &Confinement, list: &mut Attempts<'a>) {
    // An unprivileged user that root became first may never have had access.
    let able = spec.mode.is_root() || spec.mode.user().is_none();
    let must = if able { RequiredResult::Turn } else { RequiredResult::Fail };
    for target in &spec.targets {
        let what = &target.role;
        list.add(must, true, format!("open the {what}"), move || same(target, &target.path, true));
        if spec.mode.is_full() {
            list.add(must, true, format!("stat the {what}"), move || {
                same(target, &target.path, false)
            });
        }
        if confinement.proc {
            for root in ["/proc/self/root", "/proc/1/root", "/proc/1/cwd"] {
                let path = PathBuf::from(format!("{root}{}", target.path.display()));
                list.add(
                    RequiredResult::Fail,
                    false,
                    format!("open the {what} through {root}"),
                    move || same(target, &path, true),
                );
            }
        }
    }
    for (what, path) in spec.workspaces() {
        let trace = path.join(TRACE);
        if confinement.mount {
            // The policy may let nothing be listed.
            let name = format!("look at the {what} through its mount");
            list.add(RequiredResult::Succeed, false, name, move || {
                let facts = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE)?;
                require(FileType::from_raw_mode(facts.stx_mode.into()).is_dir())
            });
            let name = format!("have the mount of the {what} served by the gateway");
            list.add(RequiredResult::Succeed, false, name, move || {
                require(rustix::fs::statfs(path)?.f_type == FUSE)
            });
            // The gateway refuses pipes under every policy, and the name under many.
            let name = format!("be refused a pipe in the {what} through its mount");
            list.add(RequiredResult::Succeed, false, name, move || {
                let made = rustix::fs::mknodat(CWD, &trace, FileType::Fifo, FileMode::RUSR, 0);
                if made.is_ok() {
                    rustix::fs::unlink(&trace)?;
                }
                require(matches!(made, Err(Errno::PERM | Errno::ACCESS)))
            });
        } else {
            let name = format!("create a file in the {what}");
            list.add(RequiredResult::Fail, false, name, move || create(&trace));
            list.add(
                RequiredResult::Fail,
                false,
                format!("change the mode of the {what}"),
                move || Ok(rustix::fs::chmod(path, FileMode::from_raw_mode(0o755))?),
            );
        }
    }
    if !spec.mode.is_full() {
        list.add(RequiredResult::Filtered, true, "watch files", || {
            inotify::init(inotify::CreateFlags::CLOEXEC).map(drop)?;
            Ok(())
        });
    }
}

/// Adds attempts that only a privileged process can make.
fn powers(spec: &Enter, list: &mut Attempts<'_>) {
    list.add(RequiredResult::Filtered, true, "trace a process", || {
        Ok(nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(NO_PROCESS))?)
    });
    list.add(RequiredResult::Filtered, true, "unmount", || {
        Ok(unmount("/portcullis-no-such-place", UnmountFlags::NOFOLLOW)?)
    });
    list.add(RequiredResult::Filtered, true, "call unshare", || Ok(unshare(CloneFlags::empty())?));
    list.add(RequiredResult::Filtered, true, "take a descriptor of a process", || {
        let own = pidfd_open(getpid(), PidfdFlags::empty())?;
        pidfd_getfd(own, 0, PidfdGetfdFlags::empty()).map(drop)?;
        Ok(())
    });
    list.add(RequiredResult::Filtered, true, "make a program that runs as its owner", || {
        let mode = FileMode::from_raw_mode(0o4700);
        Ok(rustix::fs::chmod("/portcullis-no-such-place", mode)?)
    });
    if spec.mode.is_full() || !spec.stays_root() {
        list.add(RequiredResult::Fail, false, "become root", || {
            Ok(set_thread_uid(rustix::process::Uid::ROOT)?)
        });
    }
    list.add(RequiredResult::Fail, false, "use a capability", || {
        if capabilities::any()? { Ok(()) } else { Err(Errno::PERM.into()) }
    });
    list.add(RequiredResult::Fail, false, "take a capability back", || {
        Ok(capabilities::take_back()?)
    });
    if spec.mode.is_full() {
        list.add(RequiredResult::Fail, true, "have a capability left to regain", || {
            if capabilities::any_in_bounding_set()? { Ok(()) } else { Err(Errno::PERM.into()) }
        });
    }
    list.add(RequiredResult::Succeed, false, "have no new privileges", || require(no_new_privs()?));
    list.add(RequiredResult::Succeed, false, "have a system call filter", || {
        require(secure_computing_mode()? == SecureComputingMode::Filter)
    });
}

fn network<'a>(spec: &'a Enter, confinement: &Confinement, list: &mut Attempts<'a>) {
    let open = |family, kind, protocol: u32| {
        move || {
            let protocol = std::num::NonZeroU32::new(protocol).map(Protocol::from_raw);
            socket_with(family, kind, SocketFlags::CLOEXEC, protocol).map(drop)?;
            Ok(())
        }
    };
    if spec.udp && confinement.udp_ports {
        list.add(
            RequiredResult::Turn,
            true,
            "send UDP to a port that is not a name server's",
            || {
                let flags = SocketFlags::CLOEXEC;
                let udp = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
                Ok(connect(
                    udp,
                    &SocketAddrV4::new(Ipv4Addr::LOCALHOST, spec.self_test_targets.port),
                )?)
            },
        );
    }
    if !confinement.udp {
        list.add(
            RequiredResult::Filtered,
            true,
            "open a UDP socket",
            open(AddressFamily::INET, SocketType::DGRAM, 0),
        );
    }
    for (name, family, kind, protocol) in [
        ("an MPTCP socket", AddressFamily::INET, SocketType::STREAM, 262),
        ("a raw socket", AddressFamily::INET, SocketType::RAW, 1),
        ("a VM socket", AddressFamily::VSOCK, SocketType::STREAM, 0),
    ] {
        list.add(
            RequiredResult::Filtered,
            true,
            format!("open {name}"),
            open(family, kind, protocol),
        );
    }
    let self_test_targets = &spec.self_test_targets;
    list.add(RequiredResult::Turn, true, "connect to a UNIX socket of the host", || {
        let address = SocketAddrUnix::new(&self_test_targets.socket)?;
        connect(unix()?, &address)?;
        Ok(())
    });
    list.add(RequiredResult::Fail, true, "connect to an abstract UNIX socket of the host", || {
        let address =
            SocketAddrUnix::new_abstract_name(self_test_targets.abstract_name.as_bytes())?;
        connect(unix()?, &address)?;
        Ok(())
    });
    let must = if spec.ports.is_some() { RequiredResult::Turn } else { RequiredResult::Fail };
    list.add(must, true, "connect to a TCP port that is not allowed", || {
        Ok(connect(tcp()?, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, self_test_targets.port))?)
    });
    if spec.ports.is_some() {
        list.add(RequiredResult::Turn, true, "bind to a TCP port that is not allowed", || {
            // The permission for port 0 covers no explicit port.
            let (_, address) = bound()?;
            Ok(bind(&tcp()?, &address)?)
        });
    }
    if !confinement.unix {
        // The kernel makes a raw one a datagram one.
        for (name, kind) in [("datagram", SocketType::DGRAM), ("raw", SocketType::RAW)] {
            list.add(
                RequiredResult::Filtered,
                true,
                format!("open a UNIX {name} pair"),
                move || {
                    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map(drop)?;
                    Ok(())
                },
            );
        }
    }
}

fn processes<'a>(spec: &'a Enter, confinement: &Confinement, list: &mut Attempts<'a>) {
    if spec.mode.is_full() {
        list.add(RequiredResult::Fail, true, "see terminals of the host", || {
            for entry in
                rustix::fs::Dir::new(open(TERMINALS, OFlags::DIRECTORY, FileMode::empty())?)?
            {
                if entry?.file_name().to_bytes().iter().all(u8::is_ascii_digit) {
                    return Ok(());
                }
            }
            Err(Errno::NOENT.into())
        });
        // The host's PIDs have no meaning here; only the init started before.
        list.add(RequiredResult::Fail, false, "see the processes of the host", || {
            if getpid().as_raw_nonzero().get() == 2 { Err(Errno::SRCH.into()) } else { Ok(()) }
        });
        return;
    }
    list.add(RequiredResult::Filtered, true, "change the limits of another process", || {
        let none = Rlimit { current: None, maximum: None };
        prlimit(Pid::from_raw(NO_PROCESS), Resource::Core, none).map(drop)?;
        Ok(())
    });
    list.add(RequiredResult::Fail, true, "read the environment of the broker", || {
        let environment = format!("/proc/{}/environ", spec.self_test_targets.broker);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        open(environment, flags, FileMode::empty()).map(drop)?;
        Ok(())
    });
    if confinement.signals {
        let must =
            if spec.mode.user().is_none() { RequiredResult::Turn } else { RequiredResult::Fail };
        list.add(must, true, "signal the broker", || {
            let broker = Pid::from_raw(spec.self_test_targets.broker).ok_or(Errno::INVAL)?;
            Ok(rustix::process::test_kill_process(broker)?)
        });
    }
}

/// Adds the actions that an agent needs: a sandbox that refuses everything
/// would pass all other attempts.
fn needs<'a>(spec: &'a Enter, confinement: &Confinement, list: &mut Attempts<'a>) {
    for (name, directory) in [("home", &spec.home), ("temporary", &spec.temporary)] {
        let trace = directory.join(format!("{TRACE}-{}", getpid()));
        list.add(
            RequiredResult::Succeed,
            false,
            format!("write to the {name} directory"),
            move || create(&trace),
        );
    }
    list.add(RequiredResult::Succeed, false, "open /dev/null", || {
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, FileMode::empty()).map(drop)?;
        Ok(())
    });
    list.add(RequiredResult::Succeed, false, "get random bytes", || {
        getrandom(&mut [0_u8; 8][..], GetRandomFlags::empty()).map(drop)?;
        Ok(())
    });
    if spec.mode.is_full() {
        list.add(RequiredResult::Succeed, false, "open a pseudo-terminal", || {
            let flags = nix::fcntl::OFlag::O_RDWR | nix::fcntl::OFlag::O_NOCTTY;
            let terminal = posix_openpt(flags | nix::fcntl::OFlag::O_CLOEXEC)?;
            unlockpt(&terminal)?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            open(ptsname_r(&terminal)?, flags, FileMode::empty()).map(drop)?;
            Ok(())
        });
    }
    if spec.private_network() {
        list.add(
            RequiredResult::Succeed,
            false,
            "listen on the loopback interface and connect",
            || {
                let (server, address) = bound()?;
                listen(&server, 1)?;
                Ok(connect(tcp()?, &address)?)
            },
        );
    }
    list.add(RequiredResult::Succeed, false, "open a UNIX stream pair", || {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map(drop)?;
        Ok(())
    });
    if confinement.proc {
        list.add(RequiredResult::Succeed, false, "read /proc", || {
            open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty())
                .map(drop)?;
            Ok(())
        });
    }
}

/// Succeeds if `path` leads to `target`.
fn same(target: &Target, path: &Path, opened: bool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let facts = if opened {
        let handle = open(path, flags, FileMode::empty())?;
        statx(handle, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?
    } else {
        statx(CWD, path, AtFlags::empty(), StatxFlags::INO)?
    };
    if (facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino) == target.identity {
        Ok(())
    } else {
        // Another file has that name here.
        Err(Errno::NOENT.into())
    }
}

/// Returns the identity that [`same`] compares.
pub(super) fn identity(path: &Path) -> io::Result<(u32, u32, u64)> {
    let facts = statx(CWD, path, AtFlags::empty(), StatxFlags::INO)?;
    Ok((facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino))
}

fn create(path: &Path) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    open(path, flags, FileMode::RUSR | FileMode::WUSR).map(drop)?;
    Ok(rustix::fs::unlink(path)?)
}

fn tcp() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Returns a socket bound to a port of 127.0.0.1 that the kernel picks.
fn bound() -> io::Result<(OwnedFd, SocketAddrV4)> {
    let socket = tcp()?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    let address = getsockname(&socket)?.try_into().map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, address))
}

fn unix() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Checks that every descriptor above the standard streams closes when the
/// agent is executed; the streams themselves are replaced then.
fn only_own_descriptors() -> io::Result<()> {
    for number in process::open_descriptors()?.into_iter().filter(|n| *n > 2) {
        let path = format!("/proc/self/fdinfo/{number}");
        let info = match open(path, OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty()) {
            Ok(info) => info,
            // The descriptor that listed the others.
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(e.into()),
        };
        let mut text = String::new();
        io::Read::read_to_string(&mut std::fs::File::from(info), &mut text)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
        require(flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() != 0))?;
    }
    Ok(())
}

fn require(holds: bool) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn word(result: &io::Result<()>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(e) => match e.raw_os_error() {
            Some(number) => nix::errno::Errno::from_raw(number).to_string(),
            None => e.to_string(),
        },
    }
}
