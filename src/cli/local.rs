//! A gate in this process, for commands that a person gives.

use std::{
    collections::BTreeMap, os::fd::AsFd as _, path::PathBuf, sync::Arc, thread, time::Duration,
};

use cap_std::fs::Dir;
use serde_json::{Value, json};

use super::announcer::Announcer;
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        housekeeping, logging,
        options::Common,
        policy_rollback,
        policy_texts::keep_policy,
        secret_key,
        session::session,
        state_directory,
        state_owner::{self, Claim},
        trusted_paths,
    },
    backup::Vault,
    config::{
        LoadedPolicy, Operator,
        audit::{Audit, Durability, SearchRecords},
        signature::PolicyKey,
    },
    frontend::desk::Desk,
    gateway::{self, Gateway, Reply},
    ledger::{self, Ledger, Signing},
    model::{Door, Operation, Session},
    ops::Source,
    policy::Policy,
    sandbox::{Access, AgentPath, GateAccess, Trusted, TrustedPath, TrustedPaths, restrict_gate},
    workspace::Workspace,
};

/// A gate that serves the commands of this process.
pub(crate) struct LocalGate {
    gateway: Gateway,
    session: Session,
    announcer: Announcer,
    state: PathBuf,
    /// Where a person can answer; only if the policy asks.
    _desk: Option<Desk>,
}

impl LocalGate {
    /// Opens policy, workspace and state, confines this process to them,
    /// settles what was left unfinished, and records the start.
    pub(crate) fn open(common: &Common, default_agent: &str) -> Result<Self, Failure> {
        // What the gate warns of, the person at the terminal should see.
        let log = |_: &Parts| logging::start_on_stderr("warn");
        Self::open_at(common, default_agent, Door::Cli, log, BTreeMap::new())
    }

    /// The same for another door. `prepare` does, with the parts, what must be
    /// done before the process is confined; `facts` go into the `start` record.
    pub(crate) fn open_at(
        common: &Common,
        default_agent: &str,
        door: Door,
        prepare: impl FnOnce(&Parts) -> Result<(), Failure>,
        more: BTreeMap<String, Value>,
    ) -> Result<Self, Failure> {
        let parts = Parts::open(common)?;
        crate::app::policy_loading::warn_of_observing(&parts.policy);
        parts.claim.warn(&parts.state_path, parts.workspace.root());
        let session = session(common, default_agent, door)?;
        prepare(&parts)?;
        // The last that needs a socket.
        let desk = match parts.policy.asks() {
            true => Some(open_desk(&parts.state)?),
            false => None,
        };
        let announcer = Announcer { state: parts.state_path.clone() };
        let signing = parts.signing()?;
        let report = restrict_gate(GateAccess {
            read_write: &[parts.workspace.dir().as_fd(), parts.state.as_fd()],
            read_only: &[],
        })
        .or_fail("cannot confine the gate")?;
        if report.landlock_abi == 0 {
            errln!(
                "portcullis: warning: this kernel has no Landlock of ABI 3 or newer, so the gate's \
                 own file access is not restricted; policy, backups and log work as ever"
            );
        }
        if parts.operator.require_signature {
            policy_rollback::note(&parts.state, &parts.policy)
                .or_fail("cannot note the policy's version")?;
        }
        let mut facts = parts.facts();
        facts.insert("gateLandlockAbi".to_owned(), json!(report.landlock_abi));
        facts.extend(more);
        let mut ledger = parts.ledger(signing)?;
        if door != Door::Cli {
            // A command ends before that would pay.
            ledger.keep_checkpoints().or_fail("cannot start a thread")?;
        }
        let (search, compress) = (parts.audit.search, parts.audit.compress);
        let (state, claim) = (parts.state, parts.claim);
        let gateway = assemble(parts.workspace, parts.policy, &state, ledger, search)?;
        // A command ends before housekeeping would begin.
        let kept = (door != Door::Cli).then(|| Housekept { age: compress.age() });
        begin(&gateway, &session, facts, (&state, &claim), desk.as_ref(), kept)?;
        Ok(Self { gateway, session, announcer, state: parts.state_path, _desk: desk })
    }

    /// Puts an operation to the gate; where a rule asks, tells the person at
    /// the terminal how to answer.
    pub(crate) fn handle(&self, operation: &Operation) -> Result<Reply, gateway::Error> {
        self.gateway.handle_asking(&self.session, operation, Source::Disk, &self.announcer)
    }

