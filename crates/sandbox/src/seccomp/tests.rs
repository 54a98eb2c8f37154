use super::*;

const FULL: Purpose = Purpose::Agent {
    udp: false,
    unix: true,
    internet: true,
    listen: true,
    metadata: false,
    affinity: true,
};
const PARTIAL: Purpose = Purpose::Agent {
    udp: false,
    unix: false,
    internet: true,
    listen: false,
    metadata: true,
    affinity: true,
};

/// True if the filter for `purpose` refuses a call: executes the program as the kernel would
/// (Documentation/networking/filter.rst).
fn refuses(purpose: Purpose, call: i64, arguments: &[u64]) -> bool {
    let mut data = [0; 64];
    data[..4].copy_from_slice(&i32::try_from(call).unwrap().to_le_bytes());
    let arch: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (at, argument) in arguments.iter().enumerate() {
        data[16 + at * 8..][..8].copy_from_slice(&argument.to_le_bytes());
    }
    programs(purpose).unwrap().iter().any(|program| {
        let (mut at, mut word) = (0, 0_u32);
        loop {
            let step = &program[at];
            at += 1;
            let jump = match step.code {
                0x20 => {
                    let bytes = data[step.k as usize..][..4].try_into().unwrap();
                    word = u32::from_le_bytes(bytes);
                    continue;
                }
                0x54 => {
                    word &= step.k;
                    continue;
                }
                0x05 => {
                    at += step.k as usize;
                    continue;
                }
                0x06 => return step.k != u32::from(SeccompAction::Allow),
                0x15 => word == step.k,
                0x25 => word > step.k,
                0x35 => word >= step.k,
                code => panic!("{code:#x}"),
            };
            at += usize::from(if jump { step.jt } else { step.jf });
        }
    })
}

#[test]
fn partly_confined_no_other_process_gets_other_limits_or_priorities() {
    let others = 4321;
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
    ] {
        assert!(refuses(PARTIAL, call, &[others]), "{call}");
        assert!(!refuses(PARTIAL, call, &[0]), "{call}");
        assert!(!refuses(FULL, call, &[others]), "{call}");
    }
    for (call, process, user) in [(libc::SYS_setpriority, 0, 2), (libc::SYS_ioprio_set, 1, 3)] {
        assert!(refuses(PARTIAL, call, &[process, others]), "{call}");
        assert!(refuses(PARTIAL, call, &[user, 0]), "{call}");
        assert!(!refuses(PARTIAL, call, &[process, 0]), "{call}");
    }
}

/// A closed socket lingered in the process that closed it last: the gateway process, to which it
/// was sent.
#[test]
fn an_agent_has_no_socket_linger() {
    let option = |number: i32| [3, 1, number.unsigned_abs().into()];
    for purpose in [FULL, PARTIAL] {
        assert!(refuses(purpose, libc::SYS_setsockopt, &option(libc::SO_LINGER)));
        assert!(!refuses(purpose, libc::SYS_setsockopt, &option(libc::SO_KEEPALIVE)));
        // The same number at another level.
        let other = [3, 6, libc::SO_LINGER.unsigned_abs().into()];
        assert!(!refuses(purpose, libc::SYS_setsockopt, &other));
    }
}

#[test]
fn no_socket_of_a_pair_can_send_to_sockets_of_the_host() {
    let flags = u64::from(libc::SOCK_CLOEXEC.cast_unsigned());
    for kind in 0..16 {
        let given = matches!(kind, 1 | 5);
        assert_eq!(!refuses(PARTIAL, libc::SYS_socketpair, &[1, kind]), given, "{kind}");
        assert_eq!(!refuses(PARTIAL, libc::SYS_socketpair, &[1, kind | flags]), given);
        assert!(!refuses(FULL, libc::SYS_socketpair, &[1, kind]), "{kind}");
    }
    assert!(!refuses(Purpose::Relay, libc::SYS_socketpair, &[1, 1]));
    assert!(refuses(Purpose::Relay, libc::SYS_socketpair, &[1, 2]));
    assert!(refuses(Purpose::Gateway, libc::SYS_socketpair, &[1, 1]));
    for family in [2, 16, 30, 40] {
        assert!(refuses(PARTIAL, libc::SYS_socketpair, &[family, 1]), "{family}");
        assert!(refuses(FULL, libc::SYS_socketpair, &[family, 1]), "{family}");
    }
}

