//! Seccomp: restricts the system calls that a process may still make.
//!
//! The filters are small: one refuses by number and argument (`EPERM`); one reports calls as not
//! implemented whose callers then fall back to calls that can be checked (`ENOSYS`); and one does
//! the same for every number newer than the reviewed ones, and for the x32 numbers. The filters are
//! installed after everything that needs the refused calls.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

use super::syscalls;

/// The newest system call that was reviewed for this file: `file_setattr`,
/// Linux 6.17. Every architecture uses the same numbers above 424.
const NEWEST_REVIEWED: u32 = 469;

/// The newest command of fcntl(2) that was reviewed, `F_SET_FILE_RW_HINT`. `F_SETDELEG` of Linux
/// 6.19, which is as `F_SETLEASE`, is not much newer.
const NEWEST_FCNTL: i32 = 1038;

/// `MFD_HUGETLB` of memfd_create(2), whose type differs from that of other flags.
const HUGE_FILE: i32 = 4;

/// `CLONE_NEW*` flags that clone(2) takes.
const NAMESPACE_FLAGS: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// `PRIO_USER` of setpriority(2) and `IOPRIO_WHO_USER` of ioprio_set(2), whose
/// types differ from library to library: all processes of a user.
const PRIORITIES: [(i64, i32); 2] = [(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)];

/// The mode bits of a program that runs as its owner or as its group.
const SET_IDS: [i32; 2] = [0o4000, 0o2000];

/// The flags of open(2) that make a file, without `O_DIRECTORY`, which is part
/// of `O_TMPFILE`.
const MAKING: [i32; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Purpose of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The agent's sandbox.
    Agent {
        /// UDP sockets are allowed, for name resolution.
        udp: bool,
        /// UNIX sockets are allowed: no socket of the host is reachable.
        unix: bool,
        /// Internet sockets are allowed.
        internet: bool,
        /// Sockets may listen: nobody outside can connect, or Landlock restricts
        /// the ports.
        listen: bool,
        /// Calls that Landlock does not cover and that reach files by path are refused: the sandbox
        /// has no root directory of its own.
        metadata: bool,
        /// The processors that a process may run on may be changed.
        affinity: bool,
    },
    /// A program of the system that processes untrusted data: no sockets, no other processes.
    Program,
    /// The gateway process and other processes that serve: no programs, no sockets.
    Gateway,
    /// A worker: as the gateway process, and no call that reaches another's files or processes past
    /// Landlock.
    Worker,
    /// A process that serves by its open descriptors: as a worker, and no paths at all.
    Front,
    /// The filter of a front process that may also make pairs of connected sockets.
    Relay,
    /// A process that connects to addresses of the network and serves nothing: no programs, no
    /// other sockets.
    Connector,
}

/// Purpose of an agent that reaches nothing: a program's restrictions include these.
const ALONE: Purpose = Purpose::Agent {
    udp: false,
    unix: false,
    internet: false,
    listen: false,
    metadata: true,
    affinity: true,
};

/// A filter could not be made or installed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeccompError {
    /// The library refused the rules.
    #[error("cannot compile the system call filter: {0}")]
    Compile(#[from] seccompiler::BackendError),
    /// The kernel refused the filter.
    #[error("cannot install the system call filter: {0}")]
    Install(#[from] seccompiler::Error),
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Restricts the calling thread; the process must have no other thread.
pub(super) fn restrict(purpose: Purpose) -> Result<(), SeccompError> {
    // All filters are compiled before any is installed.
    for program in &programs(purpose)? {
        apply_filter(program)?;
    }
    Ok(())
}

/// Returns the filters in the order in which they are installed: the last one decides between two
/// different error numbers.
fn programs(purpose: Purpose) -> Result<Vec<BpfProgram>, SeccompError> {
    let mut programs = vec![newest(), compile(of(syscalls::MISSING), libc::ENOSYS)?];
    if matches!(purpose, Purpose::Agent { .. } | Purpose::Program) {
        programs.push(compile(of(syscalls::MISSING_TO_AGENTS), libc::ENOSYS)?);
        programs.push(compile(of(syscalls::PIPE_LOCKING), libc::EINVAL)?);
    }
    if matches!(purpose, Purpose::Agent { metadata: true, .. } | Purpose::Program) {
        programs.push(compile(of(syscalls::EXTENDED_ATTRIBUTES), libc::EOPNOTSUPP)?);
        programs.push(compile(other_requests()?, libc::ENOTTY)?);
    }
    programs.push(compile(refused(purpose)?, libc::EPERM)?);
    Ok(programs)
}

fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, SeccompError> {
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?;
    Ok(BpfProgram::try_from(filter)?)
}

/// Returns a filter with a range check, which the library does not have: `if nr > NEWEST_REVIEWED
/// return ENOSYS`. The x32 numbers have bit 30 set. The other filters check the architecture.
fn newest() -> BpfProgram {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_GREATER, 0, 1, NEWEST_REVIEWED),
        step(RETURN, 0, 0, u32::from(SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))),
        step(RETURN, 0, 0, u32::from(SeccompAction::Allow)),
    ]
}

