//! The gateway itself: decide → back up → record → apply → record.
//!
//! Only this module calls `ops`, and only it orders decision, backup, record and effect. It knows
//! no protocol.

#![expect(
    private_interfaces,
    reason = "`Request::run` takes what only this crate has, so nobody else implements it"
)]

mod approval_preview;
mod approval_requests;
mod approvals;
mod authorizer;
mod batch;
mod carried_labels;
mod changes;
mod client;
mod commands;
mod connect;
mod connection_end;
mod connection_request;
mod connections;
mod credential_hosts;
mod decision_context;
mod diff;
mod disclosures;
mod error;
mod events;
mod handle;
mod host_rule;
mod import;
mod labels;
mod leaky_bucket;
mod limits;
mod link_decisions;
mod link_targets;
mod lock;
mod locks;
mod metrics;
mod mount;
mod obligations;
mod open_connection;
mod open_questions;
mod open_tunnel;
mod pending_approval;
mod policy_listeners;
mod prepared_change;
mod record;
mod recovery;
mod redaction;
mod refusals;
mod refused_request;
mod reload;
mod reply;
mod request;
mod restoration;
mod scheduler;
mod search;
mod span;
mod transaction;
mod tunnels;
mod waiting_observer;
mod watch;

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
};

use cap_std::fs::Dir;

pub use approvals::{Answer, AnswerError, Approvals, Approver, Binding, Question, Ticket};
pub use authorizer::decide_name;
pub use batch::BatchError;
pub use changes::{ContentChange, Exchange, WriteOver, decide_entries};
pub use client::Client;
pub use commands::{AllowedCommand, CommandRequest};
pub use connect::ConnectionAttempt;
pub use connection_end::{ConnectionEnd, EndReason};
pub use diff::{CONTEXT, unified_diff};
pub use error::{Error, ErrorKind, Refusal};
pub use host_rule::HostRule;
pub use import::Import;
pub use link_decisions::LinkDecisions;
pub use metrics::{GatewayMetrics, RuleCount, Times};
pub use mount::{MountView, VisibleEntry};
pub use open_connection::OpenConnection;
pub use policy_listeners::PolicyListener;
pub use recovery::RecoveryError;
pub use redaction::TOKEN_PREFIX;
pub use refused_request::RefusedRequest;
pub use reload::ReloadError;
pub use reply::{Changed, Recalled, Reply};
pub use request::Request;
pub use restoration::MovedEntry;
pub use scheduler::SharedLimits;

use crate::{
    audit_log::AuditLog,
    backup::{BackupMaintenance, BackupStore},
    ops::{LastRenames, NameLocks, Watcher},
    policy::{Policy, SecretKey},
    view::WorkspaceView,
    workspace::Workspace,
};
use connections::Connections;
use credential_hosts::CredentialHosts;
use decision_context::FurtherPolicies;
use labels::Carriers;
use limits::Meters;
use locks::Locks;
use metrics::Counter;
use pending_approval::OpenQuestions;
use policy_listeners::PolicyListeners;
use refusals::Refusals;
use scheduler::Scheduler;

/// A gateway in front of one workspace. Many threads can use it at once.
#[derive(Debug)]
pub struct Gateway {
    workspace: Workspace,
    policy: Arc<RwLock<Arc<Policy>>>,
    /// The policies of the sandbox's further workspaces, which restrict its connections.
    further: FurtherPolicies,
    approvals: Arc<Approvals>,
    open_questions: OpenQuestions,
    audit_log: AuditLog,
    backup_store: Arc<BackupStore>,
    locks: Locks,
    meters: Meters,
    /// The meters of mounts, by session.
    mount_meters: Meters,
    refusals: Refusals,
    key: SecretKey,
    last_renames: LastRenames,
    name_locks: NameLocks,
    watcher: Watcher,
    policy_listeners: PolicyListeners,
    /// True if each file of which a search discloses lines has a record.
    search_files: bool,
    /// The scheduler of a shared gateway.
    slots: Option<Scheduler>,
    counter: Option<Arc<Counter>>,
    connections: Arc<Connections>,
    carriers: Arc<Carriers>,
    local_addresses: RwLock<HashSet<IpAddr>>,
    credential_hosts: CredentialHosts,
}