/// Regression: through a descriptor open for reading, an agent changed flags of what it may only
/// read, and kept others from opening it.
#[test]
fn a_descriptor_for_reading_changed_flags_and_held_leases() {
    let changing = [
        0x4008_6602_u64, // FS_IOC_SETFLAGS
        0x4004_6602,     // the same of 32 bits
        0x401c_5820,     // FS_IOC_FSSETXATTR
        0x4080_6685,     // FS_IOC_ENABLE_VERITY
        0x800c_6613,     // FS_IOC_SET_ENCRYPTION_POLICY
        0x4008_7602,     // FS_IOC_SETVERSION
        0x4004_7211,     // FAT_IOCTL_SET_ATTRIBUTES
        0x5000_940e,     // BTRFS_IOC_SUBVOL_CREATE
        0xc004_5877,     // FIFREEZE
        0,
        u64::from(u32::MAX),
    ];
    for request in changing {
        assert!(refuses(PARTIAL, libc::SYS_ioctl, &[3, request]), "{request:#x}");
        // Read-only mounts protect the files there.
        assert!(!refuses(FULL, libc::SYS_ioctl, &[3, request]), "{request:#x}");
    }
    let used = [
        0x5401_u64,  // TCGETS
        0x5413,      // TIOCGWINSZ
        0x541b,      // FIONREAD
        0x5421,      // FIONBIO
        0x5451,      // FIOCLEX
        0x8910,      // SIOCGIFNAME
        0x802c_542a, // TCGETS2
        0x4004_9409, // FICLONE
        0x4020_940d, // FICLONERANGE
        0x8008_6601, // FS_IOC_GETFLAGS
        0x801c_581f, // FS_IOC_FSGETXATTR
        0xc020_660b, // FS_IOC_FIEMAP
    ];
    for request in used {
        assert!(!refuses(PARTIAL, libc::SYS_ioctl, &[3, request]), "{request:#x}");
    }
    assert!(refuses(PARTIAL, libc::SYS_ioctl, &[3, 0x5412]), "TIOCSTI");
    for purpose in [PARTIAL, FULL] {
        // F_SETLEASE, and F_GETDELEG and F_SETDELEG of Linux 6.19.
        for command in [1024, 1039, 1040, 1041, u64::from(u32::MAX)] {
            assert!(refuses(purpose, libc::SYS_fcntl, &[3, command, 0]), "{command}");
        }
        for command in [0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1025, 1030, 1031, 1033, 1038] {
            assert!(!refuses(purpose, libc::SYS_fcntl, &[3, command]), "{command}");
        }
    }
}

/// Databases of the host got none where an agent took all.
#[test]
fn huge_pages_of_the_machine_are_out_of_reach() {
    for purpose in [PARTIAL, FULL] {
        assert!(refuses(purpose, libc::SYS_mmap, &[0, 1 << 21, 3, 0x4_0022]));
        assert!(!refuses(purpose, libc::SYS_mmap, &[0, 1 << 21, 3, 0x22]));
        assert!(refuses(purpose, libc::SYS_memfd_create, &[0, 5]));
        assert!(!refuses(purpose, libc::SYS_memfd_create, &[0, 1]));
        assert!(refuses(purpose, libc::SYS_shmget, &[0, 1 << 21, 0o4600]));
    }
    assert!(!refuses(FULL, libc::SYS_shmget, &[0, 1 << 21, 0o1600]));
}

#[test]
fn memory_and_queues_of_other_processes_are_out_of_reach() {
    for call in [libc::SYS_shmget, libc::SYS_msgsnd, libc::SYS_semop, libc::SYS_mq_open] {
        assert!(refuses(PARTIAL, call, &[]), "{call}");
        assert!(!refuses(FULL, call, &[]), "{call}");
    }
}

#[test]
fn one_of_several_gateways_changes_neither_times_nor_priorities_of_others() {
    for purpose in [Purpose::Worker, Purpose::Front, Purpose::Relay] {
        assert!(refuses(purpose, libc::SYS_utimensat, &[]));
        assert!(refuses(purpose, libc::SYS_sched_setparam, &[]));
        assert!(refuses(purpose, libc::SYS_shmget, &[]));
        for (call, process) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
            assert!(refuses(purpose, call, &[process, 4321]));
            assert!(!refuses(purpose, call, &[process, 0]));
        }
        let own = u64::from(std::process::id());
        assert!(!refuses(purpose, libc::SYS_prlimit64, &[own]));
        assert!(refuses(purpose, libc::SYS_prlimit64, &[own + 1]));
    }
}

#[test]
fn an_agent_makes_no_program_that_runs_as_its_owner() {
    let (create, unnamed, truncate) =
        (libc::O_CREAT as u64, libc::O_TMPFILE as u64, libc::O_TRUNC as u64);
    for bit in [0o4000, 0o2000] {
        assert!(refuses(FULL, libc::SYS_fchmod, &[3, 0o755 | bit]));
        assert!(refuses(FULL, libc::SYS_fchmodat, &[3, 1, 0o755 | bit]));
        assert!(refuses(FULL, 452, &[3, 1, 0o755 | bit]));
        assert!(refuses(FULL, libc::SYS_mknodat, &[3, 1, 0o100_755 | bit]));
        assert!(refuses(FULL, libc::SYS_openat, &[3, 1, create | 1, 0o755 | bit]));
        assert!(refuses(FULL, libc::SYS_openat, &[3, 1, unnamed | 1, 0o755 | bit]));
        // Without those flags the kernel ignores the mode.
        assert!(!refuses(FULL, libc::SYS_openat, &[3, 1, truncate, 0o755 | bit]));
    }
    assert!(!refuses(FULL, libc::SYS_fchmod, &[3, 0o1777]));
    assert!(!refuses(FULL, libc::SYS_fchmodat, &[3, 1, 0o755]));
    assert!(!refuses(FULL, libc::SYS_openat, &[3, 1, create | truncate, 0o666]));
    assert!(refuses(FULL, libc::SYS_openat2, &[]));
    assert!(refuses(PARTIAL, libc::SYS_fchmod, &[3, 0o755]));
    assert!(!refuses(Purpose::Worker, libc::SYS_openat2, &[]));
}

