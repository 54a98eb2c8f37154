//! The files of a process, opened by path before it confines itself.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use cap_std::fs::Dir;
use serde_json::{Value, json};

use super::{
    failure::{Context as _, Failure},
    notifier::{self, Notifier},
    options::Common,
    policy_loading::{load_trusted, warn_of_observing, warn_of_unused_keys},
    policy_rollback,
    signer::RemoteSigner,
    state_directory,
    state_owner::{self, StateOwnership},
    trusted_paths,
    workspace::open_workspace,
};
use crate::{
    config::{LoadedPolicy, Operator, PolicyTexts, audit::Audit, signature::PolicyKey},
    gateway::Workspace,
    policy::Policy,
    sandbox::{Access, AgentPath, TrustedPath, TrustedPaths},
};

/// Workspace, policy, configuration and state directory, checked against each other.
pub(crate) struct Opened {
    pub(crate) workspace: Workspace,
    /// Its path as given, made absolute.
    pub(crate) named: PathBuf,
    pub(crate) policy: Policy,
    pub(crate) signed_by: Option<PolicyKey>,
    pub(crate) texts: PolicyTexts,
    pub(crate) operator: Operator,
    pub(crate) audit: Audit,
    /// All trusted paths except the policy's files.
    pub(crate) trusted: Vec<TrustedPath>,
    /// The policy's files.
    pub(crate) policy_files: Vec<TrustedPath>,
    pub(crate) state_path: PathBuf,
    pub(crate) state: Dir,
    /// The right by which the workspace uses the state directory.
    pub(crate) claim: StateOwnership,
    /// The broker, which signs checkpoints.
    pub(super) signer: Option<RemoteSigner>,
    /// The notifier of waiting approvals.
    pub(super) notifier: Option<Notifier>,
}

/// The locations of workspace and state directory.
pub(crate) struct Locations<'a> {
    pub(crate) workspace: &'a Path,
    pub(crate) state: Option<&'a PathBuf>,
    /// The former path of a moved workspace.
    pub(crate) adopt: Option<&'a Path>,
}

/// Paths that the options of a command add.
struct Additional<A> {
    trusted: Vec<TrustedPath>,
    /// Returns the agent paths for the name of the agents' data, and the policy.
    agents: A,
    /// True for `serve`, whose broker compared all of its workspaces.
    is_served: bool,
}

impl Opened {
    /// Opens the files that the options of a command name.
    pub(crate) fn open(common: &Common) -> Result<Self, Failure> {
        Self::open_with(common, Vec::new(), |_, _| Ok(Vec::new()))
    }

    /// Opens them with `further` trusted paths and further agent paths, which `more` returns for the
    /// name of the agents' data, and the policy.
    pub(crate) fn open_with(
        common: &Common,
        further: Vec<TrustedPath>,
        more: impl FnOnce(&str, &Policy) -> Result<Vec<AgentPath>, Failure>,
    ) -> Result<Self, Failure> {
        let config = common.config.as_deref();
        let operator = Operator::load(config).map_err(Failure::new)?;
        let policy = load_trusted(&common.policy, &operator)?;
        let audit = Audit::load(config).map_err(Failure::new)?;
        let locations = Locations {
            workspace: &common.workspace,
            state: common.state.as_ref(),
            adopt: common.adopt.as_deref(),
        };
        let added = Additional { trusted: further, agents: more, is_served: false };
        Self::open_checked(&locations, operator, audit, policy, added)
    }

    /// Opens them under a loaded configuration and policy.
    pub(crate) fn open_under(
        locations: &Locations<'_>,
        operator: Operator,
        audit: Audit,
        policy: LoadedPolicy,
    ) -> Result<Self, Failure> {
        let agents = |_: &str, _: &Policy| Ok(Vec::new());
        let added = Additional { trusted: Vec::new(), agents, is_served: true };
        Self::open_checked(locations, operator, audit, policy, added)
    }

