//! The workspaces of a sandbox: the one in which its program begins, and further ones, each with
//! a policy, a state directory and a log of its own.

use std::{os::fd::OwnedFd, path::PathBuf, thread};

use super::policy_watch::PolicyWatch;
use crate::{
    app::{
        agent_sandbox::keep_homes,
        failure::{Context as _, Exit, Failure},
        opened::Opened,
        options::Common,
        policy_loading::warn_of_observing,
        policy_transfer::SharedPolicy,
        preset_hosts::PresetHosts,
        scratch,
        ship::{self, Shipping},
    },
    model::AgentName,
    sandbox::{self, Access, AgentPath, SandboxSpec, TrustedPaths, all_apart},
};

/// The maximum of further workspaces.
const MAX_FURTHER: usize = 8;

/// A further workspace as the operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct AddedDirectory {
    path: PathBuf,
    /// Its policy, if different from the first workspace's.
    policy: Option<String>,
}

impl AddedDirectory {
    /// Parses `DIR[=POLICY]`. A directory with a `=` in its name needs one at the end, too.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (path, policy) = text.rsplit_once('=').unwrap_or((text, ""));
        if path.is_empty() {
            return Err("expected a directory");
        }
        let policy = Some(policy.to_owned()).filter(|policy| !policy.is_empty());
        Ok(Self { path: path.into(), policy })
    }
}

/// Returns the paths of further workspaces, which must not overlap with other paths.
pub(super) fn paths(added: &[AddedDirectory]) -> Result<Vec<AgentPath>, Failure> {
    if added.len() > MAX_FURTHER {
        let message = format_args!("more than {MAX_FURTHER} directories were added");
        return Err(Failure::new(message).exit(Exit::Usage));
    }
    let path = |added: &AddedDirectory| {
        let path = std::path::absolute(&added.path).or_fail("cannot look up the workspace")?;
        Ok(AgentPath { access: Access::Workspace, path, target: None })
    };
    added.iter().map(path).collect()
}

/// The need of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum MountNeed {
    /// No agent starts without it.
    Required,
    /// A mount if possible.
    Preferred,
    /// No mount.
    Unwanted,
}

/// The workspaces, opened and checked against each other.
pub(in crate::cli) struct Workspaces {
    /// The workspace in which the program begins, with the policy of the sandbox.
    pub(in crate::cli) main: Opened,
    /// The hosts of a preset, which its policy has, too.
    pub(in crate::cli) hosts: PresetHosts,
    further: Vec<Opened>,
    /// The paths besides the workspaces that the agent may change.
    writable: Vec<PathBuf>,
    /// Keeps the agent's home and scratch directories from being removed.
    _homes: OwnedFd,
}

impl Workspaces {
    /// Opens the further workspaces beside `main`, whose agent gets what was `granted` and the `hosts`.
    ///
    /// # Errors
    /// When a workspace lies in, or is named through, another one, an agent path, or a trusted
    /// path.
    pub(super) fn open(
        (main, hosts): (Opened, PresetHosts),
        added: &[AddedDirectory],
        common: &Common,
        granted: Vec<AgentPath>,
    ) -> Result<Self, Failure> {
        let further = paths(added)?;
        let given = |access, path, target| AgentPath { access, path, target };
        let root = main.workspace.root().to_owned();
        let mut others = vec![given(Access::Workspace, main.named.clone(), Some(root))];
        let writable = main.policy.agent().write.iter();
        others.extend(writable.map(|path| given(Access::Write, path.into(), None)));
        others.extend(granted);
        let writable = others.iter().filter(|path| path.access == Access::Write);
        let writable = writable.map(|path| path.path.clone()).collect();
        let open = |(number, added): (usize, &AddedDirectory)| {
            let common = Common {
                workspace: added.path.clone(),
                policy: added.policy.clone().unwrap_or_else(|| common.policy.clone()),
                state: None,
                adopt: None,
                ..common.clone()
            };
            let beside = further.iter().enumerate().filter(|(other, _)| *other != number);
            let beside = others.iter().chain(beside.map(|(_, path)| path)).cloned().collect();
            Opened::open_with(&common, Vec::new(), |_, _| Ok(beside))
        };
        let further = added.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        let workspaces = Self { main, hosts, further, writable, _homes: keep_homes()? };
        let states = workspaces.all().map(|opened| ("state directory", opened.state_path.clone()));
        all_apart(&states.collect::<Vec<_>>()).map_err(Failure::new)?;
        Ok(workspaces)
    }