/// An agent took all contexts of the machine (`fs.aio-max-nr`), and databases of other
/// users failed.
#[test]
fn nobody_behind_a_gateway_has_a_context_of_asynchronous_io() {
    for purpose in
        [FULL, PARTIAL, Purpose::Gateway, Purpose::Worker, Purpose::Front, Purpose::Relay]
    {
        assert!(refuses(purpose, libc::SYS_io_setup, &[128, 1]), "{purpose:?}");
    }
}

#[test]
fn processors_that_are_limited_are_not_changed() {
    for affinity in [true, false] {
        let purpose = Purpose::Agent {
            udp: false,
            unix: true,
            internet: true,
            listen: true,
            metadata: false,
            affinity,
        };
        assert_eq!(refuses(purpose, libc::SYS_sched_setaffinity, &[0]), !affinity);
    }
}

#[test]
fn every_filter_compiles_and_fits() {
    for udp in [true, false] {
        for metadata in [true, false] {
            let purpose = Purpose::Agent {
                udp,
                unix: !metadata,
                internet: true,
                listen: false,
                metadata,
                affinity: true,
            };
            let program = compile(refused(purpose).unwrap(), libc::EPERM).unwrap();
            assert!(program.len() < 1500, "{}", program.len());
        }
    }
    for purpose in
        [Purpose::Gateway, Purpose::Worker, Purpose::Front, Purpose::Relay, Purpose::Connector]
    {
        compile(refused(purpose).unwrap(), libc::EPERM).unwrap();
    }
    compile(of(syscalls::MISSING), libc::ENOSYS).unwrap();
    compile(other_requests().unwrap(), libc::ENOTTY).unwrap();
}

#[test]
fn a_connector_connects_and_serves_nobody() {
    let connector = Purpose::Connector;
    let (stream, datagram, raw) =
        (libc::SOCK_STREAM as u64, libc::SOCK_DGRAM as u64, libc::SOCK_RAW as u64);
    for family in [libc::AF_INET as u64, libc::AF_INET6 as u64] {
        assert!(!refuses(connector, libc::SYS_socket, &[family, stream, 0]));
        assert!(!refuses(connector, libc::SYS_socket, &[family, datagram, 0]));
        assert!(refuses(connector, libc::SYS_socket, &[family, raw, 0]));
        assert!(refuses(connector, libc::SYS_socket, &[family, stream, 262]));
    }
    for family in [libc::AF_UNIX, libc::AF_VSOCK, libc::AF_PACKET] {
        assert!(refuses(connector, libc::SYS_socket, &[family as u64, stream, 0]), "{family}");
    }
    assert!(!refuses(connector, libc::SYS_connect, &[]));
    for call in [
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_execve,
        libc::SYS_kill,
        libc::SYS_ptrace,
        libc::SYS_memfd_create,
    ] {
        assert!(refuses(connector, call, &[]), "{call}");
    }
    // The egress process makes no connections.
    for call in [libc::SYS_socket, libc::SYS_connect, libc::SYS_openat, libc::SYS_execve] {
        assert!(refuses(Purpose::Front, call, &[libc::AF_INET as u64, stream]), "{call}");
    }
    assert!(!refuses(Purpose::Front, libc::SYS_accept4, &[]));
}

#[test]
fn a_confined_program_starts_no_process_and_has_no_socket() {
    let program = Purpose::Program;
    let (thread, vfork) = (libc::CLONE_THREAD as u64, libc::CLONE_VFORK as u64);
    assert!(refuses(program, libc::SYS_clone, &[0]));
    assert!(refuses(program, libc::SYS_clone, &[vfork | 17]));
    assert!(refuses(program, libc::SYS_clone3, &[]));
    assert!(!refuses(program, libc::SYS_clone, &[thread]));
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_VSOCK] {
        assert!(refuses(program, libc::SYS_socket, &[family as u64, 1]), "{family}");
    }
    let calls = [syscalls::FORK, syscalls::METADATA, syscalls::IPC, syscalls::OTHERS];
    for call in calls.into_iter().flatten() {
        assert!(refuses(program, *call, &[]), "{call}");
    }
    assert!(refuses(program, libc::SYS_tgkill, &[1]));
    assert!(!refuses(program, libc::SYS_tgkill, &[u64::from(std::process::id())]));
    // The process that confined itself executes the program.
    assert!(!refuses(program, libc::SYS_execve, &[]));
    compile(refused(program).unwrap(), libc::EPERM).unwrap();
}
