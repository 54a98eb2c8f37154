//! A gate in this process, for commands that a person gives.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::Arc,
};

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, fsync, openat};
use serde_json::{Value, json};

use super::{
    failure::{Context as _, Failure},
    housekeeping,
    options::Common,
    state,
};
use crate::{
    backup::Vault,
    gateway::Gateway,
    ledger::Ledger,
    model::{AgentName, Door, Session},
    policy::Policy,
    sandbox::{GateAccess, Territory, restrict_gate},
    workspace::Workspace,
};

/// The directory of policies that were in force, in the state directory.
const POLICIES: &str = "policies";
/// How the name of a policy ends that is not kept yet.
const UNFINISHED: &str = ".tmp";

/// A gate that serves the commands of this process.
pub(crate) struct LocalGate {
    gateway: Gateway,
    session: Session,
    state: PathBuf,
}

impl LocalGate {
    /// Opens policy, workspace and state, confines this process to them,
    /// settles what was left unfinished, and records the start.
    pub(crate) fn open(common: &Common, default_agent: &str) -> Result<Self, Failure> {
        let parts = Parts::open(common)?;
        Territory {
            workspace: parts.workspace.root().to_owned(),
            state: parts.state_path.clone(),
            operator: parts.policy_files.clone(),
            ..Territory::default()
        }
        .check()
        .map_err(Failure::new)?;
        let session = session(common, default_agent, Door::Cli)?;
        let report = restrict_gate(GateAccess {
            read_write: &[parts.workspace.dir().as_fd(), parts.state.as_fd()],
            read_only: &[],
        })
        .or_fail("cannot confine the gate")?;
        if report.landlock_abi == 0 {
            eprintln!(
                "portcullis: warning: this kernel has no Landlock of ABI 3 or newer, so the gate's \
                 own file access is not restricted; policy, backups and log work as ever"
            );
        }
        let mut facts = parts.facts();
        facts.insert("gateLandlockAbi".to_owned(), json!(report.landlock_abi));
        let gateway = assemble(parts.workspace, parts.policy, &parts.state)?;
        gateway.start(&session, facts).or_fail("cannot record the start")?;
        Ok(Self { gateway, session, state: parts.state_path })
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The directory of the log.
    pub(crate) fn log(&self) -> PathBuf {
        self.state.join("audit")
    }

    /// Records the stop. A command has nobody who packs the vault meanwhile, so
    /// the one that made it due does so when it has done its work.
    pub(crate) fn close(self) -> Result<(), Failure> {
        let vault = self.gateway.vault();
        if vault.has_saved() {
            housekeeping::pack_if_due(vault);
        }
        self.gateway.stop(&self.session).or_fail("cannot record the stop")
    }
}

/// What must be opened by name before the process confines itself.
pub(crate) struct Parts {
    pub(crate) workspace: Workspace,
    pub(crate) policy: Arc<Policy>,
    pub(crate) policy_files: Vec<PathBuf>,
    pub(crate) state_path: PathBuf,
    pub(crate) state: Dir,
}

impl Parts {
    pub(crate) fn open(common: &Common) -> Result<Self, Failure> {
        let loaded = super::policy::load(&common.policy)?;
        let workspace = Workspace::open(&common.workspace)
            .or_fail(format_args!("cannot open the workspace `{}`", common.workspace.display()))?;
        let state_path = match &common.state {
            Some(path) => path.clone(),
            None => state::default_directory(workspace.root())?,
        };
        let (state_path, state) = state::open(&state_path)?;
        Ok(Self {
            workspace,
            policy: Arc::new(loaded.policy),
            policy_files: loaded.files,
            state_path,
            state,
        })
    }

    /// What the `start` record says of the configuration.
    pub(crate) fn facts(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([
            ("version".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
            ("workspace".to_owned(), json!(self.workspace.root())),
            ("policyName".to_owned(), json!(self.policy.name())),
            ("policyVersion".to_owned(), json!(self.policy.version())),
        ])
    }
}

/// Puts ledger, vault and gateway together over opened parts.
pub(crate) fn assemble(
    workspace: Workspace,
    policy: Arc<Policy>,
    state: &Dir,
) -> Result<Gateway, Failure> {
    let ledger = Ledger::open(state).or_fail("cannot open the audit log")?;
    let vault = Vault::open(state, *policy.backups()).or_fail("cannot open the backups")?;
    let vault = vault.of_gate(ledger.boot());
    keep_policy(state, &policy, ledger.boot()).or_fail("cannot keep the policy's text")?;
    Gateway::open(workspace, policy, ledger, vault).or_fail("cannot recover")
}

/// Keeps the text of the policy in force, so that a reviewer can look up the
/// hash that records name. `unique` is nobody else's.
fn keep_policy(state: &Dir, policy: &Policy, unique: &str) -> io::Result<()> {
    state.create_dir_all(POLICIES)?;
    let folder = state.open_dir(POLICIES)?;
    for entry in folder.entries()? {
        let name = entry?.file_name();
        // Of a gate that died; one that lives makes another.
        if name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes()) {
            ignore_missing(folder.remove_file(&name))?;
        }
    }
    let name = format!("{}.toml", policy.sha256());
    while !folder.exists(&name) {
        let temp = format!("{name}.{unique}{UNFINISHED}");
        let kept = write_synced(&folder, &temp, policy.bundle())
            .and_then(|()| ignore_missing(folder.rename(&temp, &folder, &name)));
        if kept.is_err() {
            ignore_missing(folder.remove_file(&temp))?;
        }
        kept?;
        // A `Dir` itself is a mere place and cannot be synced.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fsync(openat(&folder, ".", flags, Mode::empty())?)?;
    }
    Ok(())
}

fn write_synced(folder: &Dir, name: &str, text: &str) -> io::Result<()> {
    let mut file = folder.create(name)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The session of this process.
pub(crate) fn session(
    common: &Common,
    default_agent: &str,
    door: Door,
) -> Result<Session, Failure> {
    let agent: AgentName = match &common.agent {
        Some(agent) => agent.clone(),
        None => default_agent.parse().or_fail("cannot name the agent")?,
    };
    Ok(Session { id: random_id()?, agent, user: user(), door })
}

fn random_id() -> Result<String, Failure> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .or_fail("cannot get random bytes")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// The name of the user that runs this process, or the number when it has no
/// name.
fn user() -> String {
    let uid = nix::unistd::getuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}