    fn open_checked(
        locations: &Locations<'_>,
        mut operator: Operator,
        audit: Audit,
        LoadedPolicy { policy, signed_by, texts }: LoadedPolicy,
        added: Additional<impl FnOnce(&str, &Policy) -> Result<Vec<AgentPath>, Failure>>,
    ) -> Result<Self, Failure> {
        let workspace = open_workspace(locations.workspace)?;
        let named =
            std::path::absolute(locations.workspace).or_fail("cannot look up the workspace")?;
        let state_path = state_directory::directory_of(locations.state, &workspace)?;
        let root = workspace.root();
        let data_name =
            state_directory::agent_data_name(root, &state_directory::place(&state_path)?);
        let mut agents = vec![AgentPath {
            access: Access::Workspace,
            path: named.clone(),
            target: Some(root.to_owned()),
        }];
        agents.extend(policy.agent().write.iter().map(|path| AgentPath {
            access: Access::Write,
            path: path.into(),
            target: None,
        }));
        agents.extend((added.agents)(&data_name, &policy)?);
        let served = trusted_paths::served_agents(&operator)?;
        let all = [&agents[..], &served].concat();
        operator.notifications.program = notifier::find(&operator.notifications, all)?;
        let mut trusted = trusted_paths::listed(trusted_paths::of_state(&state_path))?;
        trusted.extend(trusted_paths::own(&operator, &audit)?);
        trusted.extend(added.trusted);
        let policy_files = trusted_paths::policy(&texts, &operator)?;
        // The checks come before the state directory is created in a wrong place.
        if !added.is_served {
            let paths = [&trusted[..], &policy_files].concat();
            let paths = TrustedPaths { trusted: paths, agents: served };
            paths.check_trusted().map_err(Failure::new)?;
            trusted.extend(trusted_paths::served(&operator)?);
        }
        let checked = [&trusted[..], &policy_files].concat();
        TrustedPaths { trusted: checked, agents }.check().map_err(Failure::new)?;
        let (state_path, state) = state_directory::open(&state_path)?;
        let claim = state_owner::check(&state, &state_path, workspace.root(), locations.adopt)?;
        state_directory::mark(&state).or_fail("cannot write the state directory's format")?;
        if operator.require_signature {
            policy_rollback::check(&state, &policy)?;
        }
        Ok(Self {
            workspace,
            named,
            policy,
            signed_by,
            texts,
            operator,
            audit,
            trusted,
            policy_files,
            state_path,
            state,
            claim,
            signer: None,
            notifier: None,
        })
    }

    /// Returns the name of the directories of the agents' data.
    pub(crate) fn agent_data_name(&self) -> String {
        state_directory::agent_data_name(self.workspace.root(), &self.state_path)
    }

    /// Takes the channel to the broker from `files`, if the configuration has a command that signs
    /// checkpoints: only a broker can run it.
    pub(crate) fn sign_through(
        &mut self,
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<(), Failure> {
        if let Some(public) = self.audit.signer_key() {
            let channel = files.next();
            let channel = channel.ok_or_else(|| Failure::new("no signer came with the order"))?;
            self.signer = Some(RemoteSigner::new(channel, public));
        }
        Ok(())
    }

    /// Takes the channel to the notifier from `files`, if one is started.
    pub(crate) fn notify_through(
        &mut self,
        is_started: bool,
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<(), Failure> {
        if is_started {
            let channel = files.next();
            let channel = channel.ok_or_else(|| Failure::new("no notifier came with the order"))?;
            self.notifier = Some(channel.into());
        }
        Ok(())
    }

    /// Warns of unused keys, of observe mode, and of an adopted state directory.
    pub(crate) fn warn(&self) {
        warn_of_unused_keys(&self.operator);
        warn_of_observing(&self.policy);
        self.claim.warn(&self.state_path, self.workspace.root());
    }

    /// Returns the facts of the `start` record.
    pub(super) fn facts(&self) -> BTreeMap<String, Value> {
        let mut facts = BTreeMap::from([
            ("version".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
            ("workspace".to_owned(), json!(self.workspace.root())),
            ("policyName".to_owned(), json!(self.policy.name())),
            ("policyVersion".to_owned(), json!(self.policy.version())),
            ("mode".to_owned(), json!(self.policy.mode().as_str())),
            ("networkMode".to_owned(), json!(self.policy.network().mode().as_str())),
        ]);
        if self.workspace.has_aliases() {
            facts.insert("namesChecked".to_owned(), json!(true));
        }
        if !self.policy.labels().is_empty() {
            let labels: Vec<_> = self.policy.labels().paths().keys().collect();
            facts.insert("labels".to_owned(), json!(labels));
        }
        let signed_by = self.signed_by.as_ref().map(ToString::to_string);
        facts.extend(signed_by.map(|key| ("policySignedBy".to_owned(), json!(key))));
        if let StateOwnership::Adopted(old) = &self.claim {
            facts.insert("adopted".to_owned(), json!(old));
        }
        facts
    }
}
