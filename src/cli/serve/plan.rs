//! The workspaces and agents to be served, opened and checked: those of the
//! configuration, or the current directory without one.

mod trusted;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use clap::ArgMatches;

use super::{
    args::Args,
    policies::{AcceptedPolicy, Policies, RefusalReason},
    unconfigured,
};
use crate::{
    app::{
        default_agents,
        failure::{Context as _, Exit, Failure},
        notifier,
        output::colours_on_stderr,
        policy_loading::warn_of_unused_keys,
        service_check, state_directory, state_owner, token, trusted_paths,
        workspace::open_workspace,
    },
    config::{
        self, Operator, PolicyTexts,
        audit::Audit,
        serve::{AgentConfig, Service, is_workspace_name},
    },
    gateway::Workspace,
    mcp::Name,
    model::for_shell,
    sandbox::{Access, AgentPath, TrustedPaths, UnreachablePaths, all_apart},
};

/// Maximum of other paths that a process tries to reach.
const MAX_TRIED: usize = 512;

/// The state of the service that the broker knows.
#[derive(Clone)]
pub(super) struct Plan {
    /// The configuration; its workspaces are in `places`.
    pub(super) service: Service,
    pub(super) places: BTreeMap<String, ServedWorkspace>,
    /// Workspaces of the configuration that cannot be served as configured.
    pub(super) unserved: BTreeSet<String>,
    /// The policies of `places`.
    pub(super) policies: Policies,
    /// The canonical path at the last read.
    pub(super) config: Option<PathBuf>,
    pub(super) audit: Audit,
    pub(super) operator: Operator,
    pub(super) log: String,
    /// The state directory of the service itself.
    pub(super) state: PathBuf,
    /// Its path as given, made absolute.
    named_state: PathBuf,
    /// True if the workspace comes from the command line, not from a configuration.
    adopted: bool,
    /// The configuration at the start.
    began: Service,
    /// Settings that have changed and need a restart.
    pub(super) later: Vec<&'static str>,
}

/// A workspace that cannot be served as configured.
pub(super) struct Fault {
    pub(super) workspace: String,
    /// True if it is served as before.
    pub(super) is_still_served: bool,
    pub(super) failure: Failure,
}

/// A served workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServedWorkspace {
    pub(super) name: String,
    /// The canonical path.
    pub(super) root: PathBuf,
    /// The path as given, made absolute.
    pub(super) alias: PathBuf,
    pub(super) policy: String,
    /// The canonical path.
    pub(super) state: PathBuf,
    /// The path as given, made absolute.
    pub(super) named_state: PathBuf,
    pub(super) reference: bool,
    pub(super) elicit: bool,
}

impl Plan {
    /// Reads the configuration. If it names no workspace and no agent, the command
    /// line's workspace is served to one agent, whose new token is returned. `given` are
    /// the parsed options.
    pub(super) fn make(args: &Args, given: &ArgMatches) -> Result<(Self, Option<String>), Failure> {
        let operator = Operator::load(args.common.config.as_deref()).map_err(Failure::new)?;
        warn_of_unused_keys(&operator);
        let mut service = match &operator.path {
            Some(path) => load(path)?,
            None => Service::default(),
        };
        let began = service.clone();
        if !args.listen.is_empty() {
            service.listen.clone_from(&args.listen);
        }
        service.plaintext |= args.plaintext;
        let mut fresh = None;
        if service.workspaces.is_empty() && service.agents.is_empty() {
            fresh = Some(token::make()?);
            adopt(args, &mut service, fresh.as_deref().unwrap_or_default())?;
        } else {
            unconfigured::check(given)?;
        }
        service_check::check(&service)?;
        let audit = Audit::load(args.common.config.as_deref()).map_err(Failure::new)?;
        let state = match &service.state {
            Some(path) => path.clone(),
            None => own_state()?,
        };
        let named_state =
            std::path::absolute(&state).or_fail("cannot look up the service's state directory")?;
        let mut plan = Self {
            service,
            places: BTreeMap::new(),
            unserved: BTreeSet::new(),
            policies: Policies::new(),
            config: operator.path.clone(),
            audit,
            operator,
            log: args.logging.log.clone(),
            state,
            named_state,
            adopted: fresh.is_some(),
            began,
            later: Vec::new(),
        };
        match plan.open(None)?.into_iter().next() {
            Some(fault) => Err(fault.failure),
            None => Ok((plan, fresh)),
        }
    }

