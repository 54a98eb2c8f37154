//! The first stage of a sandbox: leaves the host's namespaces and starts the init, the first
//! process in the new ones.
//!
//! It remains as the init's parent, because only a child can enter a PID namespace, and forwards
//! signals and the exit code.

#![expect(clippy::disallowed_methods, reason = "writes files of its own in `/proc`")]

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    process::{Pid, getegid, geteuid},
    thread::CapabilitySet,
};

use super::{
    capabilities,
    channel::Channel,
    loopback,
    messages::{Launch, MapsWritten, StageMessage},
    process::{self, Lifeline, SignalTarget},
    spec::{INNER_USER, Mode},
    stage::{Stage, StageError, failed},
};

/// The `oom_score_adj` of a process that is killed first; see `proc_pid_oom_score_adj(5)`.
const HIGHEST_OOM_SCORE: &str = "1000";

/// Runs the stage; `parent` is the broker's process.
pub(super) fn run(parent: u32) -> Result<u8, StageError> {
    process::close_inherited().map_err(failed("close inherited descriptors"))?;
    let channel = Channel::from_stdin()?;
    match launch(&channel, parent) {
        Ok(Launched { mode, mounts, init, lifeline, signals }) => {
            // Only the stages that report may have the channel open.
            drop(channel);
            let end = Lifeline::Child(&lifeline);
            let target = SignalTarget::Process(&mounts);
            let code = process::supervise(init, target, &signals, end, None);
            drop(lifeline);
            if !mode.is_full() {
                // The init may have been killed.
                process::kill_descendants().map_err(failed("stop what the agent left behind"))?;
            }
            code.map_err(failed("wait for the sandbox"))
        }
        Err(error) => Ok(error.report(&channel)),
    }
}

struct Launched {
    mode: Mode,
    mounts: Vec<PathBuf>,
    init: Pid,
    /// The init has the other end: it ends when this one is closed, and sends its exit code.
    lifeline: OwnedFd,
    signals: nix::sys::signalfd::SignalFd,
}

fn launch(channel: &Channel, parent: u32) -> Result<Launched, StageError> {
    process::die_with(parent).map_err(failed("follow the broker"))?;
    // When memory runs out, the kernel kills processes of the sandbox, and none of the operator's.
    let _ = std::fs::write("/proc/self/oom_score_adj", HIGHEST_OOM_SCORE);
    let (launch, _) = channel.receive::<Launch>()?;
    separate(channel, &launch)?;
    if !launch.mode.is_full() {
        process::adopt_orphans().map_err(failed("adopt the agent's orphans"))?;
    }
    let signals = process::supervision().map_err(failed("watch for signals"))?;
    let (watched, lifeline) = UnixStream::pair().map_err(failed("open a pair of sockets"))?;
    let child = Stage::Init
        .command(channel.try_clone()?)
        .stdout(OwnedFd::from(watched))
        .spawn()
        .map_err(failed("start the sandbox's init"))?;
    let init = Pid::from_child(&child);
    // Forwarding a signal to a process that has become another user needs this one.
    let mut retained = CapabilitySet::KILL;
    if !launch.mounts.is_empty() {
        // In the sandbox's user namespace: no process there can reach this one.
        retained |= CapabilitySet::SYS_ADMIN;
        process::abort_with_parent().map_err(failed("follow the broker"))?;
    }
    capabilities::clear_ambient().map_err(failed("give up capabilities"))?;
    capabilities::keep_only(retained).map_err(failed("give up capabilities"))?;
    let Launch { mode, mounts, .. } = launch;
    Ok(Launched { mode, mounts, init, lifeline: lifeline.into(), signals })
}

fn separate(channel: &Channel, launch: &Launch) -> Result<(), StageError> {
    if let Mode::Partial { user: Some(user) } = launch.mode {
        capabilities::become_user(user, user).map_err(failed("become an unprivileged user"))?;
        process::die_with_parent().map_err(failed("follow the broker"))?;
    }
    if !launch.mode.is_full() {
        return Ok(());
    }
    let mut flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    if launch.private_network {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    let namespaces = |e: io::Error| StageError::Namespaces("make namespaces", e.to_string());
    match launch.mode {
        Mode::User => {
            let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
            unshare(flags | CloneFlags::CLONE_NEWUSER).map_err(|e| namespaces(e.into()))?;
            map_ids(uid, gid).map_err(namespaces)?;
            // Otherwise they are lost when the init is executed.
            capabilities::make_ambient().map_err(|e| namespaces(e.into()))?;
        }
        Mode::Mapped { .. } => {
            unshare(flags | CloneFlags::CLONE_NEWUSER).map_err(|e| namespaces(e.into()))?;
            channel.send(&StageMessage::Unmapped, &[])?;
            let (MapsWritten, _) = channel.receive()?;
        }
        _ => unshare(flags).map_err(|e| namespaces(e.into()))?,
    }
    if launch.private_network {
        loopback::up().map_err(failed("set up the loopback interface"))?;
    }
    Ok(())
}

/// Maps the broker's user, as root, and the agent's `user` as `inner`, for a process in a new user
/// namespace. Only a privileged process may map two.
pub(super) fn map_ids_of(process: u32, user: u32, inner: u32) -> io::Result<()> {
    let own = [("uid_map", geteuid().as_raw()), ("gid_map", getegid().as_raw())];
    for (map, own) in own {
        let text = format!("0 {own} 1\n{inner} {user} 1\n");
        std::fs::write(format!("/proc/{process}/{map}"), text)?;
    }
    Ok(())
}

/// Maps one user and one group, this process's own. Both keep their numbers, except root, which the
/// agent must not appear to be.
pub(super) fn map_ids(uid: u32, gid: u32) -> io::Result<()> {
    let (inner_uid, inner_gid) = inner_ids(uid, gid);
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{inner_uid} {uid} 1\n"))?;
    std::fs::write("/proc/self/gid_map", format!("{inner_gid} {gid} 1\n"))
}

/// Returns the ids that the agent sees if it runs as `uid` and `gid` outside.
pub(super) fn inner_ids(uid: u32, gid: u32) -> (u32, u32) {
    let not_root = |id| if id == 0 { INNER_USER } else { id };
    (not_root(uid), not_root(gid))
}
