//! `portcullis run`: starts an agent in its cell and a gate between it and
//! the editor, which started us as its agent.
//!
//! This process is the broker: it opens what must be opened by name, starts
//! the others, passes signals on, waits, and gives the exit code. It reads
//! nothing that the agent wrote.

mod agent_config;
mod agent_notices;
mod forward;
mod gateway_process;
mod orders;
mod policy_watch;
mod protocol;
mod supervisor;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

pub(crate) use gateway_process::run_if_gate;

use self::{
    forward::Ways,
    policy_watch::PolicyWatch,
    protocol::Progress,
    supervisor::{Ended, Gate, Supervisor},
};
use crate::{
    app::{
        agent_sandbox::{Ground, HOME_OUT_OF_REACH, home, plain_cell},
        failure::{Context as _, Exit, Failure},
        launch::Launch,
        logging,
        opened::Opened,
        options::Common,
        policy_loading::warn_of_observing,
        policy_transfer::{SharedPolicy, packed},
        process, session,
        ship::{self, Shipping},
        signer,
    },
    model::{Door, Session},
    policy::Policy,
    sandbox::{
        self, AgentPath, Cell, Channel, DeniedGrant, Enforcement, Grant, LaunchError, Network,
        PendingAgent, Report, TrustedPaths, not_dumpable, raise_file_limit, stop_signals,
        take_standard_streams,
    },
};

/// Start an agent without access to the workspace, and serve it over ACP
#[derive(Debug, clap::Args)]
#[command(after_help = "The editor talks to this command as it would to the agent: stdin and \
    stdout carry the\nAgent Client Protocol. A changed policy file is taken up while it runs, at once \
    on SIGHUP,\nif its version rises. The exit code is the agent's.\n\nExamples:\n  \
    portcullis run -- claude-code-acp\n  \
    portcullis run --agent-read ~/.local/share/uv --agent-network 443 \\\n    \
    --agent-network dns -- fast-agent-acp")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    logging: logging::Options,
    /// Where file content comes from and goes to: auto, disk or editor
    #[arg(long, value_name = "SOURCE", default_value = "auto",
        value_parser = ["auto", "disk", "editor"])]
    source: String,
    /// A directory or file that the agent may read and execute, besides the
    /// policy's
    #[arg(long, value_name = "DIR")]
    agent_read: Vec<PathBuf>,
    /// A directory or file that the agent may also change
    #[arg(long, value_name = "DIR")]
    agent_write: Vec<PathBuf>,
    /// An environment variable that the agent gets: ours, or the one given
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    agent_env: Vec<String>,
    /// A TCP port that the agent may connect to, `dns` to let it look names up
    /// over UDP, or `none`; instead of what the policy says
    #[arg(long, value_name = "PORT|dns|none", value_parser = parse_reach)]
    agent_network: Vec<Reach>,
    /// A TCP port that the agent may listen on where it shares the host's network,
    /// on every interface; instead of what the policy says
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    agent_listen: Vec<u16>,
    /// An ACP method of the agent that reaches the editor besides the usual ones;
    /// where the editor acts by it, the agent counts as not confined
    #[arg(long, value_name = "METHOD", value_parser = forward::parse)]
    forward: Vec<String>,
    /// Do not offer the gate's own MCP server (remove, list, search and so on)
    /// to the agent
    #[arg(long)]
    no_mcp: bool,
    /// Accept weaker confinement where this machine allows no namespaces
    #[arg(long)]
    allow_partial: bool,
    /// Do not confine the agent at all: it can do whatever you can
    #[arg(long, conflicts_with = "allow_partial")]
    unconfined: bool,
    /// The agent's program and its arguments
    #[arg(last = true, required = true, value_name = "AGENT")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Port(u16),
    Dns,
    None,
}

fn parse_reach(text: &str) -> Result<Reach, String> {
    match text {
        "none" => Ok(Reach::None),
        "dns" => Ok(Reach::Dns),
        _ => match text.parse() {
            Ok(port) if port > 0 => Ok(Reach::Port(port)),
            _ => Err("expected a port from 1 to 65535, `dns` or `none`".to_owned()),
        },
    }
}

