//! The start of a program in its sandbox with the gateway beside it, step by step.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};

use nix::sys::signalfd::SignalFd;
use serde_json::{Value, json};

use super::{
    credentials::Credentials,
    egress::{AllLinks, Egress},
    gateway_process,
    options::SandboxOptions,
    protocol::{self, AgentService, Progress},
    supervisor::GatewayProcess,
    workspaces::{MountNeed, Workspaces},
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        launch::Launch,
        notifier,
        opened::Opened,
        policy_loading::warn_of_observed_connections,
        policy_transfer::{SharedPolicy, packed},
        preset_hosts::PresetHosts,
        process,
        signer::{self, Program},
    },
    cli::launch_failure::explain,
    model::{AgentName, for_shell},
    policy::NetworkRule,
    sandbox::{
        BuiltSandbox, Channel, DeniedGrant, Enforcement, Mechanism, Mount, Network, NoMount,
        PendingAgent, Report, SandboxSpec, not_dumpable, raise_file_limit, stop_signals,
        suspend_signal, while_stoppable,
    },
};

/// The state of a broker before it opens anything.
pub(in crate::cli) struct SandboxBroker {
    pub(in crate::cli) signals: SignalFd,
    /// `SIGTSTP`, sent by Ctrl-Z.
    pub(in crate::cli) suspend: SignalFd,
    /// The agent's soft limit of open files.
    pub(in crate::cli) files: Option<u64>,
}

impl SandboxBroker {
    /// Makes this process a broker.
    pub(in crate::cli) fn new(options: &SandboxOptions) -> Result<Self, Failure> {
        process::check_children()?;
        let signals = stop_signals().or_fail("cannot watch for signals")?;
        let suspend = suspend_signal().or_fail("cannot watch for signals")?;
        not_dumpable().or_fail("cannot hide this process's memory")?;
        let files = raise_file_limit();
        // Checked early, with the message of the gateway.
        let _ = options.logging.filter()?;
        Ok(Self { signals, suspend, files })
    }
}

/// Starts the gateway process, which gets `streams` for the `service`.
pub(in crate::cli) fn start_gateway(
    options: &SandboxOptions,
    workspaces: &Workspaces,
    agent: &AgentName,
    shared: &[SharedPolicy],
    service: AgentService,
    mount_need: MountNeed,
    streams: &[OwnedFd],
) -> Result<GatewayProcess, Failure> {
    // Nothing has started yet that would have to be stopped.
    while_stoppable(|| workspaces.settle_scratch(agent, mount_need))
        .or_fail("cannot unblock signals")?;
    let (channel, theirs) = Channel::pair().or_fail("cannot start the gateway")?;
    let child = process::keep_places(&mut Command::new("/proc/self/exe"))
        .args([gateway_process::COMMAND.to_owned(), std::process::id().to_string()])
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .or_fail("cannot start the gateway")?;
    let notifiers = workspaces.all().map(|opened| notifier::start(&opened.operator));
    let notifiers = notifiers.collect::<Result<Vec<_>, _>>()?;
    let workspace = |(opened, notifier): (&Opened, &Option<_>)| protocol::WorkspaceOrder {
        launch: Launch {
            workspace: opened.workspace.root().to_owned(),
            state: opened.state_path.clone(),
            // A default state directory belongs to its workspace.
            adopt: options.common.adopt.clone().filter(|_| std::ptr::eq(opened, &workspaces.main)),
            config: opened.operator.path.clone(),
            signatures: opened.operator.require_signature,
            signed_by: opened.signed_by.as_ref().map(ToString::to_string),
            audit: opened.audit.without_credentials(),
            notifies: notifier.is_some(),
            // The first workspace decides on connections.
            hosts: match std::ptr::eq(opened, &workspaces.main) {
                true => workspaces.hosts.clone(),
                false => PresetHosts::default(),
            },
            log: options.logging.log.clone(),
        },
        alias: opened.named.clone(),
        writable: workspaces.writable_beside(opened),
    };
    let order = protocol::ServeOrder {
        workspaces: workspaces.all().zip(&notifiers).map(workspace).collect(),
        agent: agent.to_string(),
        service,
        mount: mount_need != MountNeed::Unwanted,
    };
    let mut gateway = GatewayProcess::new(child, channel);
    let (mut files, mut signers) = (Vec::new(), Vec::new());
    for ((opened, shared), notifier) in workspaces.all().zip(shared).zip(notifiers) {
        let texts = packed(&opened.texts).or_fail("cannot hand the policy over")?;
        files.push(texts);
        if let Some(public) = opened.audit.signer_key() {
            let (asked, asking) = Channel::pair().or_fail("cannot start the gateway")?;
            files.push(asking.into());
            let without = opened.operator.key_variables().map(str::to_owned).collect();
            signers.push((asked, Program::new(&opened.audit, public, without)?));
        }
        if let Some((child, channel)) = notifier {
            // It ends with this process.
            child.leave();
            files.push(channel);
        }
        files.push(shared.as_fd().try_clone_to_owned().or_fail("cannot start the gateway")?);
    }
    let files: Vec<_> = files.iter().chain(streams).map(OwnedFd::as_fd).collect();
    gateway.tell(&order, &files, "cannot start the gateway")?;
    for (asked, program) in signers {
        signer::serve(asked, program)?;
    }
    Ok(gateway)
}