    /// Tells the person at the terminal how to answer.
    pub(crate) fn approver(&self) -> &dyn gateway::Approver {
        &self.announcer
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// What serves, for whom, and the place where a person answers.
    pub(crate) fn into_parts(self) -> (Gateway, Session, Option<Desk>) {
        (self.gateway, self.session, self._desk)
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
        let unsigned = self.gateway.stop(&self.session).or_fail("cannot record the stop")?;
        if let Some(error) = unsigned {
            errln!("portcullis: warning: no checkpoint of the audit log was signed: {error}");
        }
        Ok(())
    }
}

/// What must be opened by name before the process confines itself.
pub(crate) struct Parts {
    pub(crate) workspace: Workspace,
    pub(crate) policy: Arc<Policy>,
    /// All that is trusted but the policy's files.
    pub(crate) trusted: Vec<TrustedPath>,
    /// The policy's files.
    pub(crate) policy_files: Vec<TrustedPath>,
    /// The paths by which they were looked up.
    pub(crate) policy_paths: Vec<PathBuf>,
    pub(crate) operator: Operator,
    pub(crate) signed_by: Option<PolicyKey>,
    pub(crate) state_path: PathBuf,
    pub(crate) state: Dir,
    /// By what right the workspace uses it.
    pub(crate) claim: Claim,
    pub(crate) audit: Audit,
}

impl Parts {
    /// Opens all of them, if workspace, state and the operator's files lie apart.
    pub(crate) fn open(common: &Common) -> Result<Self, Failure> {
        let config = common.config.as_deref();
        let operator = Operator::load(config).map_err(Failure::new)?;
        let policy = crate::app::policy_loading::load_trusted(&common.policy, &operator)?;
        Self::open_under(common, operator, Audit::load(config).map_err(Failure::new)?, policy)
    }

    /// The same under a configuration and a policy that were read before.
    pub(crate) fn open_under(
        common: &Common,
        operator: Operator,
        audit: Audit,
        loaded: LoadedPolicy,
    ) -> Result<Self, Failure> {
        let workspace = Workspace::open(&common.workspace)
            .or_fail(format_args!("cannot open the workspace `{}`", common.workspace.display()))?;
        let named =
            std::path::absolute(&common.workspace).or_fail("cannot look up the workspace")?;
        let state_path = state_directory::directory_of(common.state.as_ref(), &workspace)?;
        let mut trusted = trusted_paths::listed(vec![(Trusted::State, state_path.clone())])?;
        trusted.extend(trusted_paths::own(&operator, &audit)?);
        let policy_files = trusted_paths::policy(&loaded.texts, &operator)?;
        // Before the state is made, where it should not be.
        TrustedPaths {
            trusted: [&trusted[..], &policy_files].concat(),
            agents: vec![AgentPath {
                access: Access::Workspace,
                path: named,
                target: Some(workspace.root().to_owned()),
            }],
        }
        .check()
        .map_err(Failure::new)?;
        let (state_path, state) = state_directory::open(&state_path)?;
        let adopt = common.adopt.as_deref();
        let claim = state_owner::check(&state, &state_path, workspace.root(), adopt)?;
        if operator.require_signature {
            policy_rollback::check(&state, &loaded.policy)?;
        }
        Ok(Self {
            operator,
            signed_by: loaded.signed_by,
            audit,
            workspace,
            policy: Arc::new(loaded.policy),
            trusted,
            policy_files,
            policy_paths: loaded.texts.looked_up,
            state_path,
            state,
            claim,
        })
    }

