//! `portcullis exec`: one command in a sandbox with a mount of the workspace.
//!
//! It begins as `run` does. What differs: standard input, output and error are the
//! command's own, signals are passed on to it, and at the end a summary says what it changed
//! and what was denied to it.

mod home;
mod summary;

use std::{
    collections::BTreeMap, ffi::OsString, io, path::PathBuf, process::ExitCode, time::Duration,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::Value;

use self::{home::Home, summary::Summary};
use super::agent::{
    options::SandboxOptions,
    policy_watch::PolicyWatch,
    protocol::Service,
    repository,
    start::{Broker, Recorded, Wish, build, explain, introduce, start_gate, warn},
    supervisor::{Ended, Manner, Supervisor},
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        fresh::{Destination, Fresh},
        policy_loading::warn_of_observing,
        policy_transfer::SharedPolicy,
        ship::{self, Shipping},
    },
    policy::parse_duration,
    sandbox::{Cell, Enforcement, Grant, TrustedPaths, unblock_signals},
};

/// The exit code of a command whose time was over, as that of timeout(1).
const TIMED_OUT: u8 = 124;

/// The agent's name, where none was given.
const AGENT: &str = "exec";

/// The most bytes of the command and its arguments that go into a record.
const MAX_COMMAND: usize = 4096;

/// Run one command that sees the workspace through the gate
///
/// The command runs in a sandbox, in the workspace's directory, which is a mount there:
/// policy, backups and log are between it and the files. At the end a summary says what it
/// changed, what was denied to it, and how to undo it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Standard input, output and error are the command's, and signals are passed on \
    to it. The exit\ncode is its own, 128 and the number of the signal that ended it, or 124 when its \
    time was over.\n\nExamples:\n  \
    portcullis exec -- cargo test\n  \
    portcullis exec --timeout 10m --agent-read ~/.cargo --agent-network 443 -- make\n  \
    portcullis exec --summary changes.json -- sh -c 'rm -r build && make'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Stop the command after this time, such as `90s` or `10m`: first asked, two seconds
    /// later killed
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    timeout: Option<Duration>,
    /// Write the summary to this file, as one JSON object, and not to standard error
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Print the summary as one JSON object, on standard error as the text would be
    #[arg(long, conflicts_with = "summary")]
    json: bool,
    /// Say nothing at the end
    #[arg(long, short, conflicts_with_all = ["summary", "json"])]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_timeout(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text)
        .filter(|timeout| !timeout.is_zero())
        .ok_or("expected a number above 0 and `ms`, `s`, `m` or `h`, such as `90s`")
}

/// The command and what it was granted, for its record. An argument that does not fit is left
/// out: the rules about secrets do not know a part of a token.
fn granted(command: &[OsString], cell: &Cell) -> BTreeMap<String, Value> {
    let mut room = MAX_COMMAND;
    let fits = |argument: &OsString| {
        let argument = argument.to_string_lossy().into_owned();
        room = room.checked_sub(argument.len())?;
        Some(argument)
    };
    let command: Vec<_> = command.iter().map_while(fits).collect();
    let paths = |grants: &[Grant]| -> Vec<_> {
        grants.iter().map(|grant| grant.path.to_string_lossy().into_owned()).collect()
    };
    let variables: Vec<_> = cell.environment.keys().map(|name| name.to_string_lossy()).collect();
    BTreeMap::from([
        ("command".to_owned(), command.into()),
        ("agentRead".to_owned(), paths(&cell.read).into()),
        ("agentWrite".to_owned(), paths(&cell.write).into()),
        ("agentEnv".to_owned(), variables.into()),
    ])
}

/// Makes writes to standard error blocking again. The command may have the same pipe, and what
/// it sets there holds for this process: a summary that finds the pipe full would be lost.
fn make_stderr_blocking() {
    let stderr = io::stderr();
    let Ok(flags) = fcntl_getfl(&stderr) else { return };
    let _ = fcntl_setfl(&stderr, flags - OFlags::NONBLOCK);
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Standard output is not ours, also where nothing was printed there.
    start(args).map_err(Failure::beside_result)
}

fn start(mut args: Args) -> Result<ExitCode, Failure> {
    let preset = args.sandbox.preset()?.map(|preset| preset.name);
    let Broker { signals, suspend, files } = Broker::new(&args.sandbox)?;
    let common = &args.sandbox.common;
    let named = preset.as_deref().map(|name| common.agent(name)).transpose()?;
    let named = common.agent.clone().or(named);
    let agent = named.clone().map_or_else(|| common.agent(AGENT), Ok)?;
    let mut home = Home::of(named.as_ref())?;
    let opened = args.sandbox.open(home.name())?;
    let mut cell = args.sandbox.cell(&opened, home.name(), &args.command, Enforcement::Full)?;
    home.is_at(&cell.home);
    (cell.files, cell.own_streams) = (files, true);
    let paths =
        TrustedPaths { trusted: opened.trusted.clone(), ..cell.trusted_paths().map_err(explain)? };
    // Its directory is opened before the command runs, which may come to it; that it can be
    // written is tried, or what the command did would be told nowhere.
    let file = args.summary.as_deref().map(Destination::open).transpose()?;
    if let Some(file) = &file {
        Fresh::at(file.clone(), false)?;
    }
    let shared = SharedPolicy::create().or_fail("cannot start the gate")?;
    let service = Service::Command;
    let mut gate =
        start_gate(&args.sandbox, &opened, &agent, &shared, service, Wish::Required, &[])?;
    let watch = PolicyWatch::new(&opened.texts, paths, opened.operator.clone(), shared);
    let (built, _) = build(&mut gate, &mut cell, Wish::Required, "`portcullis doctor` says more")?;
    let pending = built.test().map_err(explain)?;
    warn(&pending.report);
    warn_of_observing(&opened.policy);
    let mut facts = pending.report.facts();
    facts.extend(preset.map(|name| ("preset".to_owned(), name.into())));
    facts.extend(granted(&args.command, &cell));
    let Recorded { session, record } = introduce(&mut gate, &pending, &cell, facts)?;
    ship::check(&opened.state_path, &opened.audit.ship)?;
    let shipping = Shipping::start(&opened.state_path, &opened.audit.ship)?;
    repository::prepare(&pending, &opened, &signals)?;
    let command = pending.release().map_err(explain)?;
    let manner = Manner::Command { timeout: args.timeout };
    let ended = Supervisor::new(command, gate, (signals, suspend), watch, manner)?.run();
    // The command is gone. A signal ends what is left, which nobody has to wait for.
    unblock_signals().or_fail("cannot unblock signals")?;
    shipping.finish();
    let Ended { code, timed_out, gate_failed, .. } = ended?;
    make_stderr_blocking();
    let code = if timed_out { TIMED_OUT } else { code };
    if timed_out {
        errln!("portcullis: the command's time was over, and it was stopped");
    }
    let summary = Summary::read(&opened, &session, record, code, timed_out)?;
    match file {
        Some(file) => {
            // What the command put there is replaced, and no link followed.
            let fresh = Fresh::at(file, true)?;
            let written = summary.write(fresh.file()).and_then(|()| fresh.keep());
            written.or_fail("cannot write the summary")?;
        }
        None if args.json => summary.write(io::stderr()).or_fail("cannot print the summary")?,
        None if args.quiet => {}
        None => summary.print(),
    }
    // What a command says that lost its files may be anything.
    Ok(ExitCode::from(if gate_failed && code == 0 { 1 } else { code }))
}
