//! The core: every request passes through it between a transport and the disk.
//!
//! It exports the [`Gateway`], its requests and replies, and read-only views. Permits,
//! grants, sealed changes, the operations, descriptors of directories and the changes of
//! the backup store are private: a write to the workspace needs a decision of the policy,
//! a backup of what it replaces, and a record of its own.
//!
//! The modules are layers, each of which imports only from those before it:
//! `audit_log` records, `workspace` resolves, `backup` stores, `ops` prepares and makes a
//! change, `gateway` orders these steps.
//!
//! `docs/core-api.txt` lists all public items of this crate.
//!
//! # What another crate cannot do
//!
//! Another crate can use the exported items:
//!
//! ```
//! use portcullis_core::{AuditLog, BackupError, Gateway, Workspace};
//! use portcullis_policy::{Decision, Effect, model::WorkspacePath};
//!
//! fn backups(gateway: &Gateway) -> Result<usize, BackupError> {
//!     Ok(gateway.backups().entries()?.entries.len())
//! }
//! fn size(workspace: &Workspace, path: &WorkspacePath) -> Option<u64> {
//!     Some(workspace.view().stat(path).ok()?.size)
//! }
//! fn allows(decision: &Decision) -> bool {
//!     decision.effect() == Effect::Allow
//! }
//! fn checkpoint(log: &AuditLog) -> bool {
//!     log.checkpoint().is_ok()
//! }
//! ```
//!
//! Only the policy makes a decision that allows:
//!
//! ```compile_fail,E0451
//! use portcullis_policy::{Decision, Effect};
//! fn allowing(denial: Decision) -> Decision {
//!     Decision { effect: Effect::Allow, ..denial }
//! }
//! ```
//!
//! Only the gateway makes a permit, which an operation needs:
//!
//! ```compile_fail,E0603
//! use portcullis_core::workspace::Permit;
//! ```
//!
//! Only the log makes a grant, and only in this crate:
//!
//! ```compile_fail,E0603
//! use portcullis_core::audit_log::Grant;
//! ```
//!
//! ```compile_fail,E0624
//! let admit = portcullis_core::AuditLog::admit;
//! ```
//!
//! ```compile_fail,E0616
//! fn log(gateway: portcullis_core::Gateway) {
//!     let log = gateway.audit_log;
//! }
//! ```
//!
//! No other crate runs a request, or makes one of a new kind:
//!
//! ```compile_fail,E0603
//! use portcullis_core::gateway::transaction::Transaction;
//! ```
//!
//! Only the gateway allows a command, and nobody makes two connections of one that may be made:
//!
//! ```compile_fail,E0423
//! let allowed = portcullis_core::AllowedCommand(Default::default());
//! ```
//!
//! ```compile_fail,E0599
//! fn twice(open: portcullis_core::OpenConnection) {
//!     let again = open.clone();
//! }
//! ```
//!
//! No other crate prepares an operation or opens a sealed one:
//!
//! ```compile_fail,E0603
//! use portcullis_core::ops::prepare;
//! ```
//!
//! ```compile_fail,E0603
//! use portcullis_core::ops::Sealed;
//! ```
//!
//! A workspace gives no directory and opens nothing, and its view has nothing that
//! writes:
//!
//! ```compile_fail,E0616
//! fn directory(workspace: portcullis_core::Workspace) {
//!     let directory = workspace.dir;
//! }
//! ```
//!
//! ```compile_fail,E0624
//! let open = portcullis_core::Workspace::open_at;
//! ```
//!
//! ```compile_fail,E0624
//! let open = portcullis_core::Workspace::open_parent;
//! ```
//!
//! ```compile_fail,E0616
//! fn workspace(view: portcullis_core::WorkspaceView<'_>) {
//!     let workspace = view.0;
//! }
//! ```
//!
//! ```compile_fail,E0277
//! fn descriptor(view: portcullis_core::WorkspaceView<'_>) {
//!     fn of(_: impl std::os::fd::AsFd) {}
//!     of(view)
//! }
//! ```
//!
//! Backups are saved and removed by the core alone; maintenance is all that another
//! crate can ask for:
//!
//! ```compile_fail,E0624
//! let save = portcullis_core::BackupStore::save;
//! ```
//!
//! ```compile_fail,E0624
//! let prune = portcullis_core::BackupStore::prune;
//! ```
//!
//! ```compile_fail,E0624
//! let open = portcullis_core::BackupStore::open;
//! ```
//!
//! ```compile_fail,E0624
//! let keep = portcullis_core::BackupStore::set_retention;
//! ```

mod audit_log;
mod backup;
mod gateway;
mod ops;
mod random;
mod view;
mod workspace;

use portcullis_policy::{self as policy, model};

pub use audit_log::{
    AuditLog, Error as LogError, LogInspection, Prune as PrunePlan, Pruning, RecoveryPlan, Signer,
    Signing,
};
pub use backup::{
    Attributes, Backup, BackupContent, BackupId, BackupIdError, BackupKind, BackupList,
    BackupMaintenance, BackupStore, Error as BackupError, Node as BackupNode,
    NodeKind as BackupNodeKind, Packed, Pruned, Tree as BackupTree,
};
pub use gateway::{
    AllowedCommand, Answer, AnswerError, Approvals, Approver, BatchError, Binding, CONTEXT,
    Changed, Client, CommandRequest, ConnectionAttempt, ConnectionEnd, ContentChange, EndReason,
    Error, ErrorKind, Exchange, Gateway, GatewayMetrics, HostRule, Import, LinkDecisions,
    MountView, MovedEntry, OpenConnection, PolicyListener, Question, Recalled, RecoveryError,
    Refusal, RefusedRequest, ReloadError, Reply, Request, RuleCount, SharedLimits, TOKEN_PREFIX,
    Ticket, Times, VisibleEntry, WriteOver, decide_entries, decide_name, unified_diff,
};
pub use ops::{
    Base, BufferError, Buffers, Committed, Content, Entries, Entry, EntryKind, Event, FileMatches,
    MAX_LIST, Matches, Names, SearchResult, SomeAttributes, Source, Subscription, TextPart,
};
pub use portcullis_search::{EventKind, Follower, Line, Skipped, Stopped, Summary, WatchEnd};
pub use random::{random_bytes, random_hex};
pub use view::{Fingerprint, WorkspaceView};
pub use workspace::{
    EntryIdentity, Error as WorkspaceError, Follow, Listing, Resolved, Stat, Version, Walked,
    Workspace,
};