fn parse_variable(text: &str) -> Result<String, &'static str> {
    match text.split('=').next() {
        None | Some("") => Err("a variable has a name"),
        Some(_) => Ok(text.to_owned()),
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    process::check_children()?;
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    not_dumpable().or_fail("cannot hide this process's memory")?;
    let files = raise_file_limit();
    // Said early, with the same words as the gate would use.
    let _ = args.logging.filter()?;
    process::note_terminal("run", "ACP with an editor");
    // The sandbox compares the same paths again, when it looks up what it mounts.
    let opened = Opened::open_with(&args.common, |root, policy| agent_paths(&args, root, policy))?;
    opened.claim.warn(&opened.state_path, opened.workspace.root());
    let session = session(&args)?;
    let cell = cell(&args, &opened, &session, files)?;
    let paths =
        TrustedPaths { trusted: opened.trusted.clone(), ..cell.trusted_paths().map_err(explain)? };
    let shared = SharedPolicy::create().or_fail("cannot start the gate")?;
    let gate = start_gate(&args, &opened, &session, &shared)?;
    let watch = PolicyWatch::new(&opened.texts, paths, opened.operator.clone(), shared);
    let pending = cell.launch().map_err(explain)?;
    warn(&pending);
    warn_of_denied(&pending.report);
    let is_denied = !pending.report.denied.is_empty();
    warn_of_observing(&opened.policy);
    let ways = ways(&args, &opened);
    ways.warn();
    let changed = cell.write.iter().map(|grant| grant.path.clone());
    let configurations = agent_config::warn(&cell.workspace, changed);
    if let Some(Err(why)) = &pending.hatch {
        errln!("portcullis: note: the agent is not offered the gate's MCP server: {why}");
    }
    let suspects = pending.suspects.clone();
    let gate = introduce(gate, &pending, &args, &ways, &configurations, &cell)?;
    ship::check(&opened.state_path, &opened.audit.ship)?;
    let shipping = Shipping::start(&opened.state_path, &opened.audit.ship)?;
    let agent = pending.release().map_err(explain)?;
    let ended = Supervisor::new(agent, gate, signals, watch)?.run();
    shipping.finish();
    let Ended { code, at_once } = ended?;
    if at_once && code != 0 {
        explain_early_end(code, &args, &cell.network, &suspects, is_denied);
    }
    Ok(ExitCode::from(code))
}

fn ways<'a>(args: &'a Args, opened: &Opened) -> Ways<'a> {
    Ways::new(opened.policy.agent().terminal, &args.forward)
}

fn session(args: &Args) -> Result<Session, Failure> {
    let name = args.command.first().map(PathBuf::from);
    let name = name.as_ref().and_then(|path| path.file_stem()?.to_str());
    let name = name.filter(|name| name.parse::<crate::model::AgentName>().is_ok());
    session::session(args.common.agent(name.unwrap_or("agent"))?, Door::Acp)
}

fn cell(
    args: &Args,
    opened: &Opened,
    session: &Session,
    files: Option<u64>,
) -> Result<Cell, Failure> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::new("no agent was named").exit(Exit::Usage));
    };
    let floor = match (args.unconfined, args.allow_partial) {
        (true, _) => Enforcement::None,
        (_, true) => Enforcement::Partial,
        _ => Enforcement::Full,
    };
    let home = home(opened.workspace.root(), &session.agent)?;
    let mut cell = plain_cell(&Ground::from(opened), program.into(), home, floor);
    cell.alias = Some(alias(args)?);
    cell.arguments = arguments.to_vec();
    cell.environment = environment(&opened.policy.agent().env, &args.agent_env);
    cell.read.extend(named(&args.agent_read)?);
    cell.write.extend(named(&args.agent_write)?);
    cell.network = network(&args.agent_network, &args.agent_listen, cell.network)?;
    cell.hatch = !args.no_mcp && !ways(args, opened).any();
    cell.files = files;
    Ok(cell)
}

