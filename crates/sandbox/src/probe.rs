//! Tests of this machine's features for confinement, one at a time, for
//! reports. Starting an agent does not depend on them: there the self-test
//! decides.
//!
//! Some tests change the process irrevocably, and are for a process that ends
//! after them.

use std::io;

use landlock::{ABI, BitFlags, Erratum};
use nix::sched::{CloneFlags, unshare};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{getegid, geteuid},
};

use super::{
    landlock as files, launcher, requirements,
    seccomp::{self, Purpose},
};

/// A fault of a kernel's Landlock that newer kernels do not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandlockErratum {
    /// Its erratum number in the kernel's documentation.
    pub number: u32,
    /// Its effect here.
    pub meaning: &'static str,
}

/// Returns the kernel's Landlock ABI. Restricts this process irrevocably to no
/// files.
///
/// # Errors
/// If there is no Landlock, or it is older than ABI 3.
pub fn landlock_abi() -> Result<u32, String> {
    if !files::available() {
        return Err("it has no Landlock of ABI 3 or newer".to_owned());
    }
    let nothing =
        files::Restriction { rules: &[], ports: Some(files::Ports::default()), logged: false };
    files::restrict(&nothing).map(|applied| applied.abi).map_err(|error| error.to_string())
}

/// Returns the known faults that this kernel's Landlock still has, as far as it
/// reports; `None` if it reports nothing.
pub fn landlock_flaws(abi: u32) -> Option<Vec<LandlockErratum>> {
    let cured = Erratum::current();
    if cured.is_empty() {
        return None;
    }
    let known = BitFlags::<Erratum>::from(ABI::from(i32::try_from(abi).unwrap_or(i32::MAX)));
    let flaw = |number, meaning| LandlockErratum { number, meaning };
    let flaws = [
        (
            Erratum::TcpSocketIdentification,
            flaw(1, "stream sockets other than TCP count as TCP; the sandbox refuses them anyway"),
        ),
        (
            Erratum::ScopedSignalHandling,
            flaw(
                2,
                "threads of one program may fail to signal each other; too strict, not too lax",
            ),
        ),
        (
            Erratum::DisconnectedDirectoryHandling,
            flaw(3, "rights can grow when directories under bind mounts are moved from outside"),
        ),
    ];
    let open = flaws
        .into_iter()
        .filter(|(erratum, _)| known.contains(*erratum) && !cured.contains(*erratum))
        .map(|(_, flaw)| flaw)
        .collect();
    Some(open)
}

/// Makes the namespaces of a sandbox as an unprivileged user must, and mounts
/// in them. Moves this process into them.
///
/// # Errors
/// Names the step that was refused.
pub fn namespaces() -> Result<(), String> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP
        | CloneFlags::CLONE_NEWNET;
    let failed = |step: &str, error: io::Error| format!("{step}: {error}");
    unshare(flags).map_err(|e| failed("make namespaces", e.into()))?;
    launcher::map_ids(uid, gid).map_err(|e| failed("map users", e))?;
    // If AppArmor restricts user namespaces, they are made without
    // capabilities.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .and_then(|()| mount("tmpfs", "/tmp", "tmpfs", MountFlags::NOSUID, None))
        .map_err(|e| failed("mount a file system in them", e.into()))
}

/// Installs a system call filter as an agent's sandbox does. Restricts this
/// process irrevocably.
///
/// # Errors
/// If the kernel takes none, or does not enforce it.
pub fn system_call_filter() -> Result<(), String> {
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    seccomp::restrict(Purpose::Gateway).map_err(|error| error.to_string())?;
    match unshare(CloneFlags::empty()) {
        Err(nix::errno::Errno::EPERM) => Ok(()),
        other => Err(format!("a refused call was answered {other:?}")),
    }
}

/// Returns advice for an operator where namespaces are refused, as far as the
/// system gives a reason.
pub fn namespace_advice() -> String {
    requirements::switches()
}