    /// Who signs checkpoints in this process: nobody where the operator named
    /// a command for that, which only a broker can run.
    pub(crate) fn signing(&self) -> Result<Option<Signing>, Failure> {
        if !self.audit.signer.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.paced(own_key(&self.state)?)))
    }

    /// The same as often as the configuration says.
    pub(crate) fn paced(&self, signing: Signing) -> Signing {
        let (records, interval) = (self.audit.checkpoints.records, self.audit.interval());
        Signing { records, interval, ..signing }
    }

    /// Opens the log.
    pub(crate) fn ledger(&self, signing: Option<Signing>) -> Result<Ledger, Failure> {
        let mut ledger = open_ledger(&self.state, signing)?;
        if self.audit.durability == Durability::Synced {
            ledger.make_all_durable();
        }
        Ok(ledger)
    }

    /// What the `start` record says of the configuration.
    pub(crate) fn facts(&self) -> BTreeMap<String, Value> {
        let mut facts = BTreeMap::from([
            ("version".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
            ("workspace".to_owned(), json!(self.workspace.root())),
            ("policyName".to_owned(), json!(self.policy.name())),
            ("policyVersion".to_owned(), json!(self.policy.version())),
            ("mode".to_owned(), json!(self.policy.mode().as_str())),
        ]);
        if self.workspace.has_aliases() {
            facts.insert("namesChecked".to_owned(), json!(true));
        }
        let signed_by = self.signed_by.as_ref().map(ToString::to_string);
        facts.extend(signed_by.map(|key| ("policySignedBy".to_owned(), json!(key))));
        if let Claim::Adopted(old) = &self.claim {
            facts.insert("adopted".to_owned(), json!(old));
        }
        facts
    }
}

/// The log's own key, which signs checkpoints.
pub(crate) fn own_key(state: &Dir) -> Result<Signing, Failure> {
    opened(Signing::own(state), "cannot open the audit log's key")
}

/// Opens the log, as every gate does at its start.
pub(crate) fn open_ledger(state: &Dir, signing: Option<Signing>) -> Result<Ledger, Failure> {
    let signed = |ledger: Ledger| match signing {
        Some(signing) => ledger.signed(signing),
        None => Ok(ledger),
    };
    opened(Ledger::open(state).and_then(signed), "cannot open the audit log")
}

fn opened<T>(opened: Result<T, ledger::Error>, doing: &str) -> Result<T, Failure> {
    let damaged = opened.as_ref().is_err_and(ledger::Error::is_damage);
    let exit = if damaged { Exit::Audit } else { Exit::Failure };
    opened.or_fail(doing).map_err(|failure| failure.exit(exit))
}

/// Puts up the desk at which a person answers from a shell.
pub(crate) fn open_desk(state: &Dir) -> Result<Desk, Failure> {
    Desk::open(state.as_fd()).or_fail("cannot listen for approvals")
}

/// Puts ledger, vault and gateway together over opened parts.
pub(crate) fn assemble(
    workspace: Workspace,
    policy: Arc<Policy>,
    state: &Dir,
    ledger: Ledger,
    search: SearchRecords,
) -> Result<Gateway, Failure> {
    let vault = Vault::open(state, *policy.backups()).or_fail("cannot open the backups")?;
    let vault = vault.of_gate(ledger.boot());
    keep_policy(state, &policy, ledger.boot()).or_fail("cannot keep the policy's text")?;
    let key = secret_key::open(state)?;
    let mut gateway =
        Gateway::open(workspace, policy, ledger, vault, key).or_fail("cannot recover")?;
    if search == SearchRecords::Summary {
        gateway.summarise_searches();
    }
    Ok(gateway)
}

/// What housekeeping looks after besides the vault.
pub(crate) struct Housekept {
    /// How old segments of the log are when they are compressed.
    pub(crate) age: Option<Duration>,
}

/// Records the start durably and whose the state directory is; only then does the gate attend to a desk or keep house.
/// Nothing may be answered and no agent be released before this returns.
pub(crate) fn begin(
    gateway: &Gateway,
    session: &Session,
    facts: BTreeMap<String, Value>,
    (state, claim): (&Dir, &Claim),
    desk: Option<&Desk>,
    housekept: Option<Housekept>,
) -> Result<(), Failure> {
    gateway.start(session, facts).or_fail("cannot record the start")?;
    // The log says it first: an adoption is never without a record.
    claim
        .note(state, gateway.workspace().root())
        .or_fail("cannot note whose the state directory is")?;
    if let Some(desk) = desk {
        desk.attend(gateway.approvals()).or_fail("cannot listen for approvals")?;
    }
    if let Some(Housekept { age }) = housekept {
        housekeeping::start(gateway, state, age)?;
    }
    Ok(())
}

/// The gateway, once no other thread has it any more: one that ends needs a
/// moment for its last step.
pub(crate) fn alone(mut gateway: Arc<Gateway>) -> Result<Gateway, Failure> {
    for _ in 0..400 {
        match Arc::try_unwrap(gateway) {
            Ok(gateway) => return Ok(gateway),
            Err(shared) => gateway = shared,
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(Failure::new("a thread still serves"))
}