/// The workspace's path as it was given, absolute.
fn alias(args: &Args) -> Result<PathBuf, Failure> {
    std::path::absolute(&args.common.workspace).or_fail("cannot look up the workspace")
}

/// The agent's home and the paths that the agent gets besides those that the policy lets
/// it write.
fn agent_paths(args: &Args, root: &Path, policy: &Policy) -> Result<Vec<AgentPath>, Failure> {
    let path = |access, path| AgentPath { access, path, target: None };
    let mut paths = vec![path(sandbox::Access::Home, home(root, &session(args)?.agent)?)];
    paths.extend(policy.agent().read.iter().map(|read| path(sandbox::Access::Read, read.into())));
    let named = |access, given: &[PathBuf]| {
        let named = named(given)?.into_iter();
        Ok::<_, Failure>(named.map(move |grant| path(access, grant.path)).collect::<Vec<_>>())
    };
    paths.extend(named(sandbox::Access::Read, &args.agent_read)?);
    paths.extend(named(sandbox::Access::Write, &args.agent_write)?);
    Ok(paths)
}

/// What the operator names on the command line must be there.
fn named(paths: &[PathBuf]) -> Result<Vec<Grant>, Failure> {
    let grant = |path: &PathBuf| {
        let path = std::path::absolute(path).or_fail("cannot look up a directory")?;
        Ok(Grant { path, required: true })
    };
    paths.iter().map(grant).collect()
}

/// Only what is named, from the policy or the command line; a value on the
/// command line wins.
fn environment(names: &[String], options: &[String]) -> BTreeMap<OsString, OsString> {
    let mut environment = BTreeMap::new();
    let ours = names.iter().map(|name| (name.as_str(), None));
    let named = options.iter().map(|option| match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option.as_str(), None),
    });
    for (name, value) in ours.chain(named) {
        match value.map(OsString::from).or_else(|| std::env::var_os(name)) {
            Some(value) => environment.insert(name.into(), value),
            None => None,
        };
    }
    environment
}

fn network(options: &[Reach], listen: &[u16], policy: Network) -> Result<Network, Failure> {
    let mut network = if options.is_empty() { policy } else { reached(options) };
    match &mut network {
        _ if listen.is_empty() => {}
        Network::Connect { listen: ports, .. } => *ports = listen.to_vec(),
        Network::None => {
            return Err(Failure::new(
                "`--agent-listen` is for an agent that shares the host's network",
            )
            .exit(Exit::Usage)
            .help(
                "leave it out: in a network of its own the agent may listen on every port of \
                     127.0.0.1; or share the host's with `--agent-network PORT`",
            ));
        }
    }
    Ok(network)
}

fn reached(options: &[Reach]) -> Network {
    let ports: Vec<_> = options
        .iter()
        .filter_map(|reach| if let Reach::Port(port) = reach { Some(*port) } else { None })
        .collect();
    let dns = options.contains(&Reach::Dns);
    if options.contains(&Reach::None) || (ports.is_empty() && !dns) {
        Network::None
    } else {
        Network::Connect { ports, dns, listen: Vec::new() }
    }
}

