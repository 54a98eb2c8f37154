//! The core: every request passes through it between a transport and the disk.
//!
//! It exports the [`Gateway`], its requests and replies, and views that can only
//! read. Permits, grants, sealed changes, the operations, directory handles and the
//! changes of the backup store are private: what writes to the workspace is a decision
//! that the policy made, a backup, and a record of its own.
//!
//! The modules are layers, each of which imports only from those before it:
//! `ledger` records, `workspace` resolves, `backup` stores, `ops` prepares and makes a
//! change, `gateway` has it all happen in the right order.

mod backup;
mod gateway;
mod ledger;
mod ops;
mod view;
mod workspace;

use portcullis_policy::{self as policy, model};

pub use backup::{
    Attributes, BackupId, BackupIdError, BackupMaintenance, BackupStore, Content as BackupContent,
    Entry as Backup, EntryKind as BackupKind, Error as BackupError, Listing as BackupList,
    Node as BackupNode, NodeKind as BackupNodeKind, Packed, Pruned, Tree as BackupTree,
};
pub use gateway::{
    Answer, AnswerError, Approvals, Approver, BatchError, Binding, CONTEXT, Caller, Changed,
    Decided, Error, ErrorKind, Following, Gateway, Herald, Nobody, Numbers, Output, Question,
    RecoveryError, Refusal, ReloadError, Reply, Shares, Ticket, Times, Watching, unified_diff,
};
pub use ledger::{
    AuditLog, Error as LogError, Looked, Plan as RecoveryPlan, Prune as PrunePlan, Pruning, Signer,
    Signing,
};
pub use ops::{
    BufferError, Buffers, Committed, Content, Entries, Entry, EntryKind, Event, EventKind,
    FileMatches, Follower, Found, Line, Matches, Names, Skipped, Source, Stopped, Subscription,
    Summary, TextPart, Unfollowed, WatchEnd,
};
pub use view::{Fingerprint, WorkspaceView};
pub use workspace::{Error as WorkspaceError, Follow, Listing, Resolved, Stat, Walked, Workspace};