fn of(numbers: &[i64]) -> Rules {
    numbers.iter().map(|n| (*n, Vec::new())).collect()
}

fn refused(purpose: Purpose) -> Result<Rules, SeccompError> {
    if purpose == Purpose::Program {
        let mut rules = refused(ALONE)?;
        rules.extend(of(syscalls::FORK));
        rules.extend(of(syscalls::OTHERS));
        rules.extend(own_threads()?);
        // A thread, but no process.
        rules.entry(libc::SYS_clone).or_default().push(rule([bits(0, libc::CLONE_THREAD, 0)])?);
        return Ok(rules);
    }
    let mut rules = of(syscalls::REFUSED);
    let mut clone = Vec::new();
    for flag in NAMESPACE_FLAGS {
        clone.push(rule([bits(0, flag, flag)])?);
    }
    rules.insert(
        libc::SYS_personality,
        // Allowed: the query (0xffffffff), Linux itself, and no address randomisation, as debuggers
        // request it.
        vec![rule([not(0, 0), not(0, 0x0004_0000), not(0, -1)])?],
    );
    rules.insert(
        libc::SYS_ioctl,
        // `TIOCSTI` and `TIOCLINUX` type into a terminal; `TIOCSETD` has the kernel load rarely
        // used line disciplines.
        vec![rule([is(1, 0x5412)])?, rule([is(1, 0x541c)])?, rule([is(1, 0x5423)])?],
    );
    match purpose {
        Purpose::Agent { udp, unix, internet, listen, metadata, affinity } => {
            rules.insert(libc::SYS_socket, sockets(udp, unix, internet)?);
            for (call, argument) in
                [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)]
            {
                rules.insert(
                    call,
                    vec![rule([bits(argument, libc::MSG_FASTOPEN, libc::MSG_FASTOPEN)])?],
                );
            }
            rules.insert(
                libc::SYS_setsockopt,
                vec![
                    rule([is(1, libc::IPPROTO_TCP), is(2, libc::TCP_FASTOPEN_CONNECT)])?,
                    // An upper layer such as SMC replaces the protocol that Landlock checks.
                    rule([is(1, libc::IPPROTO_TCP), is(2, libc::TCP_ULP)])?,
                    // The process that closes the socket last waits, even one to which it was sent.
                    rule([is(1, libc::SOL_SOCKET), is(2, libc::SO_LINGER)])?,
                ],
            );
            rules.insert(libc::SYS_socketpair, pairs(unix)?);
            // A process that opens the file then waits, even outside the sandbox.
            rules.insert(
                libc::SYS_fcntl,
                vec![
                    rule([is(1, libc::F_SETLEASE)])?,
                    rule([condition(1, SeccompCmpOp::Gt, NEWEST_FCNTL.into())])?,
                ],
            );
            // The machine has a fixed number of such pages, reserved for other programs.
            rules.insert(
                libc::SYS_mmap,
                vec![rule([bits(3, libc::MAP_HUGETLB, libc::MAP_HUGETLB)])?],
            );
            rules.insert(libc::SYS_memfd_create, vec![rule([bits(1, HUGE_FILE, HUGE_FILE)])?]);
            rules.insert(
                libc::SYS_shmget,
                vec![rule([bits(2, libc::SHM_HUGETLB, libc::SHM_HUGETLB)])?],
            );
            rules.extend(set_ids()?);
            if !listen {
                rules.insert(libc::SYS_listen, Vec::new());
            }
            // A socket of a pair could take an abstract name, which programs of the host need.
            if !unix && !internet {
                rules.insert(libc::SYS_bind, Vec::new());
            }
            if metadata {
                rules.extend(of(syscalls::METADATA));
                rules.extend(of(syscalls::OLD_METADATA));
                rules.extend(of(syscalls::IPC));
                rules.extend(only_itself()?);
            }
            if !affinity {
                rules.insert(libc::SYS_sched_setaffinity, Vec::new());
            }
        }
        Purpose::Program
        | Purpose::Gateway
        | Purpose::Worker
        | Purpose::Front
        | Purpose::Relay
        | Purpose::Connector => {
            rules.extend(of(syscalls::GATEWAY));
            // A thread, but no process.
            clone.push(rule([bits(0, libc::CLONE_THREAD, 0)])?);
        }
    }
    if matches!(purpose, Purpose::Worker | Purpose::Front | Purpose::Relay | Purpose::Connector) {
        rules.extend(of(syscalls::IPC));
        rules.extend(only_itself()?);
        rules.extend(of(syscalls::OTHERS));
        rules.extend(of(syscalls::OLD_METADATA));
        rules.extend(own_threads()?);
    }
    if matches!(purpose, Purpose::Front | Purpose::Relay) {
        rules.extend(of(syscalls::PATHS));
    }
    if purpose == Purpose::Relay {
        rules.insert(libc::SYS_socketpair, pairs(false)?);
    }
    if purpose == Purpose::Connector {
        // Datagrams are for name servers.
        rules.insert(libc::SYS_socket, sockets(true, false, true)?);
        rules.remove(&libc::SYS_connect);
        // The resolver's socket of netlink(7) is bound.
        rules.remove(&libc::SYS_bind);
        rules.insert(libc::SYS_accept4, Vec::new());
    }
    rules.insert(libc::SYS_clone, clone);
    Ok(rules)
}

