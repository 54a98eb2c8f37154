//! `portcullis run`: starts an agent in its sandbox and a gateway between it and the editor, which
//! started this process as its agent.
//!
//! This process is the broker: it opens files by path, starts the other processes, forwards
//! signals, waits, and returns the exit code. It reads nothing that the agent wrote.

mod forward;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use rustix::fs::FileType;

use self::forward::Bypasses;
use super::agent::{
    agent_config,
    credentials::Credentials,
    options::{Purpose, SandboxOptions},
    protocol::{Acp, AgentService},
    repository,
    start::{
        Recorded, SandboxBroker, await_confined, build, host_facts, introduce, start_egress,
        start_gateway, warn,
    },
    supervisor::{RunEnd, SignalHandling, Supervisor},
    workspaces::{MountNeed, finish},
};
use crate::{
    app::{
        default_agents,
        failure::{Context as _, Exit, Failure},
        presets::Preset,
        process,
    },
    cli::launch_failure::{LIBRARY_MISSING, NOT_STARTED, explain},
    model::{AgentName, for_shell},
    policy::Effect,
    sandbox::{Enforcement, Network, PendingAgent, take_standard_streams, unblock_signals},
};

/// Start an agent without access to the workspace, and serve it over ACP
#[derive(Debug, clap::Args)]
#[command(after_help = "The editor talks to this command as it would to the agent: stdin and \
    stdout carry the\nAgent Client Protocol. A changed policy file takes effect while the agent runs, at \
    once on SIGHUP,\nif its version rises. The exit code is the agent's.\n\nExamples:\n  \
    portcullis run --preset claude-code\n  \
    portcullis run -- my-agent --acp\n  \
    portcullis run --preset fast-agent --policy mine.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// The source and destination of file content: auto, disk, editor, or mount, where the agent is
    /// offered no files over ACP and its own tools reach them
    /// [default: the preset's, or auto]
    #[arg(long, value_name = "SOURCE", value_parser = ["auto", "disk", "editor", "mount"])]
    source: Option<String>,
    /// An ACP method of the agent that reaches the editor besides the usual ones;
    /// where the editor acts by it, the agent counts as not confined
    #[arg(long, value_name = "METHOD", value_parser = forward::parse)]
    forward: Vec<String>,
    /// Do not offer the gateway's own MCP server (remove, list, search and so on)
    /// to the agent
    #[arg(long)]
    no_mcp: bool,
    /// Refuse to start an agent whose programs cannot see the workspace as files, where each open
    /// and change is decided, backed up and recorded as over ACP
    #[arg(long, conflicts_with_all = ["unconfined", "no_mount"])]
    mount: bool,
    /// Show the agent's programs an empty directory in place of the workspace, even if a mount is
    /// possible
    #[arg(long)]
    no_mount: bool,
    /// Accept weaker confinement where this machine allows no namespaces
    #[arg(long)]
    allow_partial: bool,
    /// Do not confine the agent: it has all your permissions
    #[arg(long, conflicts_with = "allow_partial")]
    unconfined: bool,
    /// The agent's program and its arguments; left out, the preset's
    #[arg(last = true, value_name = "AGENT")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(mut args: Args) -> Result<ExitCode, Failure> {
    let preset = args.sandbox.preset()?;
    match &preset {
        Some(preset) if args.command.is_empty() && preset.acp.is_empty() => {
            let name = &preset.name;
            return Err(Failure::new(format_args!("{} does not speak ACP", preset.title))
                .exit(Exit::Usage)
                .help(format_args!(
                    "`portcullis shell --preset {name}` starts it on a terminal, and `portcullis \
                     exec --preset {name} -- COMMAND` without one"
                )));
        }
        Some(preset) if args.command.is_empty() => {
            args.command = preset.acp.iter().map(OsString::from).collect();
        }
        None if args.command.is_empty() => {
            return Err(Failure::new("no agent is named").exit(Exit::Usage).help(
                "name a preset that `portcullis agents` lists, `--preset NAME`, or a command: \
                 `portcullis run -- my-agent --acp`",
            ));
        }
        _ => args.sandbox.suggest_preset(&args.command),
    }
    let source = args.source.take().or_else(|| preset.as_ref()?.source.clone());
    let source = source.unwrap_or_else(|| "auto".to_owned());
    let SandboxBroker { signals, suspend, files } = SandboxBroker::new(&args.sandbox)?;
    process::note_terminal("run", "ACP with an editor");
    let agent = agent_name(&args, preset.as_ref())?;
    let workspaces = args.sandbox.open(&agent, Purpose::Work)?;
    let opened = &workspaces.main;
    let ways = Bypasses::new(&args.forward);
    let floor = match (args.unconfined, args.allow_partial) {
        (true, _) => Enforcement::None,
        (_, true) => Enforcement::Partial,
        _ => Enforcement::Full,
    };
    let required = args.mount || source == "mount";
    let mount_need = match (required, args.no_mount || args.unconfined) {
        (true, true) => {
            return Err(Failure::new("`--source mount` needs a mount").exit(Exit::Usage));
        }
        (true, false) => MountNeed::Required,
        (false, true) => MountNeed::Unwanted,
        (false, false) => MountNeed::Preferred,
    };
    let mut spec = args.sandbox.spec(&workspaces, &agent, &args.command, floor)?;
    spec.sandbox_socket = !args.no_mcp && !ways.any();
    spec.commands = opened.policy.agent().terminal != Effect::Deny && !ways.has_terminals();
    spec.files = files;
    let credentials = Credentials::prepare(opened, &agent, &mut spec)?;
    let paths = workspaces.trusted_paths(&spec).map_err(explain)?;
    let shared = workspaces.shared_policies()?;
    let editor = take_standard_streams().or_fail("cannot take over stdin and stdout")?;
    let service = AgentService::Acp(Acp { source, forward: args.forward.clone() });
    let mut gateway =
        start_gateway(&args.sandbox, &workspaces, &agent, &shared, service, mount_need, &editor)?;
    drop(editor);
    let watches = workspaces.watches(&paths, shared);
    let otherwise =
        if args.mount { "or leave `--mount` out" } else { "or take another `--source`" };
    let (mut built, missing) = build(&mut gateway, &mut spec, mount_need, otherwise)?;
    let egress = start_egress(&mut built, &spec, &workspaces, (&agent, credentials))?;
    let (egress, links) = egress.unzip();
    let pending = built.test().map_err(explain)?;
    warn(&pending.report);
    let is_denied = !pending.report.denied.is_empty();
    workspaces.warn_of_observing();
    ways.warn();
    if let Some(Err(reason)) = &pending.sandbox_socket {
        errln!("portcullis: note: the agent is not offered the gateway's MCP server: {reason}");
    }
    let suspects = pending.suspects.clone();
    if !pending.report.mount {
        await_confined(&mut gateway, floor)?;
    }
    let mut facts = pending.report.facts();
    facts.extend(host_facts(&workspaces, links.as_ref()));
    facts.extend(preset.map(|preset| ("preset".to_owned(), preset.name.into())));
    if let Some(missing) = &missing {
        missing.note();
        facts.insert("mountUnavailable".to_owned(), missing.reason.as_str().into());
    }
    ways.note(&mut facts);
    if spec.commands {
        facts.insert("commands".to_owned(), true.into());
    }
    facts.insert("mcp".to_owned(), mcp(&pending, &args, &ways).into());
    agent_config::warn(&spec, &mut facts);
    let Recorded { session, records } = introduce(&mut gateway, (&pending, links), &spec, facts)?;
    let shipping = workspaces.ship()?;
    let mut unoffered = Vec::new();
    for opened in workspaces.all() {
        let own = (opened, &*workspaces.writable_beside(opened));
        let (of, within) = ((&agent, &*session), (&signals, None));
        repository::prepare(&pending, own, of, within, &mut unoffered)?;
    }
    gateway.begin()?;
    let running = pending.release().map_err(explain)?;
    let watched = (watches, egress);
    let ended =
        Supervisor::new(running, gateway, (signals, suspend), watched, SignalHandling::Agent)?
            .run();
    // The agent has ended: a signal may end the remaining steps.
    unblock_signals().or_fail("cannot unblock signals")?;
    finish(shipping);
    workspaces.settle_scratch(&agent, mount_need);
    let RunEnd { code, at_once, connection_reported, .. } = ended?;
    for (opened, record) in workspaces.all().zip(records) {
        if let Some(import) = repository::import(opened, record, &unoffered, None) {
            errln!("portcullis: the agent made commits: {import}");
        }
    }
    if at_once && code != 0 {
        let denied = Denied { paths: is_denied, connections: connection_reported };
        explain_early_end(code, &args, &spec.network, &suspects, &denied);
    }
    Ok(ExitCode::from(code))
}

