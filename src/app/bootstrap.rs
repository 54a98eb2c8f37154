//! The start of a serving process: it confines itself, recovers from an earlier process, records
//! the start, and only then serves.
//!
//! Each step consumes the result of the one before: [`Opened`], [`Confined`], [`Recovered`],
//! [`Started`]. The first thread belongs to the log, which only a confined process opens, and the
//! gateway is private until the start is recorded. So every command has the same order, and a
//! different order does not compile.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;
use serde_json::{Value, json};

use super::{
    approval_socket::ApprovalSocket,
    audit_log::{AUDIT_LOG, open_audit_log, own_key},
    failure::{Context as _, Failure},
    housekeeping,
    notifier::{self, Notifier},
    opened::Opened,
    policy_reload::Reloading,
    policy_rollback,
    policy_texts::keep_policy,
    policy_transfer::SharedPolicy,
    secret_key,
    state_owner::StateOwnership,
};
use crate::{
    acp::line_for,
    config::audit::{Durability, SearchRecords},
    gateway::{Gateway, LogError, RecoveryError, SharedLimits, Signing},
    model::{Access, Session},
    sandbox::{
        ConfinementReport, IsolationReport, UnreachablePaths, restrict_gateway,
        restrict_gateway_beside, restrict_worker,
    },
};

/// Differences between serving processes. The default is a command, which ends with its own
/// requests.
#[derive(Default)]
pub(crate) struct Profile {
    /// True for a long-lived process, which has threads that sign checkpoints, pack backups and
    /// compress the log.
    pub(crate) long_lived: bool,
    /// True if its policy may be replaced by one with the effect `ask`.
    pub(crate) reloads: bool,
    /// The shares of its sessions, if it schedules and counts their requests.
    pub(crate) shares: Option<SharedLimits>,
    /// The `/proc` of the sandbox whose programs it serves, to be read.
    pub(crate) processes: Option<OwnedFd>,
    /// A further directory to be read and changed: that of its scratch directories, or of the
    /// refs of imports.
    pub(crate) further: Option<OwnedFd>,
}

impl Opened {
    /// Confines this process to its workspace and its state directory, permanently.
    pub(crate) fn confine(mut self, profile: Profile) -> Result<Confined, Failure> {
        let approvals = self.open_approval_socket(&profile)?;
        if approvals.is_some()
            && let Some((child, channel)) = notifier::start(&self.operator)?
        {
            // It ends with this process.
            child.leave();
            self.notifier = Some(channel.into());
        }
        let report = restrict(&[(&self, &profile)])?;
        Ok(Confined { opened: self, profile, approvals, report })
    }

    /// Confines a worker likewise, which proves that it cannot reach the paths in `unreachable`.
    pub(crate) fn confine_worker(
        self,
        profile: Profile,
        unreachable: &UnreachablePaths,
    ) -> Result<(Confined, IsolationReport), Failure> {
        let approvals = self.open_approval_socket(&profile)?;
        let (report, apart) = self.restrict(unreachable)?;
        Ok((Confined { opened: self, profile, approvals, report }, apart))
    }

    /// Tries the confinement of a worker, and drops everything opened. Creates nothing.
    pub(crate) fn try_confinement(
        self,
        unreachable: &UnreachablePaths,
    ) -> Result<IsolationReport, Failure> {
        self.restrict(unreachable).map(|(_, apart)| apart)
    }

    fn restrict(
        &self,
        unreachable: &UnreachablePaths,
    ) -> Result<(ConfinementReport, IsolationReport), Failure> {
        let looked = unreachable.before().map_err(Failure::new)?;
        let report = restrict_worker(&self.directories()).or_fail("cannot confine the worker")?;
        Ok((report, looked.after().map_err(Failure::new)?))
    }

    fn directories(&self) -> [BorrowedFd<'_>; 2] {
        [self.workspace.rule_descriptor(), self.state.as_fd()]
    }

    /// Opens the approval socket, if a policy may ask: a confined process cannot create it.
    fn open_approval_socket(&self, profile: &Profile) -> Result<Option<ApprovalSocket>, Failure> {
        let approvals = (profile.reloads || self.policy.asks())
            .then(|| ApprovalSocket::open(self.state.as_fd()));
        approvals.transpose().or_fail("cannot listen for approvals")
    }
}