/// Refuses signals to threads and limits of other processes. The process's own threads get some, as
/// in a panic.
fn own_threads() -> Result<Rules, SeccompError> {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    Ok(Rules::from([
        (libc::SYS_tgkill, vec![rule([not(0, own)])?]),
        (libc::SYS_prlimit64, vec![rule([not(0, 0), not(0, own)])?]),
    ]))
}

/// Refuses to make a set-user-ID or set-group-ID file: the sandbox ignores such bits, but the host,
/// where a granted directory remains, does not.
fn set_ids() -> Result<Rules, SeccompError> {
    let mut rules = Rules::new();
    for (call, mode) in syscalls::MODES {
        let refused = SET_IDS.map(|bit| rule([bits(*mode, bit, bit)]));
        rules.insert(*call, refused.into_iter().collect::<Result<_, _>>()?);
    }
    for (call, flags) in syscalls::MODES_AFTER_FLAGS {
        let mut refused = Vec::new();
        for (making, bit) in MAKING.into_iter().flat_map(|m| SET_IDS.map(|bit| (m, bit))) {
            refused.push(rule([bits(*flags, making, making), bits(*flags + 1, bit, bit)])?);
        }
        rules.insert(*call, refused);
    }
    Ok(rules)
}

/// Refuses every request of ioctl(2) that is not listed, where Landlock does not cover them. Many
/// change a file's metadata through a descriptor that is open for reading.
fn other_requests() -> Result<Rules, SeccompError> {
    let mut rules = Vec::new();
    let mut next = 0;
    for (first, last) in syscalls::REQUESTS {
        if let Some(before) = first.checked_sub(1).filter(|before| *before >= next) {
            rules.push(rule([
                condition(1, SeccompCmpOp::Ge, next.into()),
                condition(1, SeccompCmpOp::Le, before.into()),
            ])?);
        }
        next = last.saturating_add(1);
    }
    rules.push(rule([condition(1, SeccompCmpOp::Ge, next.into())])?);
    Ok(Rules::from([(libc::SYS_ioctl, rules)]))
}