fn start_gate(
    args: &Args,
    opened: &Opened,
    session: &Session,
    shared: &SharedPolicy,
) -> Result<Gate, Failure> {
    let (channel, theirs) = Channel::pair().or_fail("cannot start the gate")?;
    let [editor_in, editor_out] =
        take_standard_streams().or_fail("cannot take over stdin and stdout")?;
    let child = Command::new("/proc/self/exe")
        .args([gateway_process::COMMAND.to_owned(), std::process::id().to_string()])
        .stdin(std::os::fd::OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .or_fail("cannot start the gate")?;
    let order = protocol::Serve {
        launch: Launch {
            workspace: opened.workspace.root().to_owned(),
            state: opened.state_path.clone(),
            adopt: args.common.adopt.clone(),
            config: opened.operator.path.clone(),
            signatures: opened.operator.require_signature,
            signed_by: opened.signed_by.as_ref().map(ToString::to_string),
            audit: opened.audit.without_credentials(),
            log: args.logging.log.clone(),
        },
        workspace_alias: alias(args)?,
        agent: session.agent.to_string(),
        source: args.source.clone(),
        forward: args.forward.clone(),
    };
    let texts = packed(&opened.texts).or_fail("cannot hand the policy over")?;
    let mut gate = Gate::new(child, channel);
    let mut files = vec![texts.as_fd()];
    let signer = opened.audit.signer_key();
    let (asked, asking) = Channel::pair().or_fail("cannot start the gate")?;
    if signer.is_some() {
        files.push(asking.as_fd());
    }
    files.extend([shared.as_fd(), editor_in.as_fd(), editor_out.as_fd()]);
    gate.tell(&order, &files, "cannot start the gate")?;
    if let Some(public) = signer {
        signer::serve(asked, opened.audit.signer.clone(), &public)?;
    }
    Ok(gate)
}

/// Hands the waiting agent's streams to the gate, and returns when the start
/// is on record.
fn introduce(
    mut gate: Gate,
    pending: &PendingAgent,
    args: &Args,
    ways: &Ways<'_>,
    configurations: &[PathBuf],
    cell: &Cell,
) -> Result<Gate, Failure> {
    if let Progress::Confined { dropped_capabilities: true } = gate.next()? {
        let who = match pending.report.enforcement {
            Enforcement::None => "the gate gave up its powers; the agent keeps them",
            _ => "agent and gate gave up its powers",
        };
        errln!(
            "portcullis: note: started as root: {who}; files of other users may be out of reach"
        );
    }
    let mut facts = pending.report.facts();
    ways.note(&mut facts);
    let mcp = match &pending.hatch {
        Some(Ok(_)) => "offered".to_owned(),
        Some(Err(why)) => format!("not offered: {why}"),
        None if args.no_mcp => "not offered: `--no-mcp`".to_owned(),
        None => ways.why_alone(),
    };
    facts.insert("mcp".to_owned(), mcp.into());
    if !configurations.is_empty() {
        facts.insert(
            "agentConfig".to_owned(),
            configurations.iter().map(|c| c.to_string_lossy()).collect(),
        );
    }
    let opened = pending.hatch.iter().flatten();
    let entrance = opened.clone().map(|opened| opened.entrance.clone()).next();
    let granted = cell.read.iter().chain(&cell.write).map(|grant| grant.path.clone()).collect();
    let names = cell.environment.keys().filter_map(|name| name.to_str());
    let variables = names.map(str::to_owned).collect();
    let agent = protocol::Agent { facts, entrance, granted, variables };
    let mut streams = vec![pending.stdin.as_fd(), pending.stdout.as_fd(), pending.stderr.as_fd()];
    streams.extend(opened.map(|opened| opened.descriptor.as_fd()));
    gate.tell(&agent, &streams, "cannot hand the agent to the gate")?;
    match gate.next()? {
        Progress::Started => Ok(gate),
        Progress::Confined { .. } | Progress::NoAcp => Err(Failure::new("the gate lost its way")),
    }
}

fn warn(pending: &PendingAgent) {
    let report = &pending.report;
    match report.enforcement {
        Enforcement::Full => {}
        Enforcement::Partial => errln!(
            "portcullis: warning: the agent is only partly confined: {}",
            report.gaps.join("; ")
        ),
        Enforcement::None => errln!(
            "portcullis: warning: the agent is not confined: it can read and change whatever \
             you can, past policy, backups and log"
        ),
    }
    if !report.listen.is_empty() {
        let ports: Vec<_> = report.listen.iter().map(u16::to_string).collect();
        errln!(
            "portcullis: warning: the agent may accept connections from other machines, at port {} \
             and any that the kernel picks",
            ports.join(", ")
        );
    }
}

/// Says whose the grants are that the agent's user cannot use, and what helps.
fn warn_of_denied(report: &Report) {
    for DeniedGrant { path, write } in &report.denied {
        let (verb, rights) = if *write { ("change", "rwX") } else { ("read", "rX") };
        let owner = rustix::fs::stat(path).map_or("?".to_owned(), |s| s.st_uid.to_string());
        let (shown, agent) = (path.display(), report.uid);
        errln!(
            "portcullis: warning: the agent cannot {verb} `{shown}`: it belongs to user {owner}, \
             and the agent runs as user {agent}"
        );
        let own = rustix::process::geteuid().as_raw().to_string();
        let instead = match owner == own {
            true => String::new(),
            false => format!("; or start `portcullis run` as user {owner}"),
        };
        errln!(
            "  help: `setfacl -R -m u:{agent}:{rights},d:u:{agent}:{rights} {shown}`, or `chown -R \
             {agent} {shown}`{instead}; what lies in it was not looked at"
        );
    }
}

fn explain(error: LaunchError) -> Failure {
    match error {
        LaunchError::NotExecuted(_) => Failure::new(&error).help(
            "an interpreter or library may be out of reach: name its directory with --agent-read",
        ),
        LaunchError::SelfTest(ref surprises) if surprises.contains("home directory") => {
            Failure::new(&error).help(HOME_OUT_OF_REACH)
        }
        other => Failure::new(other),
    }
}

fn explain_early_end(
    code: u8,
    args: &Args,
    network: &Network,
    suspects: &[PathBuf],
    is_denied: bool,
) {
    let program = args.command.first().map(|p| p.to_string_lossy()).unwrap_or_default();
    errln!("portcullis: the agent `{program}` ended at once, with exit code {code}");
    if is_denied {
        errln!("  help: it cannot use what it was given, as a warning above says");
    } else if suspects.is_empty() {
        errln!(
            "  help: if it misses a file of its own installation, give it that directory with \
             --agent-read DIR"
        );
    }
    for suspect in suspects {
        errln!(
            "  help: its command line names what it may not read; if you trust it with that, \
             add `--agent-read {}`",
            suspect.display()
        );
    }
    if !args.unconfined && matches!(network, Network::Connect { .. }) {
        errln!(
            "  help: if it may not listen on a TCP port, name the port with --agent-listen PORT, and \
             with --agent-network PORT if it connects to itself"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_options_replace_the_policys() {
        let policy = Network::Connect { ports: vec![443], dns: true, listen: vec![4096] };
        let given = |options: &[Reach], listen: &[u16]| {
            network(options, listen, policy.clone()).map_err(|_| ())
        };
        let connect = |port, dns, listen| Network::Connect { ports: vec![port], dns, listen };
        assert_eq!(given(&[], &[]), Ok(policy.clone()));
        assert_eq!(given(&[], &[80]), Ok(connect(443, true, vec![80])));
        assert_eq!(given(&[Reach::None, Reach::Port(80)], &[]), Ok(Network::None));
        assert_eq!(given(&[Reach::Port(80)], &[]), Ok(connect(80, false, Vec::new())));
        assert_eq!(given(&[Reach::Port(80)], &[80]), Ok(connect(80, false, vec![80])));
        assert_eq!(given(&[Reach::None], &[80]), Err(()));
        assert_eq!(parse_reach("dns"), Ok(Reach::Dns));
        assert!(parse_reach("0").is_err() && parse_reach("https").is_err());
    }

    /// `doctor` alone said what to do where root's home lets nobody through.
    #[test]
    fn a_home_out_of_reach_is_explained() {
        let surprises = "write to the home directory (before: ok, after: EACCES)".to_owned();
        let failure = explain(LaunchError::SelfTest(surprises));
        assert_eq!(failure.advice(), Some(HOME_OUT_OF_REACH));
    }

    #[test]
    fn only_named_variables_pass() {
        let names = ["PATH".to_owned(), "SURELY_NOT_SET".to_owned()];
        let environment = environment(&names, &["A=1=2".to_owned(), "PATH=/x".to_owned()]);
        let words: Vec<_> = environment
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect();
        assert_eq!(words, ["A=1=2", "PATH=/x"]);
    }
}