    /// Reads the file again, and opens nothing yet.
    pub(super) fn read_again(&self) -> Result<Self, Failure> {
        let mut plan = self.unopened();
        let named = self.operator.named.as_deref().filter(|_| !self.adopted);
        let Some(named) = named else { return Ok(plan) };
        // The path may lead to another file now; everything is read from one file.
        let path = config::operator::canonical(named).map_err(Failure::new)?;
        let service = load(&path)?;
        if service.workspaces.is_empty() || service.agents.is_empty() {
            return Err(Failure::new("it names no workspace or no agent"));
        }
        plan.later = later(&self.began, &service);
        // A restarted front must not lose TLS.
        let tls = match service.tls.is_some() == self.service.tls.is_some() {
            true => service.tls.clone(),
            false => self.service.tls.clone(),
        };
        plan.service = Service {
            tls,
            listen: self.service.listen.clone(),
            plaintext: self.service.plaintext,
            telemetry: self.service.telemetry.clone(),
            ..service
        };
        plan.audit = Audit::load(Some(&path)).map_err(Failure::new)?;
        let operator = Operator::load(Some(&path)).map_err(Failure::new)?;
        plan.operator = Operator { named: Some(named.to_owned()), ..operator };
        plan.config = Some(path);
        Ok(plan)
    }

    /// Returns the same configuration, with nothing opened yet.
    pub(super) fn unopened(&self) -> Self {
        Self {
            places: BTreeMap::new(),
            unserved: BTreeSet::new(),
            policies: Policies::new(),
            ..self.clone()
        }
    }

    /// Opens every workspace with its policy, and checks that none can reach paths of
    /// another one or of the operator. Reports those that cannot be served; each of them
    /// stays as it was `before`. No directory is created for one that fails a check.
    pub(super) fn open(&mut self, before: Option<&Self>) -> Result<Vec<Fault>, Failure> {
        self.state = state_directory::place(&self.state)?;
        let mut faults = Vec::new();
        for entry in self.service.workspaces.clone() {
            let opened =
                self.accept(&entry.policy, before).and_then(|()| ServedWorkspace::look_up(&entry));
            match opened {
                Ok(workspace) => drop(self.places.insert(entry.name, workspace)),
                Err(failure) => faults.push(self.leave(entry.name, before, failure)),
            }
        }
        let served = before.iter().flat_map(|before| before.places.values());
        let found = notifier::find(
            &self.operator.notifications,
            agents(served.chain(self.places.values())),
        );
        self.operator.notifications.program = match before {
            None => found?,
            // An agent could keep a reload from being accepted.
            Some(before) => found.unwrap_or_else(|_| before.operator.notifications.program.clone()),
        };
        if let Some(before) = before {
            self.check_service(before)?;
        }
        loop {
            self.keep_apart(before, &mut faults);
            while let Err((name, failure)) = self.check_trusted(before)? {
                // In its former state it reaches them, too.
                faults.push(self.leave(name, None, failure));
            }
            // Then none of them is served at a start.
            if before.is_none() && !faults.is_empty() {
                return Ok(faults);
            }
            if self.make_states(before, &mut faults) {
                break;
            }
        }
        let (state, _) = state_directory::open(&self.state)?;
        self.state = state;
        Ok(faults)
    }

    /// Creates missing state directories. A workspace without one stays as it was
    /// `before`, which must be checked again.
    fn make_states(&mut self, before: Option<&Self>, faults: &mut Vec<Fault>) -> bool {
        let mut without = Vec::new();
        for (name, workspace) in &mut self.places {
            if let Err(failure) = workspace.make_state() {
                without.push((name.clone(), failure));
            }
        }
        let all_made = without.is_empty();
        for (name, failure) in without {
            let workspace = self.places.get(&name);
            // In its former state it has none either.
            let before = before.filter(|before| before.places.get(&name) != workspace);
            faults.push(self.leave(name, before, failure));
        }
        all_made
    }