/// Confines this process to several workspaces, each with its state directory, permanently.
pub(crate) fn confine_all(opened: Vec<(Opened, Profile)>) -> Result<Vec<Confined>, Failure> {
    let approvals = opened.iter().map(|(opened, profile)| opened.open_approval_socket(profile));
    let approvals = approvals.collect::<Result<Vec<_>, _>>()?;
    let all: Vec<_> = opened.iter().map(|(opened, profile)| (opened, profile)).collect();
    let report = restrict(&all)?;
    let confined = |((opened, profile), approvals)| Confined {
        opened,
        profile,
        approvals,
        report: report.clone(),
    };
    Ok(opened.into_iter().zip(approvals).map(confined).collect())
}

fn restrict(all: &[(&Opened, &Profile)]) -> Result<ConfinementReport, Failure> {
    let directories = all.iter().flat_map(|(opened, profile)| {
        opened.directories().into_iter().chain(profile.further.iter().map(OwnedFd::as_fd))
    });
    let directories: Vec<_> = directories.collect();
    let report = match all.iter().find_map(|(_, profile)| profile.processes.as_ref()) {
        Some(processes) => restrict_gateway_beside(&directories, processes.as_fd()),
        None => restrict_gateway(&directories),
    };
    report.or_fail("cannot confine the gateway")
}

/// A confined process that has no other thread yet.
pub(crate) struct Confined {
    opened: Opened,
    profile: Profile,
    approvals: Option<ApprovalSocket>,
    report: ConfinementReport,
}

impl Confined {
    /// Returns the restrictions that the kernel enforces.
    pub(crate) fn report(&self) -> &ConfinementReport {
        &self.report
    }

    /// Warns if the kernel does not restrict the files of this process.
    pub(crate) fn warn(&self) {
        if self.report.landlock_abi == 0 {
            errln!(
                "portcullis: warning: this kernel has no Landlock of ABI 3 or newer, so the gateway's \
                 own file access is not restricted; policy, backups and log work as always"
            );
        }
    }

    /// Opens log and backups, and recovers unfinished changes of an earlier process.
    pub(crate) fn recover(self) -> Result<Recovered, Failure> {
        let mut facts = self.opened.facts();
        facts.insert("gatewayLandlockAbi".to_owned(), json!(self.report.landlock_abi));
        let Opened { workspace, policy, operator, audit, state_path, state, claim, .. } =
            self.opened;
        let (signer, notifier) = (self.opened.signer, self.opened.notifier);
        if operator.require_signature {
            policy_rollback::note(&state, &policy).or_fail("cannot note the policy's version")?;
        }
        let signing = match signer {
            Some(broker) => Some(Signing::by(Box::new(broker))),
            // Only a broker can run the operator's command.
            None if audit.signer_key().is_some() => None,
            None => Some(own_key(&state, AUDIT_LOG)?),
        };
        let (records, interval) = (audit.checkpoints.records, audit.interval());
        let signing = signing.map(|signing| Signing { records, interval, ..signing });
        let mut audit_log = open_audit_log(&state, signing, AUDIT_LOG)?;
        let durable = audit.durability == Durability::Synced;
        if durable {
            audit_log.make_all_durable();
        }
        if self.profile.long_lived {
            audit_log.keep_checkpoints().or_fail("cannot start a thread")?;
        }
        keep_policy(&state, &policy, audit_log.boot()).or_fail("cannot keep the policy's text")?;
        let key = secret_key::open(&state)?;
        let gateway = Gateway::open(workspace, Arc::new(policy), audit_log, &state, key);
        let doing = match &gateway {
            Err(RecoveryError::Backups(_)) => "cannot open the backups",
            _ => "cannot recover",
        };
        let mut gateway = gateway.or_fail(doing)?;
        if audit.search == SearchRecords::Summary {
            gateway.summarise_searches();
        }
        if let Some(shares) = self.profile.shares {
            gateway.share(shares);
            gateway.count();
        }
        Ok(Recovered {
            gateway,
            approvals: self.approvals,
            notifier,
            state,
            state_path,
            config: operator.shown_path().map(Path::to_owned),
            claim,
            facts,
            long_lived: self.profile.long_lived,
            segment_age: audit.compress.age(),
            signatures: operator.require_signature,
            durable,
        })
    }
}

