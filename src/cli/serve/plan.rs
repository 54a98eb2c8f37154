//! What is to be served, opened and checked: the configuration, or the current
//! directory without one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy as _;

use super::{Args, token};
use crate::{
    cli::{
        failure::{Context as _, Exit, Failure},
        policy, sign, state,
    },
    config::{
        Operator,
        audit::Audit,
        serve::{Agent, Listen, Service, is_workspace_name},
    },
    frontend::mcp::Name,
    sandbox::{Outside, Territory, all_apart},
    workspace::Workspace,
};

/// Most places of others that one process tries to reach.
const MOST_TRIED: usize = 512;

/// Everything that the broker knows.
pub(super) struct Plan {
    /// The configuration; its workspaces are in `places`.
    pub(super) service: Service,
    pub(super) places: BTreeMap<String, Place>,
    pub(super) config: Option<PathBuf>,
    pub(super) audit: Audit,
    pub(super) operator: Operator,
    pub(super) log: String,
    /// The state directory of the service itself.
    pub(super) state: PathBuf,
    /// Whether it is the command line's workspace, and no configuration's.
    adopted: bool,
}

/// A workspace that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) name: String,
    /// Canonical.
    pub(super) root: PathBuf,
    /// As it was given, absolute.
    pub(super) alias: PathBuf,
    pub(super) policy: String,
    /// Canonical.
    pub(super) state: PathBuf,
    pub(super) reference: bool,
    pub(super) elicit: bool,
}

impl Plan {
    /// Reads the configuration; where that names no workspace and no agent, it
    /// is the workspace of the command line and one agent, whose token this
    /// makes and gives.
    pub(super) fn make(args: &Args) -> Result<(Self, Option<String>), Failure> {
        let operator = Operator::load(args.common.config.as_deref()).map_err(Failure::new)?;
        let mut service = match &operator.path {
            Some(path) => load(path)?,
            None => Service::default(),
        };
        if !args.listen.is_empty() {
            service.listen.clone_from(&args.listen);
        }
        service.plaintext |= args.plaintext;
        let mut fresh = None;
        if service.workspaces.is_empty() && service.agents.is_empty() {
            fresh = Some(token::make()?);
            adopt(args, &mut service, fresh.as_deref().unwrap_or_default())?;
        } else if service.workspaces.is_empty() || service.agents.is_empty() {
            let what = if service.agents.is_empty() { "agents" } else { "workspaces" };
            return Err(Failure::new(format_args!("the configuration names no {what}"))
                .help(format_args!("add `[[{what}]]`; docs/serve.md shows how"))
                .exit(Exit::Usage));
        }
        secure(&service)?;
        let audit = Audit::load(args.common.config.as_deref()).map_err(Failure::new)?;
        let state = match &service.state {
            Some(path) => path.clone(),
            None => own_state()?,
        };
        let mut plan = Self {
            service,
            places: BTreeMap::new(),
            config: operator.path.clone(),
            audit,
            operator,
            log: args.logging.log.clone(),
            state,
            adopted: fresh.is_some(),
        };
        plan.open()?;
        Ok((plan, fresh))
    }

    /// The same from the file as it is now.
    pub(super) fn again(&self, path: &Path) -> Result<Self, Failure> {
        let service = Service {
            listen: self.service.listen.clone(),
            plaintext: self.service.plaintext,
            telemetry: self.service.telemetry.clone(),
            ..load(path)?
        };
        if service.workspaces.is_empty() || service.agents.is_empty() {
            return Err(Failure::new("it names no workspace or no agent"));
        }
        let mut plan = Self {
            service,
            places: BTreeMap::new(),
            config: Some(path.to_owned()),
            audit: Audit::load(Some(path)).map_err(Failure::new)?,
            operator: Operator::load(Some(path)).map_err(Failure::new)?,
            log: self.log.clone(),
            state: self.state.clone(),
            adopted: false,
        };
        plan.open()?;
        Ok(plan)
    }