    /// Accepts a policy. A policy that cannot replace the one in force leaves that in
    /// force.
    fn accept(&mut self, reference: &str, before: Option<&Self>) -> Result<(), Failure> {
        if self.policies.contains_key(reference) {
            return Ok(());
        }
        let old = before.and_then(|before| before.policies.get(reference));
        let mut sha256 = None;
        let judged = PolicyTexts::load(reference).map_err(RefusalReason::from).and_then(|texts| {
            sha256 = Some(texts.sha256());
            // Agents may have written it.
            let served = agents(before.iter().flat_map(|before| before.places.values()));
            let served = served.into_iter().chain(trusted_paths::shared_by_agents()).collect();
            let lies = trusted_paths::policy(&texts, &self.operator)
                .map_err(|failure| failure.message().to_owned())
                .and_then(|trusted| {
                    let paths = TrustedPaths { trusted, agents: served };
                    paths.check_trusted().map_err(|error| error.to_string())
                });
            lies.map_err(RefusalReason::Misplaced)?;
            AcceptedPolicy::judge(texts, &self.operator, old)
        });
        let accepted = match (judged, old.filter(|old| old.is_trusted(&self.operator))) {
            (Ok(new), _) => new,
            (Err(unfit), Some(old)) => {
                unfit.failure(reference).print_details();
                AcceptedPolicy { refused: Some(unfit.refused(sha256)), ..old.clone() }
            }
            (Err(unfit), None) => return Err(unfit.failure(reference)),
        };
        self.policies.insert(reference.to_owned(), accepted);
        Ok(())
    }

    /// Handles a workspace that cannot be served as configured: it stays as it was
    /// `before`.
    fn leave(&mut self, name: String, before: Option<&Self>, failure: Failure) -> Fault {
        self.places.remove(&name);
        let old = before.and_then(|before| before.places.get(&name)).cloned();
        let old = old.filter(|workspace| self.accept(&workspace.policy, before).is_ok());
        let is_still_served = old.is_some();
        if let Some(workspace) = old {
            self.places.insert(name.clone(), workspace);
        } else {
            self.unserved.insert(name.clone());
        }
        Fault { workspace: name, is_still_served, failure }
    }

    /// Ensures that no workspace lies within another. Those served `before` have
    /// precedence.
    fn keep_apart(&mut self, before: Option<&Self>, faults: &mut Vec<Fault>) {
        if self.are_apart().is_ok() {
            return;
        }
        let known = |workspace: &ServedWorkspace| {
            before.is_some_and(|b| b.places.get(&workspace.name) == Some(workspace))
        };
        let (kept, fresh) = std::mem::take(&mut self.places)
            .into_iter()
            .partition(|(_, workspace)| known(workspace));
        self.places = kept;
        // A mount may have made them overlap since.
        let kept = match self.are_apart() {
            Ok(()) => BTreeMap::new(),
            Err(_) => std::mem::take(&mut self.places),
        };
        for (name, workspace) in kept.into_iter().chain(fresh) {
            self.places.insert(name.clone(), workspace);
            let Err(failure) = self.are_apart() else { continue };
            let fault = self.leave(name.clone(), before, failure);
            faults.push(match self.are_apart() {
                Ok(()) => fault,
                // In its former state it overlaps, too.
                Err(failure) => self.leave(name, None, failure),
            });
        }
    }

    fn are_apart(&self) -> Result<(), Failure> {
        let mut all = vec![("service's state directory", self.state.clone())];
        for workspace in self.places.values() {
            all.push(("workspace", workspace.root.clone()));
            all.push(("state directory", workspace.state.clone()));
        }
        all_apart(&all).map_err(Failure::new)
    }

    /// Returns the paths that the worker of `own` must not reach; those for the front
    /// without `own`.
    pub(super) fn unreachable(
        &self,
        own: Option<&ServedWorkspace>,
        control: &Path,
    ) -> UnreachablePaths {
        let strangers = self.places.values().filter(|workspace| Some(*workspace) != own);
        let theirs =
            strangers.flat_map(|workspace| [workspace.root.clone(), workspace.state.clone()]);
        let others = self.config.iter().cloned().chain([self.state.clone()]).chain(theirs);
        UnreachablePaths { control: control.to_owned(), others: others.take(MAX_TRIED).collect() }
    }
}

/// Returns workspaces as agent paths.
fn agents<'a>(places: impl Iterator<Item = &'a ServedWorkspace>) -> Vec<AgentPath> {
    let workspace = |workspace: &ServedWorkspace| AgentPath {
        access: Access::Workspace,
        path: workspace.alias.clone(),
        target: Some(workspace.root.clone()),
    };
    places.map(workspace).collect()
}

/// Returns the paths of a workspace that agents may change.
fn ground(workspace: &ServedWorkspace) -> (&Path, &Path) {
    (&workspace.root, &workspace.alias)
}

