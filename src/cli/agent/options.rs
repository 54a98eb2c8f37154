//! The options of the commands that start a program in a sandbox, and the sandbox built from
//! them.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    agent_config, agent_limits,
    workspaces::{self, AddedDirectory, Workspaces},
};
use crate::{
    app::{
        agent_sandbox::{SandboxGround, home, plain_spec, resource_limits},
        failure::{Context as _, Exit, Failure},
        logging,
        opened::Opened,
        options::Common,
        policy_loading::warn_of_unused_keys,
        preset_hosts::PresetHosts,
        presets::{self, Preset, PresetParser},
        trusted_paths,
    },
    model::{AgentName, Escaped},
    policy::{AgentLimits, Policy},
    sandbox::{self, AgentPath, Enforcement, Grant, Network, SandboxSpec, Trusted},
};

/// The options of these commands.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct SandboxOptions {
    #[command(flatten)]
    pub(in crate::cli) common: Common,
    #[command(flatten)]
    pub(in crate::cli) logging: logging::Options,
    /// The agent's preset, which gives it its installation to read, variables and hosts: a name that
    /// `portcullis agents` lists, or a preset file, whose path has a `/`
    #[arg(long, value_name = "NAME|FILE", value_parser = PresetParser, hide_possible_values = true)]
    preset: Option<String>,
    /// A directory or file that the agent may read and execute, besides the
    /// policy's
    #[arg(long, value_name = "DIR")]
    agent_read: Vec<PathBuf>,
    /// A directory or file that the agent may also change
    #[arg(long, value_name = "DIR")]
    agent_write: Vec<PathBuf>,
    /// Accept this path of `--agent-write`, which is refused otherwise because it is, contains or
    /// lies in an agent's own configuration
    #[arg(long, value_name = "DIR")]
    accept_agent_config: Vec<PathBuf>,
    /// An environment variable of the agent: its current value, or the given one
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    agent_env: Vec<String>,
    /// Share the host's network, past `[network]` and a preset's hosts: a TCP port of every host,
    /// or `dns` for look-ups of names over UDP. No connection is decided or recorded. With `none`
    /// there is neither a network nor the proxy
    #[arg(long, value_name = "PORT|dns|none", value_parser = parse_reach)]
    agent_network: Vec<NetworkReach>,
    /// A TCP port on which the agent may listen, on every interface, if it shares the host's
    /// network; 0 allows the ports that the kernel picks
    #[arg(long, value_name = "PORT")]
    agent_listen: Vec<u16>,
    /// A limit of the agent's programs: `memory=SIZE` (such as `8GiB`), `processes=NUMBER` or
    /// `cpu=NUMBER`; replaces the policy's
    #[arg(long, value_name = "KEY=VALUE", value_parser = agent_limits::parse)]
    agent_limit: Vec<AgentLimits>,
    /// Another directory that the agent works in, each with a policy, log and backups of its
    /// own, up to 8 [default policy: that of `--policy`]
    #[arg(long, value_name = "DIR[=POLICY]", value_parser = AddedDirectory::parse)]
    add_dir: Vec<AddedDirectory>,
    /// The file that the preset came from.
    #[arg(skip)]
    preset_file: Option<PathBuf>,
    /// The preset itself.
    #[arg(skip)]
    loaded_preset: Option<Preset>,
}

/// The purpose of a program in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Purpose {
    /// Work on the files of the workspace.
    Work,
    /// A login, which stores the agent's credentials in its home. The workspace is an empty
    /// directory, and the network has the hosts of a preset alone.
    Login,
}

impl SandboxOptions {
    /// Returns the named preset. Options of the command line apply, too; its network
    /// instead of the preset's hosts.
    pub(in crate::cli) fn preset(&mut self) -> Result<Option<Preset>, Failure> {
        let Some(reference) = &self.preset else { return Ok(None) };
        let (preset, file) = presets::load(reference)?;
        let wrong = |reason: &str| {
            let message = format_args!("the preset `{reference}` cannot be used: {reason}");
            Failure::new(message).exit(Exit::Usage)
        };
        for variable in preset.env.iter().chain(&preset.set) {
            parse_variable(variable).map_err(wrong)?;
        }
        let variables = preset.env.iter().chain(&preset.set).cloned();
        self.agent_env = variables.chain(std::mem::take(&mut self.agent_env)).collect();
        self.preset_file = file;
        self.loaded_preset = Some(preset.clone());
        Ok(Some(preset))
    }

