//! The self-test of the confined child, in the process that becomes the agent:
//! every action is tried before and after confinement, so that a refusal means
//! something, and the actions that the agent needs are tried too.
//!
//! It changes nothing outside the agent's own directories. io_uring and
//! io_setup have no safe wrapper to try them with; a filter installed beside
//! the tested one that refuses ptrace reports them as not implemented.

use std::{collections::BTreeMap, io};

use nix::{
    pty::{posix_openpt, ptsname_r, unlockpt},
    sched::{CloneFlags, unshare},
};
use rustix::{
    fs::{
        AtFlags, CWD, Mode as FileMode, OFlags, Timespec, Timestamps, UTIME_NOW, open, utimensat,
    },
    io::Errno,
    mount::{UnmountFlags, unmount},
    net::{AddressFamily, SocketFlags, SocketType, connect, listen, socketpair},
    process::{
        Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, pidfd_getfd, pidfd_open,
        prlimit,
    },
    rand::{GetRandomFlags, getrandom},
    thread::{SecureComputingMode, no_new_privs, secure_computing_mode, set_thread_uid},
};

pub(super) use self::{attempt::Confinement, paths::identity};
use self::{
    attempt::{Attempt, Attempts, RequiredResult, TRACE, create, require},
    network::{bound, tcp},
};
use super::{capabilities, layout::TERMINALS, messages::Enter, process, spec::Probe};

mod attempt;
mod network;
mod paths;

/// A PID that no process has: Linux stops at 4,194,304.
const NO_PROCESS: i32 = 0x7fff_fff0;

/// Results of the attempts before confinement.
#[derive(Debug)]
pub(super) struct Baseline(BTreeMap<String, String>);

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
                RequiredResult::BecomeRefused => after.is_err() && before == "ok",
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
    paths::add(spec, confinement, &mut list);
    powers(spec, &mut list);
    network::add(spec, confinement, &mut list);
    processes(spec, confinement, &mut list);
    needs(spec, confinement, &mut list);
    list.0
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
    if spec.mode.is_full() {
        list.add(RequiredResult::Fail, false, "change the times of a device", || {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            Ok(utimensat(CWD, "/dev/null", &times, AtFlags::empty())?)
        });
    }
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
        let must = if spec.mode.user().is_none() {
            RequiredResult::BecomeRefused
        } else {
            RequiredResult::Fail
        };
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

fn word(result: &io::Result<()>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(e) => match e.raw_os_error() {
            Some(number) => nix::errno::Errno::from_raw(number).to_string(),
            None => e.to_string(),
        },
    }
}