impl ServedWorkspace {
    /// Opens the workspace; its state directory is not created.
    fn look_up(entry: &config::serve::WorkspaceConfig) -> Result<Self, Failure> {
        let shown = entry.root.display();
        let workspace = Workspace::open(&entry.root).or_fail(format_args!(
            "cannot open the root `{shown}` of the workspace `{}`",
            entry.name
        ))?;
        let root = workspace.root().to_owned();
        let state = state_directory::directory_of(entry.state.as_ref(), &workspace)?;
        let named_state =
            std::path::absolute(&state).or_fail("cannot look up a state directory")?;
        Ok(Self {
            name: entry.name.clone(),
            alias: std::path::absolute(&entry.root).or_fail("cannot look up a workspace")?,
            root,
            policy: entry.policy.clone(),
            state: state_directory::place(&named_state)?,
            named_state,
            reference: entry.reference,
            elicit: entry.elicit,
        })
    }

    /// Creates the state directory if it is missing; it must belong to this workspace.
    fn make_state(&mut self) -> Result<(), Failure> {
        let (state, opened) = state_directory::open(&self.named_state)?;
        // An unreadable log keeps the worker from starting, but not the service.
        if let Ok(Some(owner)) = state_owner::of(&opened, &state)
            && owner != self.root
        {
            return Err(state_owner::of_another(&state, &owner, &self.root));
        }
        self.state = state;
        Ok(())
    }
}

/// Returns the settings of the service itself that differ.
fn later(began: &Service, now: &Service) -> Vec<&'static str> {
    let (old, new) = (began.limits, now.limits);
    let settings = [
        ("listen", began.listen != now.listen),
        ("plaintext", began.plaintext != now.plaintext),
        ("tls", began.tls.is_some() != now.tls.is_some()),
        ("state", began.state != now.state),
        ("sessionIdleSeconds", began.session_idle != now.session_idle),
        ("telemetry", began.telemetry != now.telemetry),
        ("limits.connections", old.connections != new.connections),
        ("limits.failedLogins", old.failed_logins != new.failed_logins),
        ("limits.headSeconds", old.head_seconds != new.head_seconds),
        ("limits.headBytes", old.head_bytes != new.head_bytes),
        ("limits.bodySeconds", old.body_seconds != new.body_seconds),
        ("limits.messageSize", old.message_bytes != new.message_bytes),
        ("limits.messageMemory", old.message_memory != new.message_memory),
    ];
    settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Reads the file, and prints diagnostics as for a policy.
pub(super) fn load(path: &Path) -> Result<Service, Failure> {
    use crate::config::serve::Error;
    Service::load(path).map_err(|error| match error {
        Error::Wrong { path, diagnostics } => {
            err!("{}", diagnostics.render(colours_on_stderr()));
            Failure::new(format_args!("the configuration `{path}` cannot be used"))
        }
        error @ Error::Unreadable { .. } => Failure::new(error),
    })
}

/// Serves the workspace of the command line to one agent.
fn adopt(args: &Args, service: &mut Service, token: &str) -> Result<(), Failure> {
    let common = &args.common;
    if let Some(old) = &common.adopt {
        return Err(Failure::new("a service takes no state directory over")
            .help(format_args!(
                "`portcullis fs stat .` with --workspace, --state and --adopt {} does it once",
                for_shell(old)
            ))
            .exit(Exit::Usage));
    }
    let root = open_workspace(&common.workspace)?.root().to_owned();
    let name = match &args.name {
        Some(name) => name.to_string(),
        None => Name::near(&root.file_name().unwrap_or_default().to_string_lossy()).to_string(),
    };
    if !is_workspace_name(&name) {
        return Err(Failure::new(format_args!("a workspace cannot be called `{name}`"))
            .help("name it with --name NAME: letters, digits, `_` or `-`")
            .exit(Exit::Usage));
    }
    service.workspaces.push(config::serve::WorkspaceConfig {
        name,
        root: common.workspace.clone(),
        policy: common.policy.clone(),
        state: common.state.clone(),
        reference: args.tools == "reference",
        elicit: args.ask == "client",
    });
    let agent = common.agent(default_agents::SERVE)?;
    service.agents.push(AgentConfig {
        name: agent,
        token: token::hash(token),
        workspaces: None,
        metrics: true,
    });
    Ok(())
}

fn own_state() -> Result<PathBuf, Failure> {
    let dirs = etcetera::base_strategy::Xdg::new()
        .or_fail("cannot find a place for the service's log")
        .map_err(|failure| failure.help("name a directory with `[serve] state`"))?;
    Ok(state_directory::default_parent(&dirs).join("serve"))
}