/// Returns the agent's name; by default that of its preset or its program.
fn agent_name(args: &Args, preset: Option<&Preset>) -> Result<AgentName, Failure> {
    if let Some(preset) = preset {
        return args.sandbox.common.agent(&preset.name);
    }
    let name = args.command.first().map(PathBuf::from);
    let name = name.as_ref().and_then(|path| path.file_stem()?.to_str());
    let name = name.filter(|name| name.parse::<AgentName>().is_ok());
    args.sandbox.common.agent(name.unwrap_or(default_agents::RUN))
}

/// Describes if the agent is offered the gateway's MCP server.
fn mcp(pending: &PendingAgent, args: &Args, ways: &Bypasses<'_>) -> String {
    match &pending.sandbox_socket {
        Some(Ok(_)) => "offered".to_owned(),
        Some(Err(reason)) => format!("not offered: {reason}"),
        None if args.no_mcp => "not offered: `--no-mcp`".to_owned(),
        None => ways.why_alone(),
    }
}

/// The denials of which messages have told.
struct Denied {
    /// Agent paths.
    paths: bool,
    /// Connections.
    connections: bool,
}

/// Returns true if an argument names a file in `directory`.
fn has_named_file(command: &[OsString], directory: &Path) -> bool {
    let is_file = |path: &Path| {
        rustix::fs::stat(path)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    };
    command.iter().map(Path::new).any(|path| path.starts_with(directory) && is_file(path))
}