/// A recovered process that has not recorded its start.
pub(crate) struct Recovered {
    gateway: Gateway,
    approvals: Option<ApprovalSocket>,
    notifier: Option<Notifier>,
    state: Dir,
    state_path: PathBuf,
    config: Option<PathBuf>,
    claim: StateOwnership,
    facts: BTreeMap<String, Value>,
    long_lived: bool,
    /// The age at which segments of the log are compressed.
    segment_age: Option<Duration>,
    signatures: bool,
    durable: bool,
}

impl Recovered {
    /// Has both serve one sandbox, as [`Gateway::share_sandbox`].
    pub(crate) fn share_sandbox(&mut self, other: &Self) {
        self.gateway.share_sandbox(&other.gateway);
    }

    /// Records the start durably, with the command's own `facts`. Only then the process listens for
    /// approvals and starts housekeeping.
    pub(crate) fn start(
        self,
        session: Session,
        facts: BTreeMap<String, Value>,
    ) -> Result<Started, Failure> {
        let Self { gateway, approvals, state, state_path, config, signatures, durable, .. } = self;
        let facts = self.facts.into_iter().chain(facts).collect();
        let record = || gateway.start(&session, facts).or_fail("cannot record the start");
        let root = gateway.workspace().root();
        let receipt = self.claim.note_with((&state, &state_path), root, record)?;
        if let Some(approvals) = &approvals {
            approvals.listen(gateway.approvals()).or_fail("cannot listen for approvals")?;
        }
        if let Some(notifier) = self.notifier {
            gateway.approvals().observe(Box::new(move |ids| notifier.report(ids)));
        }
        if self.long_lived {
            housekeeping::start(&gateway, &state, self.segment_age)?;
        }
        let gateway = Arc::new(gateway);
        let record = receipt.seq;
        Ok(Started {
            gateway,
            session,
            record,
            state,
            state_path,
            config,
            signatures,
            durable,
            approvals,
        })
    }
}

/// A serving process.
pub(crate) struct Started {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) session: Session,
    /// The sequence number of the record of its start.
    pub(crate) record: u64,
    state: Dir,
    pub(crate) state_path: PathBuf,
    /// The operator's configuration file, if there is one.
    pub(crate) config: Option<PathBuf>,
    /// True if policies must be signed.
    signatures: bool,
    /// True if every record is synced before its reply.
    pub(crate) durable: bool,
    /// The approval socket, while the process serves.
    approvals: Option<ApprovalSocket>,
}

impl Started {
    /// Returns the reloads of its policy, whose texts come through `shared`.
    pub(crate) fn reloading<'a>(&'a self, shared: &'a SharedPolicy) -> Reloading<'a> {
        let Self { gateway, session, state, signatures, .. } = self;
        Reloading { gateway, session, state, signatures: *signatures, shared }
    }

    /// Returns the longest line of a request or reply, in bytes, under the policy in force.
    pub(crate) fn max_line(&self) -> usize {
        let policy = self.gateway.policy();
        let size = |access| policy.max_size(access, self.session.transport);
        line_for(size(Access::Read).max(size(Access::Write)))
    }

    /// Records the stop, once no other thread has the gateway: each gets `timeout` for its last
    /// step. Returns the reason why no last checkpoint was signed, if any.
    pub(crate) fn stop(self, timeout: Duration) -> Result<Option<LogError>, Failure> {
        drop(self.approvals);
        let (mut gateway, end) = (self.gateway, Instant::now() + timeout);
        loop {
            gateway = match Arc::try_unwrap(gateway) {
                Ok(gateway) => {
                    return gateway.stop(&self.session).or_fail("cannot record the stop");
                }
                Err(shared) if Instant::now() >= end => {
                    tracing::warn!("stopped while a thread still serves");
                    return shared.stop_shared(&self.session).or_fail("cannot record the stop");
                }
                Err(shared) => shared,
            };
            thread::sleep(Duration::from_millis(2));
        }
    }
}
