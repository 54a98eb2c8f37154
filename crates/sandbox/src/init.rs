//! The second stage: the init of the sandbox's PID namespace. It builds the root directory, starts
//! the stage that becomes the agent, drops all capabilities, and then only reaps and forwards
//! signals. When it ends, the kernel kills everything in the sandbox.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use nix::sys::signalfd::SignalFd;
use rustix::{
    net::SendFlags,
    process::{Pid, umask},
};

use super::{
    capabilities,
    channel::{self, Channel},
    messages::{Init, RootReady, StageMessage},
    mount,
    process::{self, Lifeline, SignalTarget},
    root::{self, EnteredRoot},
    spec::Mode,
    stage::{Stage, StageError, failed},
};

/// Runs the stage.
pub(super) fn run() -> Result<u8, StageError> {
    let channel = Channel::from_stdin()?;
    let lifeline = channel::take_stdout().map_err(failed("receive the lifeline"))?;
    match start(&channel) {
        Ok(started) => {
            drop(channel);
            let code = serve(started, &lifeline)?;
            // The launcher need not wait until the kernel has ended everything else.
            let _ = rustix::net::send(&lifeline, &[code], SendFlags::NOSIGNAL);
            Ok(code)
        }
        Err(error) => Ok(error.report(&channel)),
    }
}

struct Started {
    mode: Mode,
    agent: Pid,
    signals: SignalFd,
    /// The channel by which the stage names the agent, if that is a child of the stage.
    named: Channel,
}

fn start(channel: &Channel) -> Result<Started, StageError> {
    let (init, _) = channel.receive::<Init>()?;
    if init.mode.is_full() {
        // In a PID namespace of its own, the parent's PID is unknown; the lifeline covers the
        // moment before this call.
        process::die_with_parent().map_err(failed("follow the launcher"))?;
    } else {
        // Only the lifeline: a process must remain to stop the agent's descendants.
        process::adopt_orphans().map_err(failed("adopt the agent's orphans"))?;
    }
    let signals = process::supervision().map_err(failed("watch for signals"))?;
    let (ours, theirs) = Channel::pair()?;
    let child = Stage::Enter
        .command(channel.try_clone()?)
        .stdout(OwnedFd::from(theirs))
        .spawn()
        .map_err(failed("start the confined child"))?;
    let agent = Pid::from_child(&child);
    // The child first probes the host, whose paths it must not see later.
    let ((), _) = ours.receive()?;
    // Later the host's `/proc` is out of reach.
    let sockets = init.sockets.make().map_err(failed("make the sandbox's sockets"))?;
    let mut entered = EnteredRoot { proc: false, mount: None };
    if init.mode.is_full() {
        let mask = umask(rustix::fs::Mode::empty());
        entered = root::enter(&init.layout)?;
        umask(mask);
    }
    if init.mode.is_confined() {
        give_up(init.mode).map_err(failed("give up capabilities"))?;
    }
    let ready = RootReady { proc: entered.proc, mount: matches!(entered.mount, Some(Ok(_))) };
    hand_over(channel, entered, sockets)?;
    ours.send(&ready, &[])?;
    Ok(Started { mode: init.mode, agent, signals, named: ours })
}

/// Gives the broker the descriptors of the mounts and of the sockets. None is left here: as long as
/// a copy is open anywhere, programs would wait for a server that has ended.
fn hand_over(
    channel: &Channel,
    entered: EnteredRoot,
    sockets: Vec<OwnedFd>,
) -> Result<(), StageError> {
    let (made, mut descriptors) = match entered.mount {
        Some(Ok(devices)) => (Some(Ok(())), devices),
        Some(Err(reason)) => (Some(Err(reason)), Vec::new()),
        None => (None, Vec::new()),
    };
    if entered.proc && !descriptors.is_empty() {
        descriptors.push(mount::open_processes().map_err(failed("open `/proc`"))?);
    }
    descriptors.extend(sockets);
    let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
    Ok(channel.send(&StageMessage::Built { mount: made }, &descriptors)?)
}

/// Becomes the agent's user, without any capability; only the right to signal it remains.
fn give_up(mode: Mode) -> io::Result<()> {
    capabilities::drop_all(mode.becomes())?;
    process::not_dumpable()?;
    // The change of user cleared the signal.
    if mode.is_full() { process::die_with_parent() } else { Ok(()) }
}

fn serve(started: Started, lifeline: &OwnedFd) -> Result<u8, StageError> {
    let Started { mode, agent, signals, named } = started;
    let code = process::supervise(
        agent,
        SignalTarget::Group,
        &signals,
        Lifeline::Parent(lifeline),
        Some(named),
    )
    .map_err(failed("wait for the agent"))?;
    if !mode.is_full() {
        process::kill_descendants().map_err(failed("stop what the agent left behind"))?;
    }
    Ok(code)
}