    /// Returns all workspaces, the main one first.
    pub(in crate::cli) fn all(&self) -> impl Iterator<Item = &Opened> {
        std::iter::once(&self.main).chain(&self.further)
    }

    /// Returns the paths that the agent may change besides the workspace `opened`.
    pub(in crate::cli) fn writable_beside(&self, opened: &Opened) -> Vec<PathBuf> {
        let others = self.all().map(|other| other.workspace.root());
        let others = others.filter(|root| *root != opened.workspace.root()).map(PathBuf::from);
        self.writable.iter().cloned().chain(others).collect()
    }

    /// Adds the further ones to a sandbox.
    pub(super) fn add_further(&self, spec: &mut SandboxSpec) {
        for opened in &self.further {
            let (root, alias) = (opened.workspace.root().to_owned(), opened.named.clone());
            spec.further.push(sandbox::Workspace { root, alias });
            spec.trusted.extend(opened.trusted.iter().chain(&opened.policy_files).cloned());
        }
    }

    /// Returns the trusted paths that do not change with policy reloads, and the agent's paths.
    ///
    /// # Errors
    /// When an agent path is invalid.
    pub(in crate::cli) fn trusted_paths(
        &self,
        spec: &SandboxSpec,
    ) -> Result<TrustedPaths, sandbox::LaunchError> {
        let trusted = self.all().flat_map(|opened| opened.trusted.iter().cloned()).collect();
        Ok(TrustedPaths { trusted, ..spec.trusted_paths()? })
    }

    /// Creates a file for the policy reloads of each.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::cli) fn shared_policies(&self) -> Result<Vec<SharedPolicy>, Failure> {
        let shared = self.all().map(|_| SharedPolicy::create());
        shared.collect::<Result<_, _>>().or_fail("cannot start the gateway")
    }

    /// Returns watches of the policies, whose files must not overlap with `paths`.
    pub(in crate::cli) fn watches(
        &self,
        paths: &TrustedPaths,
        shared: Vec<SharedPolicy>,
    ) -> Vec<PolicyWatch> {
        let watch = |((number, opened), shared): ((usize, &Opened), _)| {
            let (paths, operator) = (paths.clone(), opened.operator.clone());
            PolicyWatch::new(number, &opened.texts, paths, operator, shared)
        };
        self.all().enumerate().zip(shared).map(watch).collect()
    }

    /// Warns of policies in observe mode.
    pub(in crate::cli) fn warn_of_observing(&self) {
        self.all().for_each(|opened| warn_of_observing(&opened.policy));
    }

    /// Removes what ended sessions of `agent` may not keep in scratch directories, if its sandbox may
    /// have mounts.
    pub(in crate::cli) fn settle_scratch(&self, agent: &AgentName, mount_need: MountNeed) {
        if mount_need != MountNeed::Unwanted {
            self.all().for_each(|opened| scratch::settle(opened, agent));
        }
    }

    /// Starts to copy the logs, as the configuration says.
    ///
    /// # Errors
    /// As [`ship::check`] and [`Shipping::start`].
    pub(in crate::cli) fn ship(&self) -> Result<Vec<Shipping>, Failure> {
        let ship = |opened: &Opened| {
            ship::check(&opened.state_path, &opened.audit.ship)?;
            Shipping::start(&opened.state_path, &opened.audit.ship)
        };
        self.all().map(ship).collect()
    }
}

/// Sends the records of the last checkpoints of all logs at the same time: a target that is gone
/// takes time.
pub(in crate::cli) fn finish(shipping: Vec<Shipping>) {
    thread::scope(|scope| {
        for shipping in shipping {
            // If no thread starts, the next broker sends them.
            let _ = thread::Builder::new().spawn_scoped(scope, || shipping.finish());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_equals_sign_begins_the_policy() {
        let parsed = |text| {
            let AddedDirectory { path, policy } = AddedDirectory::parse(text).unwrap();
            (path, policy)
        };
        let policy = Some("p.toml".to_owned());
        assert_eq!(parsed("a"), ("a".into(), None));
        assert_eq!(parsed("a=p.toml"), ("a".into(), policy.clone()));
        assert_eq!(parsed("a=b="), ("a=b".into(), None));
        assert_eq!(parsed("a=b=p.toml"), ("a=b".into(), policy));
        assert!(AddedDirectory::parse("").is_err() && AddedDirectory::parse("=p").is_err());
    }
}
