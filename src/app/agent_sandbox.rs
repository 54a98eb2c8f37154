//! The sandbox that a policy gives an agent.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy as _;

use super::{
    failure::{Context as _, Failure},
    opened::Opened,
    trusted_paths::homes_below,
};
use crate::{
    model::AgentName,
    policy::{AgentLimits, Policy},
    sandbox::{
        Enforcement, Grant, Network, ResourceLimits, SandboxSpec, StandardStreams, TrustedPath,
        share_homes,
    },
};

/// The help of a failure of the self-test to write to the agent's home.
pub(crate) const HOME_OUT_OF_REACH: &str = "the agent runs as another user here, who must be able to reach its home: set XDG_DATA_HOME to a directory that other users may enter";

/// The parts of a sandbox besides the agent.
pub(crate) struct SandboxGround<'a> {
    pub(crate) policy: &'a Policy,
    /// Paths that the agent must not change.
    pub(crate) trusted: Vec<TrustedPath>,
    pub(crate) workspace: &'a Path,
    pub(crate) state: &'a Path,
}

impl<'a> From<&'a Opened> for SandboxGround<'a> {
    fn from(opened: &'a Opened) -> Self {
        Self {
            policy: &opened.policy,
            trusted: [&opened.trusted[..], &opened.policy_files].concat(),
            workspace: opened.workspace.root(),
            state: &opened.state_path,
        }
    }
}

/// Returns the sandbox that the policy alone gives a program, with an empty
/// environment.
pub(crate) fn plain_spec(
    ground: &SandboxGround<'_>,
    program: PathBuf,
    home: PathBuf,
    floor: Enforcement,
) -> SandboxSpec {
    let agent = ground.policy.agent();
    let grants = |paths: &[String]| {
        paths.iter().map(|path| Grant { path: path.into(), required: false }).collect()
    };
    SandboxSpec {
        program: program.into(),
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        workspace: ground.workspace.to_owned(),
        alias: None,
        further: Vec::new(),
        links: Vec::new(),
        state: ground.state.to_owned(),
        trusted: ground.trusted.clone(),
        home,
        read: grants(&agent.read),
        write: grants(&agent.write),
        network: Network::None,
        floor,
        sandbox_socket: false,
        limits: resource_limits(&agent.limits),
        commands: false,
        files: None,
        streams: StandardStreams::Pipes,
        mount: false,
        proxy: false,
        listeners: Vec::new(),
        unconnected: 0,
        socket_tables: false,
    }
}

/// Converts the limits of a policy or the command line to those of a sandbox.
pub(crate) fn resource_limits(limits: &AgentLimits) -> ResourceLimits {
    ResourceLimits {
        memory: limits.memory,
        processes: limits.most_processes(),
        needs_processes: limits.processes.is_some(),
        cpu: limits.cpu,
    }
}

/// Keeps the homes and scratch directories of all agents from being removed until the file is
/// closed.
///
/// # Errors
/// When they are being removed, or there is no place for them.
pub(crate) fn keep_homes() -> Result<OwnedFd, Failure> {
    let homes = homes_below(&data_directory()?);
    let shown = homes.display();
    let kept = share_homes(&homes).or_fail(format_args!("cannot use the homes in `{shown}`"))?;
    kept.ok_or_else(|| {
        Failure::new(format_args!("another process removes the homes in `{shown}`"))
            .help("`portcullis uninstall` does that: wait for its end")
    })
}

fn data_directory() -> Result<PathBuf, Failure> {
    let directories = etcetera::base_strategy::Xdg::new()
        .or_fail("cannot find a place for the agent's home directory")?;
    Ok(directories.data_dir())
}

/// Returns the agent's home directory, `$XDG_DATA_HOME/portcullis/homes/WORKSPACE/AGENT`, where
/// `workspace` is the workspace's [`agent_data_name`](super::state_directory::agent_data_name).
pub(crate) fn home(workspace: &str, agent: &AgentName) -> Result<PathBuf, Failure> {
    Ok(home_below(&data_directory()?, workspace, agent))
}

/// Returns the agent's home directory, where `data` replaces `$XDG_DATA_HOME`.
pub(crate) fn home_below(data: &Path, workspace: &str, agent: &AgentName) -> PathBuf {
    homes_below(data).join(workspace).join(agent.as_str())
}