impl Gateway {
    /// The target of the spans of requests.
    pub const SPANS: &str = span::SPANS;

    /// Opens the backups in the state directory `state` and settles what dead gateways left behind.
    /// `key` makes the placeholders of secrets; every gateway over the same state must have the
    /// same one.
    ///
    /// # Errors
    /// When the backups cannot be opened, or the log cannot be read or written, or has an invalid
    /// intent: the workspace is not served then.
    pub fn open(
        workspace: Workspace,
        policy: Arc<Policy>,
        audit_log: AuditLog,
        state: &Dir,
        key: SecretKey,
    ) -> Result<Self, RecoveryError> {
        let backup_store =
            BackupStore::open(state, *policy.backups()).map_err(RecoveryError::Backups)?;
        let backup_store = Arc::new(backup_store.of_gateway(audit_log.boot()));
        let (locks, meters, approvals) = (Locks::default(), Meters::default(), Arc::default());
        let policy = Arc::new(RwLock::new(policy));
        let name_locks = NameLocks::new(audit_log.lock_file("names")?);
        let gateway = Self {
            workspace,
            policy,
            further: FurtherPolicies::default(),
            approvals,
            open_questions: OpenQuestions::default(),
            audit_log,
            backup_store,
            locks,
            meters,
            mount_meters: Meters::default(),
            refusals: Refusals::default(),
            key,
            last_renames: LastRenames::default(),
            name_locks,
            watcher: Watcher::default(),
            policy_listeners: PolicyListeners::default(),
            search_files: true,
            slots: None,
            counter: None,
            connections: Arc::default(),
            carriers: Arc::default(),
            local_addresses: RwLock::default(),
            credential_hosts: CredentialHosts::default(),
        };
        let settled = recovery::run(&gateway)?;
        if settled > 0 {
            tracing::warn!(settled, "settled changes that a gateway left unfinished");
        }
        Ok(gateway)
    }

    /// Gives each search one record from now on, and none to the files of which it discloses lines.
    pub fn summarise_searches(&mut self) {
        self.search_files = false;
    }

    /// Shares the gateway from now on: requests wait for slots, and an agent has bounded quotas.
    /// The caller bounds the number of sessions.
    pub fn share(&mut self, shares: SharedLimits) {
        self.meters.count_all();
        self.mount_meters.count_all();
        self.slots = Some(Scheduler::new(shares));
    }

    /// Counts decisions, bytes and times from now on.
    pub fn count(&mut self) {
        let counter = Arc::<Counter>::default();
        self.counter = Some(Arc::clone(&counter));
        self.audit_log.observe(move |kind, draft| {
            counter.record(kind, draft);
            span::decided(kind, draft);
        });
    }

    /// Returns the counts since [`Gateway::count`].
    pub fn numbers(&self) -> GatewayMetrics {
        let counted = self.counter.as_ref().map(|counter| counter.numbers()).unwrap_or_default();
        let (waiting, running) = self.slots.as_ref().map(Scheduler::count).unwrap_or_default();
        GatewayMetrics { waiting, running, uncovered: self.audit_log.uncovered(), ..counted }
    }

    /// Returns the policy in force. One request is decided by one policy.
    pub fn policy(&self) -> Arc<Policy> {
        // A panic elsewhere leaves one of the two policies.
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the requests that wait for an approval.
    pub fn approvals(&self) -> Arc<Approvals> {
        Arc::clone(&self.approvals)
    }

    /// Returns the random identifier of this process's lifetime in every record.
    pub fn boot(&self) -> &str {
        self.audit_log.boot()
    }

    /// Returns the backups for reading.
    pub fn backups(&self) -> &BackupStore {
        &self.backup_store
    }

    /// Returns the maintenance of the backups.
    pub fn maintenance(&self) -> BackupMaintenance {
        BackupMaintenance::of(&self.backup_store)
    }

    /// A read-only view of the workspace.
    pub fn workspace(&self) -> WorkspaceView<'_> {
        self.workspace.view()
    }
}