    /// Whether it is the command line's workspace, and no configuration's.
    pub(super) fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Opens every workspace, and checks that none reaches what is another's.
    fn open(&mut self) -> Result<(), Failure> {
        let (state, _) = state::open(&self.state)?;
        self.state = state;
        let mut policies = BTreeMap::new();
        let mut apart = vec![("service's state directory", self.state.clone())];
        for entry in &self.service.workspaces {
            let shown = entry.root.display();
            let workspace = Workspace::open(&entry.root).or_fail(format_args!(
                "cannot open the root `{shown}` of the workspace `{}`",
                entry.name
            ))?;
            let root = workspace.root().to_owned();
            let state = match &entry.state {
                Some(path) => path.clone(),
                None => state::default_directory(&root)?,
            };
            let (state, _) = state::open(&state)?;
            if !policies.contains_key(&entry.policy) {
                let loaded = policy::load_trusted(&entry.policy, &self.operator)?;
                policies.insert(entry.policy.clone(), loaded.files);
            }
            apart.push(("workspace", root.clone()));
            apart.push(("state directory", state.clone()));
            let place = Place {
                name: entry.name.clone(),
                alias: std::path::absolute(&entry.root).or_fail("cannot look up a workspace")?,
                root,
                policy: entry.policy.clone(),
                state,
                reference: entry.reference,
                elicit: entry.elicit,
            };
            self.places.insert(place.name.clone(), place);
        }
        all_apart(&apart).map_err(Failure::new)?;
        let mut operator: Vec<_> = policies.into_values().flatten().collect();
        operator.extend(self.config.clone());
        operator.extend(self.audit.protected());
        operator.extend(self.service.tls.iter().map(|tls| tls.key.clone()));
        operator.sort();
        operator.dedup();
        for place in self.places.values() {
            let (workspace, state) = (place.root.clone(), place.state.clone());
            let operator = operator.clone();
            Territory { workspace, state, operator, ..Territory::default() }
                .check()
                .map_err(Failure::new)?;
            sign::apart(&self.audit.signer, std::slice::from_ref(&place.root))?;
        }
        Ok(())
    }

    /// What the worker of `own` must not reach; nobody's, for the front.
    pub(super) fn outside(&self, own: Option<&Place>, control: &Path) -> Outside {
        let strangers = self.places.values().filter(|place| Some(*place) != own);
        let theirs = strangers.flat_map(|place| [place.root.clone(), place.state.clone()]);
        let others = self.config.iter().cloned().chain([self.state.clone()]).chain(theirs);
        Outside { control: control.to_owned(), others: others.take(MOST_TRIED).collect() }
    }
}

/// Reads the file, and prints what is wrong with it as for a policy.
pub(super) fn load(path: &Path) -> Result<Service, Failure> {
    use crate::config::serve::Error;
    Service::load(path).map_err(|error| match error {
        Error::Wrong { path, diagnostics } => {
            use std::io::IsTerminal as _;
            err!("{}", diagnostics.render(std::io::stderr().is_terminal()));
            Failure::new(format_args!("the configuration `{path}` cannot be used"))
        }
        error @ Error::Unreadable { .. } => Failure::new(error),
    })
}

/// The workspace of the command line, for one agent.
fn adopt(args: &Args, service: &mut Service, token: &str) -> Result<(), Failure> {
    let common = &args.common;
    let root = Workspace::open(&common.workspace)
        .or_fail(format_args!("cannot open the workspace `{}`", common.workspace.display()))?
        .root()
        .to_owned();
    let name = match &args.name {
        Some(name) => name.to_string(),
        None => Name::near(&root.file_name().unwrap_or_default().to_string_lossy()).to_string(),
    };
    if !is_workspace_name(&name) {
        return Err(Failure::new(format_args!("a workspace cannot be called `{name}`"))
            .help("name it with --name NAME: letters, digits, `_` or `-`")
            .exit(Exit::Usage));
    }
    service.workspaces.push(crate::config::serve::Workspace {
        name,
        root: common.workspace.clone(),
        policy: common.policy.clone(),
        state: common.state.clone(),
        reference: args.tools == "reference",
        elicit: args.ask == "client",
    });
    let agent = match &common.agent {
        Some(agent) => agent.clone(),
        None => "client".parse().or_fail("cannot name the agent")?,
    };
    service.agents.push(Agent {
        name: agent,
        token: token::hash(token),
        workspaces: None,
        metrics: true,
    });
    Ok(())
}

/// A token must not travel where others can read it, unless the operator says
/// that something else protects it.
fn secure(service: &Service) -> Result<(), Failure> {
    if service.tls.is_some() && !cfg!(feature = "tls") {
        return Err(Failure::new("this build of portcullis has no TLS")
            .help("build it with `--features tls` or `--features full`"));
    }
    let far = |listen: &&Listen| matches!(listen, Listen::Tcp(at) if !at.ip().is_loopback());
    match service.listen.iter().find(far) {
        Some(listen) if service.tls.is_none() && !service.plaintext => {
            Err(Failure::new(format_args!(
                "other machines reach `{listen}`, and without TLS anybody on the way can read \
                 tokens and files"
            ))
            .help(
                "configure `[serve] tls`, or say `plaintext = true` (--plaintext) if something \
                 else encrypts",
            ))
        }
        _ => Ok(()),
    }
}

fn own_state() -> Result<PathBuf, Failure> {
    let dirs = etcetera::base_strategy::Xdg::new()
        .or_fail("cannot find a place for the service's log")
        .map_err(|failure| failure.help("name a directory with `[serve] state`"))?;
    let base = dirs.state_dir().unwrap_or_else(|| dirs.home_dir().join(".local/state"));
    Ok(base.join("portcullis/serve"))
}
