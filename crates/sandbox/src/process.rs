//! Operations of every stage of a sandbox on itself and its child: close inherited descriptors, die
//! with its parent, forward signals, reap.

use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::{ffi::OsStringExt as _, process::parent_id},
    },
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

use nix::sys::{
    signal::{SigSet, Signal as NixSignal},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open, readlink},
    io::Errno,
    process::{
        DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid,
        kill_process, kill_process_group, set_child_subreaper, set_dumpable_behavior,
        set_parent_process_death_signal, wait, waitid,
    },
};

use super::{channel::Channel, mount};

/// Maximum of ended processes that were not waited for: they occupy PIDs that others need.
const MAX_ENDED: usize = 4096;

/// The sandbox's first stage or the relay, killed on drop; everything in the sandbox dies with the
/// first stage.
#[derive(Debug)]
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A child that was waited for already is fine, and no other error can be handled here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a path of an open descriptor's file, which no rename changes.
pub(super) fn of_descriptor(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Signals by which a user or an editor stops a program.
const STOP_SIGNALS: [NixSignal; 4] =
    [NixSignal::SIGTERM, NixSignal::SIGINT, NixSignal::SIGHUP, NixSignal::SIGQUIT];

/// The one among them that makes a gateway process and its broker reload the policy. When a
/// terminal is closed, the end of input stops them.
pub const RELOAD_SIGNAL: NixSignal = NixSignal::SIGHUP;

/// The signal that has the first stage abort the sandbox's mounts, and then end.
pub(super) const ABORT_SIGNAL: Signal = Signal::USR1;

/// Has this process die when its parent dies. A change of user clears that, so call it again
/// afterwards.
pub(super) fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Has this process, which is [supervising](supervise), abort the mounts when its parent dies, and
/// then end.
pub(super) fn abort_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(ABORT_SIGNAL))?)
}

/// Sets [`die_with_parent`], and fails if the parent is not `expected` any more, so that an earlier
/// death is noticed, too.
pub(super) fn die_with(expected: u32) -> io::Result<()> {
    die_with_parent()?;
    if parent_id() == expected {
        Ok(())
    } else {
        Err(io::Error::other("the process that started this one is gone"))
    }
}