    /// Returns true if the agent was given a name.
    pub(in crate::cli) fn names_agent(&self) -> bool {
        self.preset.is_some() || self.common.agent.is_some()
    }

    /// Suggests the preset of an agent for which no options were given.
    pub(in crate::cli) fn suggest_preset(&self, command: &[OsString]) {
        let is_given = self.preset.is_some()
            || !self.agent_read.is_empty()
            || !self.agent_env.is_empty()
            || !self.agent_network.is_empty();
        let program = command.first().filter(|_| !is_given);
        if let Some(preset) = program.and_then(|name| presets::for_program(Path::new(name))) {
            errln!(
                "portcullis: note: this is {}: `--preset {}` gives it what it needs, and \
                 `portcullis agents {1}` says what that is",
                preset.title,
                preset.name
            );
        }
    }

    /// Opens the workspaces that the options name, for `agent`.
    pub(in crate::cli) fn open(
        &self,
        agent: &AgentName,
        purpose: Purpose,
    ) -> Result<Workspaces, Failure> {
        let further = workspaces::paths(&self.add_dir)?;
        // The sandbox checks the same paths again when it mounts them.
        let paths = |workspace: &str, policy: &Policy| {
            Ok([self.agent_paths(agent, workspace, policy)?, further.clone()].concat())
        };
        let file = self.preset_file.iter();
        let file = file.map(|path| (Trusted::Configuration, path.clone())).collect();
        let mut main = Opened::open_with(&self.common, trusted_paths::listed(file)?, paths)?;
        warn_of_unused_keys(&main.operator);
        main.claim.warn(&main.state_path, main.workspace.root());
        let granted = self.agent_paths(agent, &main.agent_data_name(), &main.policy)?;
        let hosts = self.preset_hosts(&main.policy, purpose)?;
        main.policy.give_hosts(hosts.rules()?);
        Workspaces::open((main, hosts), &self.add_dir, &self.common, granted)
    }

    /// Returns the hosts that the preset gives the session.
    fn preset_hosts(&self, policy: &Policy, purpose: Purpose) -> Result<PresetHosts, Failure> {
        let Some(preset) = &self.loaded_preset else { return Ok(PresetHosts::default()) };
        let hosts = hosts_of(preset, policy, &self.agent_env, purpose)?;
        Ok(match &self.preset_file {
            Some(file) => hosts.of_file(file),
            None => hosts,
        })
    }

    /// Returns the sandbox of `agent`, which runs `command`.
    pub(in crate::cli) fn spec(
        &self,
        workspaces: &Workspaces,
        agent: &AgentName,
        command: &[OsString],
        floor: Enforcement,
    ) -> Result<SandboxSpec, Failure> {
        let opened = &workspaces.main;
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::new("no agent was named").exit(Exit::Usage));
        };
        let home = home(&opened.agent_data_name(), agent)?;
        let mut spec = plain_spec(&SandboxGround::from(opened), program.into(), home, floor);
        spec.alias = Some(opened.named.clone());
        workspaces.add_further(&mut spec);
        spec.arguments = arguments.to_vec();
        spec.environment = environment(&opened.policy.agent().env, &self.agent_env);
        spec.read.extend(named(&self.agent_read)?);
        spec.write.extend(named(&self.agent_write)?);
        agent_config::refuse(&spec, &self.accept_agent_config)?;
        spec.limits = resource_limits(&agent_limits::in_force(
            &self.agent_limit,
            opened.policy.agent().limits,
        ));
        spec.proxy = opened.policy.network().needs_proxy() && self.agent_network.is_empty();
        spec.network = network(&self.agent_network, &self.agent_listen)?;
        if let Some(preset) = self.loaded_preset.as_ref().filter(|_| floor > Enforcement::None) {
            let given = spec.read_programs(&preset.programs).map_err(Failure::new)?;
            let preset = Escaped(&preset.name);
            for reason in given.passed_over {
                errln!("portcullis: warning: the preset `{preset}` skips a program: {reason}");
            }
            if !given.read.is_empty() {
                let read: Vec<_> =
                    given.read.iter().map(|p| format!("`{}`", p.display())).collect();
                let read = read.join(", ");
                errln!("portcullis: note: the preset `{preset}` lets the agent read {read}");
            }
        }
        Ok(spec)
    }

    /// Returns the agent's home and the agent paths in addition to those that the policy makes
    /// writable.
    fn agent_paths(
        &self,
        agent: &AgentName,
        workspace: &str,
        policy: &Policy,
    ) -> Result<Vec<AgentPath>, Failure> {
        let path = |access, path| AgentPath { access, path, target: None };
        let mut paths = vec![path(sandbox::Access::Home, home(workspace, agent)?)];
        paths.extend(
            policy.agent().read.iter().map(|read| path(sandbox::Access::Read, read.into())),
        );
        let named = |access, given: &[PathBuf]| {
            let named = named(given)?.into_iter();
            Ok::<_, Failure>(named.map(move |grant| path(access, grant.path)).collect::<Vec<_>>())
        };
        paths.extend(named(sandbox::Access::Read, &self.agent_read)?);
        paths.extend(named(sandbox::Access::Write, &self.agent_write)?);
        Ok(paths)
    }
}

