//! Lists of system calls, by the reason for refusing them.

use nix::libc;

/// Calls that are reported as not implemented, so that callers fall back to calls that can be
/// checked: io_uring does file and network operations that no filter sees; clone3 takes its flags
/// from memory; and the contexts of asynchronous I/O are counted for the whole machine
/// (`fs.aio-max-nr`), so that one process could take them all.
pub(super) const MISSING: &[i64] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_clone3,
    libc::SYS_io_setup,
];

/// Calls reported as not implemented to agents: openat2 takes the mode of a new file from memory,
/// and callers fall back to openat.
pub(super) const MISSING_TO_AGENTS: &[i64] = &[libc::SYS_openat2];

/// Calls that keep a pipe locked while they wait for something else: a process that reads from it,
/// writes to it or closes it then cannot be stopped, SIGKILL included. They are reported as invalid
/// for the descriptor, and callers fall back to read and write.
pub(super) const PIPE_LOCKING: &[i64] =
    &[libc::SYS_splice, libc::SYS_vmsplice, libc::SYS_tee, libc::SYS_sendfile];

/// Calls that take a file's mode, each with the index of that argument. Not mkdir, where the kernel
/// itself clears set-ID bits.
pub(super) const MODES: &[(i64, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2), // fchmodat2
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
];

/// Calls that take a mode only with flags that make a file, each with the index of the flags; the
/// mode is the next argument.
pub(super) const MODES_AFTER_FLAGS: &[(i64, u8)] = &[
    (libc::SYS_openat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
];

/// Extended attributes, which Landlock does not cover; programs handle "not supported" as on a file
/// system without them.
pub(super) const EXTENDED_ATTRIBUTES: &[i64] = &[
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    // setxattrat, getxattrat, listxattrat, removexattrat, file_getattr and
    // file_setattr, on every architecture.
    463,
    464,
    465,
    466,
    468,
    469,
];

/// Requests of ioctl(2) that an agent without a root directory of its own may make, as ranges in
/// order: of terminals, descriptors and sockets, and those that describe or copy a file.
pub(super) const REQUESTS: &[(u32, u32)] = &[
    (0x5400, 0x54ff),           // terminals, FIONREAD, FIONBIO, FIOCLEX
    (0x8900, 0x89ff),           // sockets
    (0x4004_9409, 0x4004_9409), // FICLONE
    (0x4020_940d, 0x4020_940d), // FICLONERANGE
    (0x402c_542b, 0x402c_542d), // TCSETS2, TCSETSW2, TCSETSF2
    (0x8004_6601, 0x8004_6601), // FS_IOC32_GETFLAGS
    (0x8008_6601, 0x8008_6601), // FS_IOC_GETFLAGS
    (0x801c_581f, 0x801c_581f), // FS_IOC_FSGETXATTR
    (0x802c_542a, 0x802c_542a), // TCGETS2
    (0xc020_660b, 0xc020_660b), // FS_IOC_FIEMAP
];

/// Calls that neither agents nor gateway processes need.
pub(super) const REFUSED: &[i64] = &[
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    467, // open_tree_attr
    // Namespaces.
    libc::SYS_unshare,
    libc::SYS_setns,
    // Other processes' memory and descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Files by handle, which no path check sees, and notifications.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Keyrings are shared across namespaces.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Kernel interfaces that were often exploited.
    libc::SYS_userfaultfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// Older calls, of x86-64 only, that change a file's metadata by path.
#[cfg(target_arch = "x86_64")]
pub(super) const OLD_METADATA: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLD_METADATA: &[i64] = &[];

/// Calls that reach a file's metadata by path and that Landlock does not cover, besides
/// [`OLD_METADATA`]; refused where the sandbox has no root directory of its own.
pub(super) const METADATA: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    452, // fchmodat2
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_inotify_init,
];

/// System V shared memory, queues and semaphores, which every process of the user can open by
/// number and Landlock does not cover; and POSIX queues, which it covers on the known kernels.
/// Refused to agents without an IPC namespace and to workers.
pub(super) const IPC: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Calls that start a process, besides `clone` and `clone3`.
#[cfg(target_arch = "x86_64")]
pub(super) const FORK: &[i64] = &[libc::SYS_fork, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const FORK: &[i64] = &[];

/// Calls that a process that only serves files through descriptors never needs.
pub(super) const GATEWAY: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    // Not accept4: the only listening sockets were made before: the approval socket and the sandbox
    // socket.
    libc::SYS_accept,
    libc::SYS_memfd_create,
    libc::SYS_mknodat,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
];

/// Calls that reach another process of the same user, or a file's metadata by a path, past
/// Landlock: refused to workers, besides [`OLD_METADATA`]. Workers change metadata through
/// descriptors, which they can open only where they may.
pub(super) const OTHERS: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_fchmodat,
    452, // fchmodat2
    libc::SYS_fchownat,
    // Through a descriptor, too: no gateway process sets times.
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    // setxattrat, getxattrat, listxattrat, removexattrat, file_getattr and
    // file_setattr, on every architecture.
    463,
    464,
    465,
    466,
    468,
    469,
];

/// Every call that takes a path: for a process that uses only its open descriptors.
pub(super) const PATHS: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    439, // faccessat2
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_truncate,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_inotify_init,
];