/// Makes this process adopt its descendants when their parents die.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Denies other processes of the same user this one's memory and descriptors, and disables core
/// files.
///
/// # Errors
/// If the kernel refuses.
pub fn not_dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Closes every descriptor but the three standard streams. Call it before anything else is opened:
/// only descriptors that the parent left open exist then.
///
/// # Errors
/// If they cannot be listed.
pub fn close_inherited() -> io::Result<()> {
    for number in open_descriptors()? {
        if number > 2 {
            match nix::unistd::close(number) {
                // The descriptor that listed them.
                Ok(()) | Err(nix::errno::Errno::EBADF) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

/// Returns the open descriptors, among them one that the listing needs and that is closed on
/// return.
pub(super) fn open_descriptors() -> io::Result<Vec<i32>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open("/proc/self/fd", flags, Mode::empty()).map_err(no_proc)?;
    let mut numbers = Vec::new();
    for entry in rustix::fs::Dir::new(directory)? {
        if let Ok(number) = entry?.file_name().to_string_lossy().parse() {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// Returns the file of the program that this process executes.
///
/// # Errors
/// If `/proc` does not show it.
pub fn own_program() -> io::Result<PathBuf> {
    let path = readlink("/proc/self/exe", Vec::new()).map_err(no_proc)?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

/// Converts the error of a file in `/proc` that cannot be opened.
pub(super) fn no_proc(errno: Errno) -> io::Error {
    match errno {
        Errno::NOENT => io::Error::new(io::ErrorKind::NotFound, "`/proc` is not mounted"),
        errno => errno.into(),
    }
}

/// True if this process ignores the end of its children, a setting that it may have inherited: the
/// kernel then reports no exit status of theirs. No safe code can change that.
///
/// # Errors
/// If `/proc` does not show it.
pub fn ignores_children() -> io::Result<bool> {
    let status = status("self")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = ignored.ok_or(io::Error::other("`/proc/self/status` has no `SigIgn`"))?;
    Ok(ignored >> (NixSignal::SIGCHLD as u32 - 1) & 1 == 1)
}

/// True if the first thread of a child has ended, although others may still run.
pub fn has_lost_first_thread(child: Pid) -> bool {
    status(&child.to_string())
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tZ")))
}

fn status(process: &str) -> io::Result<String> {
    let path = Path::new("/proc").join(process).join("status");
    let status = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    io::read_to_string(std::fs::File::from(status.map_err(no_proc)?))
}

/// Blocks the stop signals, in future threads too, and makes them readable.
///
/// # Errors
/// If the process has no descriptors left.
pub fn stop_signals() -> io::Result<SignalFd> {
    signals(&STOP_SIGNALS)
}

fn signals(wanted: &[NixSignal]) -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in wanted {
        set.add(*signal);
    }
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Blocks the signal of a terminal's Ctrl-Z, in future threads too, and makes it readable: see
/// [`suspend`].
///
/// # Errors
/// If the process has no descriptors left.
pub fn suspend_signal() -> io::Result<SignalFd> {
    signals(&[NixSignal::SIGTSTP])
}

/// Stops this process, in which [`suspend_signal`] is blocked, as Ctrl-Z would, and returns when it
/// is continued: at once where nothing could continue it, or where the signal is ignored by
/// inheritance.
///
/// # Errors
/// As the system reports.
pub fn suspend() -> io::Result<()> {
    let mut set = SigSet::empty();
    set.add(NixSignal::SIGTSTP);
    kill_process(getpid(), Signal::TSTP)?;
    set.thread_unblock()?;
    Ok(set.thread_block()?)
}

/// Blocks stop signals, those of job control, [`ABORT_SIGNAL`] and the end of children, and makes them
/// readable for [`supervise`]. Call it before the child is started.
pub(super) fn supervision() -> io::Result<SignalFd> {
    let mut wanted = STOP_SIGNALS.to_vec();
    wanted.extend([NixSignal::SIGCHLD, NixSignal::SIGTSTP, NixSignal::SIGCONT, NixSignal::SIGUSR1]);
    signals(&wanted)
}

/// Has a write past `RLIMIT_FSIZE` fail with an error, in future threads too, rather than with a
/// signal that ends the process before it can record anything.
///
/// # Errors
/// As the system reports.
pub fn outlive_size_limit() -> io::Result<()> {
    let mut set = SigSet::empty();
    set.add(NixSignal::SIGXFSZ);
    Ok(set.thread_block()?)
}

/// Does `work` while a signal that asks this process to end does so, although [`stop_signals`] blocked
/// it. One that has a policy reloaded stays blocked.
///
/// # Errors
/// As the system reports.
pub fn while_stoppable(work: impl FnOnce()) -> io::Result<()> {
    let set = SigSet::from_iter(STOP_SIGNALS.into_iter().filter(|signal| *signal != RELOAD_SIGNAL));
    set.thread_unblock()?;
    work();
    Ok(set.thread_block()?)
}

/// Unblocks all signals, as the next executed program expects, and as a process may that has
/// nothing left to stop.
///
/// # Errors
/// As the system reports.
pub fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::all().thread_unblock()?)
}

/// Recipients of the signals that a stage forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalTarget<'a> {
    /// The child. [`ABORT_SIGNAL`] aborts the mounts at these paths instead.
    Process(&'a [PathBuf]),
    /// The child, which leads a process group, and its group.
    Group,
}

/// Exit code of a stage that ends before its child: that of a death by `SIGKILL`.
const KILLED: u8 = 137;

/// A connection between two stages.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lifeline<'a> {
    /// The parent stage's. Its end ends this stage, with 137.
    Parent(&'a OwnedFd),
    /// The child stage's, which sends its exit code just before it ends.
    Child(&'a OwnedFd),
}

/// Time for a child to end once it has sent its exit code. An init ends after all processes of its
/// namespace, which may wait for a disk.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for `child`, reaps other children, and forwards signals: to the child, or to the process
/// that it names by `named`, if it names one. Returns the exit code as a shell does: 128 and the
/// signal's number for a death by signal.
pub(super) fn supervise(
    child: Pid,
    toward: SignalTarget<'_>,
    signals: &SignalFd,
    lifeline: Lifeline<'_>,
    mut named: Option<Channel>,
) -> io::Result<u8> {
    let (mut target, mut lifeline, mut sent) = (child, Some(lifeline), None::<(u8, Instant)>);
    loop {
        while let Some((pid, status)) = reap()? {
            if pid == child {
                return Ok(exit_code(status));
            }
        }
        let left = match sent {
            Some((code, end)) if end <= Instant::now() => return Ok(code),
            Some((_, end)) => {
                Timespec::try_from(end.saturating_duration_since(Instant::now())).ok()
            }
            None => None,
        };
        let mut waiting = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        if let Some(Lifeline::Parent(end) | Lifeline::Child(end)) = lifeline {
            waiting.push(PollFd::new(end, PollFlags::IN));
        }
        if let Some(named) = &named {
            waiting.push(PollFd::new(named, PollFlags::IN));
        }
        match poll(&mut waiting, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut ready = waiting.iter().skip(1).map(|waited| !waited.revents().is_empty());
        let has_news = lifeline.is_some() && ready.next().unwrap_or_default();
        let has_name = ready.next().unwrap_or_default();
        match lifeline.take_if(|_| has_news) {
            Some(Lifeline::Parent(_)) => return Ok(KILLED),
            Some(Lifeline::Child(end)) => {
                let mut code = [0];
                // A child that was killed sends none.
                if rustix::io::read(end, &mut code) == Ok(1) {
                    sent = Some((code[0], Instant::now() + END_TIMEOUT));
                }
            }
            None => {}
        }
        if let Some(channel) = named.take_if(|_| has_name) {
            let leader =
                channel.receive::<i32>().ok().and_then(|(leader, _)| Pid::from_raw(leader));
            target = leader.unwrap_or(target);
        }
        while let Some(got) = signals.read_signal()? {
            let number = i32::try_from(got.ssi_signo).unwrap_or(0);
            let Some(signal) = Signal::from_named_raw(number) else { continue };
            if signal == Signal::CHILD {
                continue;
            }
            // A child that has ended is reaped above.
            let _ = match toward {
                SignalTarget::Process(mounts) if signal == ABORT_SIGNAL => {
                    // Its namespaces stay while this process is in them.
                    let _ = kill_process(target, Signal::KILL);
                    mount::abort(mounts);
                    return Ok(KILLED);
                }
                SignalTarget::Process(_) => kill_process(target, signal),
                // The kernel ignores `SIGTSTP` to a group whose parent is in another session.
                SignalTarget::Group if signal == Signal::TSTP => {
                    kill_process_group(target, Signal::STOP)
                }
                SignalTarget::Group => kill_process_group(target, signal),
            };
        }
    }
}

fn reap() -> io::Result<Option<(Pid, WaitStatus)>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(ended) => return Ok(ended),
            Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let code = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(code).unwrap_or(1)
}

/// Kills every descendant of this process, which must be a subreaper. For sandboxes without a PID
/// namespace, where the kernel does not do that. Returns when none is left, however long they fork.
pub(super) fn kill_descendants() -> io::Result<()> {
    let mut killed = HashSet::new();
    loop {
        // Their children are ours from then on, so every live process is listed.
        let all_ended = killed.iter().all(|child| has_ended(*child));
        let mut fresh = false;
        for child in children()? {
            if killed.insert(child) {
                fresh = true;
                let _ = kill_process(child, Signal::KILL);
            }
        }
        // A process that has ended and was not waited for counts against the limit of processes, so
        // that the others cannot fork, and its PID is not reused.
        if killed.len() < MAX_ENDED {
            if fresh {
                continue;
            }
            if !all_ended {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        }
        while let Some((ended, _)) = reap()? {
            killed.remove(&ended);
        }
        if killed.is_empty() && children()?.is_empty() {
            return Ok(());
        }
    }
}

/// True if a child has ended; it can still be waited for.
fn has_ended(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    // A child that does not exist has ended, too.
    !matches!(waitid(WaitId::Pid(child), options), Ok(None))
}

fn children() -> io::Result<Vec<Pid>> {
    let own = getpid().as_raw_nonzero();
    let path = format!("/proc/{own}/task/{own}/children");
    let list = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    io::Read::read_to_string(&mut std::fs::File::from(list), &mut text)?;
    Ok(text.split_whitespace().filter_map(|n| n.parse().ok().and_then(Pid::from_raw)).collect())
}