/// Waits until the gateway is confined.
pub(in crate::cli) fn await_confined(
    gateway: &mut GatewayProcess,
    floor: Enforcement,
) -> Result<(), Failure> {
    if let Progress::Confined { dropped_capabilities: true } = gateway.next()? {
        let who = match floor {
            Enforcement::None => "the gateway gave up its powers; the agent keeps them",
            _ => "agent and gateway gave up their powers",
        };
        errln!(
            "portcullis: note: started as root: {who}; files of other users may be out of reach"
        );
    }
    Ok(())
}

/// The reason why a wanted mount is missing.
#[derive(Debug)]
pub(in crate::cli) struct Missing {
    pub(in crate::cli) reason: String,
    help: &'static str,
}

impl From<NoMount> for Missing {
    fn from(reason: NoMount) -> Self {
        Self { reason: reason.to_string(), help: reason.help() }
    }
}

impl Missing {
    /// Notes it, with advice.
    pub(in crate::cli) fn note(&self) {
        let Self { reason, help } = self;
        errln!(
            "portcullis: note: the agent's programs do not see the workspace as files: {reason}"
        );
        errln!("  help: {help}; or leave it out with `--no-mount`");
    }

    fn refuse(&self, otherwise: &str) -> Failure {
        let Self { reason, help } = self;
        Failure::new(format_args!("the workspace cannot be mounted in the sandbox: {reason}"))
            .help(format_args!("{help}; {otherwise}"))
    }
}

/// Builds the sandbox, with a mount as needed, which the gateway then serves: its start is
/// recorded. `otherwise` is the advice if a required mount is impossible.
///
/// # Errors
/// Also when a required mount is missing, with advice.
pub(in crate::cli) fn build(
    gateway: &mut GatewayProcess,
    spec: &mut SandboxSpec,
    mount_need: MountNeed,
    otherwise: &str,
) -> Result<(BuiltSandbox, Option<Missing>), Failure> {
    spec.mount = mount_need != MountNeed::Unwanted;
    let built = spec.build();
    let missing = match built {
        Ok(mut built) => match built.mount.take() {
            Some(Ok(mount)) => {
                serve_mount(gateway, mount)?;
                return Ok((built, None));
            }
            None => return Ok((built, None)),
            Some(Err(reason)) => Missing::from(reason),
        },
        // A sandbox without a mount needs less.
        Err(error) if mount_need == MountNeed::Preferred => Missing {
            reason: error.to_string(),
            help: "see `mount` in what `portcullis doctor` says",
        },
        Err(error) => return Err(explain(error)),
    };
    if mount_need == MountNeed::Required {
        return Err(missing.refuse(otherwise));
    }
    // Built as if no mount had been wanted: if root starts it, that reaches further.
    spec.mount = false;
    let built = spec.build().map_err(explain)?;
    gateway.tell(&None::<protocol::Mount>, &[], "cannot start the gateway")?;
    Ok((built, Some(missing)))
}

/// Makes the gateway serve the mounts; returns when it does and its start is recorded.
fn serve_mount(gateway: &mut GatewayProcess, mount: Mount) -> Result<(), Failure> {
    let order = protocol::Mount { user: mount.user, group: mount.group };
    let files = mount.devices.iter().chain(&mount.processes).map(OwnedFd::as_fd);
    let files: Vec<_> = files.collect();
    gateway.tell(&Some(order), &files, "cannot hand the mount to the gateway")?;
    // A copy that stays open would let programs wait for a gateway that has ended.
    drop(mount);
    await_confined(gateway, Enforcement::Full)?;
    match gateway.next()? {
        Progress::Mounted => Ok(()),
        _ => Err(Failure::new("the gateway sent an unexpected message")),
    }
}