fn explain_early_end(
    code: u8,
    args: &Args,
    network: &Network,
    suspects: &[PathBuf],
    denied: &Denied,
) {
    let program = args.command.first().map(|p| p.to_string_lossy()).unwrap_or_default();
    errln!("portcullis: the agent `{program}` ended at once, with exit code {code}");
    if code == NOT_STARTED {
        errln!("  help: {LIBRARY_MISSING}");
    } else if denied.paths {
        errln!("  help: it cannot use what it was given, as a warning above says");
    } else if denied.connections {
        errln!(
            "  help: one of its connections was denied, cut off or failed, as a message above says"
        );
    } else if suspects.is_empty() {
        errln!(
            "  help: if it misses a file of its own installation, give it that directory with \
             --agent-read DIR; if it connects to a host, allow that in `[network]` of the policy"
        );
    }
    // A directory of the command line, such as a home, is neither a program nor a library.
    let is_relevant =
        |suspect: &&PathBuf| code != NOT_STARTED || has_named_file(&args.command, suspect);
    for suspect in suspects.iter().filter(is_relevant) {
        errln!(
            "  help: its command line names a path that it may not read; if you trust it with \
             that, add `--agent-read {}`",
            for_shell(suspect)
        );
    }
    if !args.unconfined && matches!(network, Network::Connect { .. }) {
        errln!(
            "  help: if it may not listen on a TCP port, name the port with --agent-listen PORT, and \
             with --agent-network PORT if it connects to itself"
        );
    }
}