/// Returns the hosts of a preset for an agent with the variables of the policy and of `options`.
pub(in crate::cli) fn hosts_of(
    preset: &Preset,
    policy: &Policy,
    options: &[String],
    purpose: Purpose,
) -> Result<PresetHosts, Failure> {
    let environment = environment(&policy.agent().env, options);
    PresetHosts::of(preset, &environment, purpose == Purpose::Login).map_err(|reason| {
        let name = Escaped(&preset.name);
        Failure::new(format_args!("the preset `{name}` cannot be used: {reason}")).exit(Exit::Usage)
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetworkReach {
    Port(u16),
    Dns,
    None,
}

fn parse_reach(text: &str) -> Result<NetworkReach, String> {
    match text {
        "none" => Ok(NetworkReach::None),
        "dns" => Ok(NetworkReach::Dns),
        _ => match text.parse() {
            Ok(port) if port > 0 => Ok(NetworkReach::Port(port)),
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

/// Returns the paths that the operator named on the command line, which must exist.
fn named(paths: &[PathBuf]) -> Result<Vec<Grant>, Failure> {
    let grant = |path: &PathBuf| {
        let path = std::path::absolute(path).or_fail("cannot look up a directory")?;
        Ok(Grant { path, required: true })
    };
    paths.iter().map(grant).collect()
}

/// Returns the variables that policy or command line name; a value on the command line has
/// precedence.
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

fn network(options: &[NetworkReach], listen: &[u16]) -> Result<Network, Failure> {
    let mut network = reached(options);
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

fn reached(options: &[NetworkReach]) -> Network {
    let ports: Vec<_> = options
        .iter()
        .filter_map(|reach| if let NetworkReach::Port(port) = reach { Some(*port) } else { None })
        .collect();
    let dns = options.contains(&NetworkReach::Dns);
    if options.contains(&NetworkReach::None) || (ports.is_empty() && !dns) {
        Network::None
    } else {
        Network::Connect { ports, dns, listen: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_network_is_shared_only_where_an_option_says_so() {
        let given =
            |options: &[NetworkReach], listen: &[u16]| network(options, listen).map_err(|_| ());
        let connect = |port, dns, listen| Network::Connect { ports: vec![port], dns, listen };
        assert_eq!(given(&[], &[]), Ok(Network::None));
        assert_eq!(given(&[], &[80]), Err(()));
        assert_eq!(given(&[NetworkReach::None, NetworkReach::Port(80)], &[]), Ok(Network::None));
        assert_eq!(given(&[NetworkReach::Port(80)], &[]), Ok(connect(80, false, Vec::new())));
        assert_eq!(given(&[NetworkReach::Port(80)], &[80]), Ok(connect(80, false, vec![80])));
        assert_eq!(given(&[NetworkReach::None], &[80]), Err(()));
        assert_eq!(parse_reach("dns"), Ok(NetworkReach::Dns));
        assert!(parse_reach("0").is_err() && parse_reach("https").is_err());
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