/// A session whose start is recorded.
pub(in crate::cli) struct Recorded {
    /// Its identifier.
    pub(in crate::cli) session: String,
    /// The number of its first record in the log of each workspace.
    pub(in crate::cli) records: Vec<u64>,
}

/// Passes the waiting agent's streams and its proxy to the gateway; returns when the start, with
/// the `facts`, is recorded.
pub(in crate::cli) fn introduce(
    gateway: &mut GatewayProcess,
    (pending, egress): (&PendingAgent, Option<AllLinks>),
    spec: &SandboxSpec,
    mut facts: BTreeMap<String, Value>,
) -> Result<Recorded, Failure> {
    let network = match &spec.network {
        Network::None => "none".into(),
        Network::Connect { ports, dns, .. } => json!({ "ports": ports, "dns": dns }),
    };
    facts.insert("agentNetwork".to_owned(), network);
    let opened = pending.sandbox_socket.iter().flatten();
    let entrance = opened.clone().map(|opened| opened.entrance.clone()).next();
    let granted = spec.read.iter().chain(&spec.write).map(|grant| grant.path.clone()).collect();
    let listeners = spec.listeners.iter().filter(|_| egress.is_some());
    let phantoms = listeners.flat_map(|listener| listener.environment.keys());
    let names = spec.environment.keys().chain(phantoms).filter_map(|name| name.to_str());
    let variables = names.map(str::to_owned).collect();
    let (egress, credentials) = egress.unzip();
    let (credentials, processes): (Vec<_>, Vec<_>) = credentials.into_iter().flatten().unzip();
    if !credentials.is_empty() {
        let ids: Vec<_> = credentials.iter().map(|route| &*route.id).collect();
        facts.insert("credentialIds".to_owned(), ids.into());
    }
    let ends = egress.iter().flatten().count();
    let commands = pending.commands.is_some();
    let agent = protocol::AgentOrder {
        facts,
        entrance,
        commands,
        granted,
        variables,
        egress: ends,
        credentials,
    };
    let mut streams: Vec<_> = pending.streams.iter().flatten().map(OwnedFd::as_fd).collect();
    streams.extend(opened.map(|opened| opened.descriptor.as_fd()));
    streams.extend(pending.commands.iter().map(Channel::as_fd));
    streams.extend(egress.iter().flatten().chain(&processes).map(OwnedFd::as_fd));
    gateway.tell(&agent, &streams, "cannot hand the agent to the gateway")?;
    match gateway.next()? {
        Progress::Started { session, records } => Ok(Recorded { session, records }),
        _ => Err(Failure::new("the gateway sent an unexpected message")),
    }
}

/// Starts what serves the sandbox's proxy and its credentials, if it has some, for `agent`. Says
/// what a preset opens, and where rules of hosts have no effect.
pub(in crate::cli) fn start_egress(
    built: &mut BuiltSandbox,
    spec: &SandboxSpec,
    workspaces: &Workspaces,
    (agent, credentials): (&AgentName, Credentials),
) -> Result<Option<(Egress, AllLinks)>, Failure> {
    let policy = &workspaces.main.policy;
    if workspaces.hosts.are_none() {
        errln!("portcullis: warning: the preset names no host, so that its login reaches none");
    }
    if let Some(listener) = built.sockets.proxy.take() {
        note_hosts(workspaces, agent);
        warn_of_observed_connections(policy);
        let listeners = std::mem::take(&mut built.sockets.listeners);
        return Egress::start(listener, credentials, listeners).map(Some);
    }
    match spec.network {
        Network::Connect { .. } => errln!(
            "portcullis: warning: `--agent-network` lets the agent connect past the rules of \
             `[network]` and of a preset: no connection is decided or recorded"
        ),
        Network::None
            if spec.proxy && policy.network().may_allow() && spec.floor > Enforcement::None =>
        {
            errln!(
                "portcullis: warning: the agent reaches no host, not even one that `[network]` or \
                 a preset allows: \
             its proxy needs a network namespace"
            )
        }
        Network::None if !spec.proxy && policy.network().may_allow() => errln!(
            "portcullis: note: `--agent-network none`: the agent reaches no host, not even one \
             that `[network]` or a preset allows, and its attempts are not recorded"
        ),
        _ => {}
    }
    Ok(None)
}