/// Refuses to change the limits and the priority of any process but the caller, which Landlock does
/// not cover. Another thread of the caller is refused, too: the filter cannot distinguish it from
/// another process.
fn only_itself() -> Result<Rules, SeccompError> {
    let mut rules = Rules::new();
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
    ] {
        rules.insert(call, vec![rule([not(0, 0)])?]);
    }
    // The number 0 also means all of the user's processes.
    for (call, user) in PRIORITIES {
        rules.insert(call, vec![rule([not(1, 0)])?, rule([is(0, user)])?]);
    }
    Ok(rules)
}

/// Returns the refusals of socket(2): every family, type and protocol but the few that are known to
/// be harmless or that Landlock checks.
fn sockets(udp: bool, unix: bool, internet: bool) -> Result<Vec<SeccompRule>, SeccompError> {
    let mut families = vec![libc::AF_NETLINK];
    if unix {
        families.push(libc::AF_UNIX);
    }
    if internet {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    let mut rules = vec![
        SeccompRule::new(families.into_iter().map(|f| not(0, f)).collect::<Result<_, _>>()?)?,
        // Of netlink, only the protocol that lists interfaces and routes is allowed.
        rule([is(0, libc::AF_NETLINK), not(2, libc::NETLINK_ROUTE)])?,
    ];
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut kind = |condition| -> Result<(), SeccompError> {
            rules.push(rule([is(0, family), condition])?);
            Ok(())
        };
        // Types are numbers in the low four bits: SOCK_STREAM is 1,
        // SOCK_DGRAM is 2, and everything else is refused bit by bit.
        kind(bits(1, 0b1000, 0b1000))?;
        kind(bits(1, 0b0100, 0b0100))?;
        kind(bits(1, 0b0011, 0b0011))?;
        kind(bits(1, 0b0011, 0b0000))?;
        if !udp {
            kind(bits(1, 0b0011, libc::SOCK_DGRAM))?;
        }
        for (kind, protocol) in
            [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)]
        {
            rules.push(rule([is(0, family), bits(1, 0b0011, kind), not(2, 0), not(2, protocol)])?);
        }
    }
    Ok(rules)
}

/// Returns the refusals of socketpair(2): every family but UNIX, and without UNIX sockets every
/// type but streams and sequences of packets (1 and 5). A datagram socket of a pair can still send
/// to any address, and the kernel makes a raw one a datagram one.
fn pairs(unix: bool) -> Result<Vec<SeccompRule>, SeccompError> {
    let mut rules = vec![rule([not(0, libc::AF_UNIX)])?];
    if !unix {
        rules.push(rule([bits(1, 0b1000, 0b1000)])?);
        rules.push(rule([bits(1, 0b0010, 0b0010)])?);
        rules.push(rule([bits(1, 0b0001, 0b0000)])?);
    }
    Ok(rules)
}

type Condition = Result<SeccompCondition, seccompiler::BackendError>;

fn rule<const N: usize>(conditions: [Condition; N]) -> Result<SeccompRule, SeccompError> {
    let conditions = conditions.into_iter().collect::<Result<_, _>>()?;
    Ok(SeccompRule::new(conditions)?)
}

fn is(argument: u8, value: i32) -> Condition {
    condition(argument, SeccompCmpOp::Eq, value.into())
}

fn not(argument: u8, value: impl Into<i64>) -> Condition {
    condition(argument, SeccompCmpOp::Ne, value.into())
}

/// `argument & mask == value`
fn bits(argument: u8, mask: i32, value: i32) -> Condition {
    condition(argument, SeccompCmpOp::MaskedEq(u64::from(mask.cast_unsigned())), value.into())
}

/// Compares the low word: all checked arguments are `int` or flags in it.
fn condition(argument: u8, operator: SeccompCmpOp, value: i64) -> Condition {
    let low = u64::from_le_bytes(value.to_le_bytes()) & 0xffff_ffff;
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, low)
}

#[cfg(test)]
#[path = "seccomp/tests.rs"]
mod tests;
