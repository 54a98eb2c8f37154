//! Processes that run this binary again: dispatch by the hidden first argument, and starts for
//! `serve`.

use std::{
    io::{self, IsTerminal as _},
    mem,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Command, ExitCode, Stdio},
};

use crate::{
    app::{
        failure::{Context as _, Failure},
        stderr,
    },
    sandbox::{Channel, RELOAD_SIGNAL, ignores_children},
};

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Child(std::process::Child);

impl Child {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the status if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Leaves it running.
    pub(crate) fn leave(self) {
        mem::forget(self);
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) -> Option<std::process::ExitStatus> {
        // Fails if it has ended.
        let _ = self.0.kill();
        self.0.wait().ok()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Checks that processes can be started here and their exit statuses be read.
///
/// # Errors
/// When they cannot, with advice.
pub(crate) fn check_children() -> Result<(), Failure> {
    match ignores_children().or_fail("no process can be started")? {
        true => Err(Failure::new(
            "this process ignores the signal SIGCHLD, as the process that started it does, so it cannot \
             learn how a program that it starts ends",
        )
        .help("start it with `env --default-signal=CHLD portcullis …`")),
        false => Ok(()),
    }
}

/// Notes, if `command` was started by hand, that it waits for a program.
pub(crate) fn note_terminal(command: &str, partner: &str) {
    if io::stdin().is_terminal() {
        errln!(
            "portcullis: note: standard input is a terminal, but `{command}` speaks {partner}; press \
             Ctrl-C to leave"
        );
    }
}

/// The variables that a process of the gateway gets: they name places. Others may have keys of the
/// operator's.
const KEPT_VARIABLES: [&str; 8] = [
    "HOME",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Removes all other variables from a command's environment.
pub(crate) fn keep_places(command: &mut Command) -> &mut Command {
    let kept = KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(kept)
}

/// Starts this binary again as `command`, without the operator's keys in its environment.
pub(crate) fn spawn(command: &str) -> Result<(Child, Channel), Failure> {
    start(keep_places(&mut again(command)))
}

/// Starts it in a process group of its own, which gets no signals of a terminal, with the operator's
/// environment except the variables `without`.
pub(crate) fn spawn_beside<'a>(
    command: &str,
    without: impl Iterator<Item = &'a str>,
) -> Result<(Child, Channel), Failure> {
    let mut command = again(command);
    for name in without {
        command.env_remove(name);
    }
    start(command.current_dir("/").process_group(0))
}

/// Starts it in a process group of its own, which gets no signals of a terminal, and without
/// the operator's environment.
pub(crate) fn spawn_apart(command: &str) -> Result<(Child, Channel), Failure> {
    let mut command = again(command);
    // Names are looked up as given, and no domain is appended (resolv.conf(5)).
    start(command.env_clear().env("LOCALDOMAIN", ".").current_dir("/").process_group(0))
}

fn again(command: &str) -> Command {
    let mut again = Command::new("/proc/self/exe");
    again.args([command.to_owned(), std::process::id().to_string()]);
    again
}

fn start(command: &mut Command) -> Result<(Child, Channel), Failure> {
    let (ours, theirs) = Channel::pair().or_fail("cannot start a process")?;
    let child = command
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .or_fail("cannot start a process")?;
    Ok((Child(child), ours))
}

/// Calls `run` with the parent's process id, if this process was started as `command`.
pub(crate) fn run_if(
    command: &str,
    run: impl FnOnce(u32) -> Result<(), Failure>,
) -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != command {
        return None;
    }
    let parent = arguments.next().and_then(|number| number.to_str()?.parse().ok());
    let Some(parent) = parent else { return Some(ExitCode::from(2)) };
    stderr::drop_unread();
    Some(match run(parent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(false),
    })
}

/// Returns true if a signal requests a policy reload.
pub(crate) fn is_reload(signal: &nix::sys::signalfd::siginfo) -> bool {
    i32::try_from(signal.ssi_signo) == Ok(RELOAD_SIGNAL as i32)
}