/// Says which hosts a preset lets the agent reach, and which of them the policy does not.
fn note_hosts(workspaces: &Workspaces, agent: &AgentName) {
    let hosts = workspaces.main.policy.network().session_hosts();
    let policies = workspaces.all().map(|opened| &opened.policy);
    let withheld = policies.flat_map(|policy| policy.withheld_hosts(hosts, agent));
    let withheld: BTreeSet<_> = withheld.map(NetworkRule::id).collect();
    let (withheld, given): (Vec<_>, Vec<_>) =
        workspaces.hosts.shown().partition(|(rule, _)| withheld.contains(rule));
    let list = |hosts: Vec<(&str, String)>| {
        let hosts = hosts.into_iter().map(|(_, host)| format!("`{host}`"));
        hosts.collect::<Vec<_>>().join(", ")
    };
    if !given.is_empty() {
        errln!("portcullis: note: the preset lets the agent connect to {}", list(given));
    }
    if !withheld.is_empty() {
        errln!(
            "portcullis: warning: the policy's rules of `[network]` apply instead of the preset's hosts, and deny \
             {}\n  help: allow in the policy those that the agent needs",
            list(withheld)
        );
    }
}

/// Returns the facts of a start about the hosts that the agent reaches.
pub(in crate::cli) fn host_facts(
    workspaces: &Workspaces,
    links: Option<&AllLinks>,
) -> BTreeMap<String, Value> {
    if links.is_none() {
        return BTreeMap::new();
    }
    let mode = workspaces.main.policy.network().mode().as_str();
    let mut facts = BTreeMap::from([("proxy".to_owned(), mode.into())]);
    let (rules, hosts): (Vec<_>, Vec<_>) = workspaces.hosts.shown().unzip();
    if !hosts.is_empty() {
        facts.insert("presetHosts".to_owned(), hosts.into());
        facts.insert("presetRules".to_owned(), rules.into());
    }
    facts
}

/// Warns of weak enforcement, and of agent paths without effect.
pub(in crate::cli) fn warn(report: &Report) {
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
    if report.limits.memory.is_some_and(|limit| limit.by == Mechanism::Rlimit) {
        errln!(
            "portcullis: warning: the limit on memory applies to each process of the agent, not to \
             all together, and a program can exceed it on purpose (docs/agents.md, \"Limits\"): \
             no cgroup with the controller `memory` can be made here"
        );
    }
    warn_of_denied(report);
}

/// Warns of agent paths that the agent's user cannot use, with their owner and advice.
fn warn_of_denied(report: &Report) {
    for DeniedGrant { path, write } in &report.denied {
        let (verb, rights) = if *write { ("change", "rwX") } else { ("read", "rX") };
        let owner = rustix::fs::stat(path).map_or("?".to_owned(), |s| s.st_uid.to_string());
        let (shown, agent) = (path.display(), report.uid);
        let is_partial = report.enforcement == Enforcement::Partial;
        if let Some(above) = impassable(path, agent).filter(|_| is_partial) {
            errln!(
                "portcullis: warning: the agent cannot {verb} `{shown}`: user {agent}, as which it \
                 runs, may not pass the directory `{}`\n  help: `setfacl -m u:{agent}:x {}`",
                above.display(),
                for_shell(above)
            );
            continue;
        }
        errln!(
            "portcullis: warning: the agent cannot {verb} `{shown}`: it belongs to user {owner}, \
             and the agent runs as user {agent}"
        );
        let own = rustix::process::geteuid().as_raw().to_string();
        let instead = match owner == own {
            true => String::new(),
            false => format!("; or start `portcullis run` as user {owner}"),
        };
        let file = for_shell(path);
        errln!(
            "  help: `setfacl -R -m u:{agent}:{rights},d:u:{agent}:{rights} {file}`, or `chown -R \
             {agent} {file}`{instead}; its content was not checked"
        );
    }
}

/// Returns the first directory above a path that a user may not pass by its mode.
fn impassable(path: &Path, user: u32) -> Option<&Path> {
    let mut above: Vec<_> = path.ancestors().skip(1).collect();
    above.reverse();
    above.into_iter().find(|directory| {
        rustix::fs::stat(*directory).is_ok_and(|stat| {
            let search = if stat.st_uid == user { 0o100 } else { 0o001 };
            stat.st_mode & search == 0
        })
    })
}
