//! Errors of planning an undo.

use std::io;

use crate::gateway::{BackupError, WorkspaceError};

/// Reasons why an undo could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be read.
    #[error("cannot read the audit log: {0}")]
    Log(#[from] io::Error),
    /// A line of the log is not a record.
    #[error("line {line} of `{segment}` is no record")]
    Damaged {
        /// The segment's file.
        segment: String,
        /// The line number, from 1.
        line: u64,
    },
    /// The log begins after the requested time.
    #[error("the log begins with record {0}; what was before is not known")]
    Begins(u64),
    /// The log ends before the record.
    #[error("there is no record {0}")]
    NoRecord(u64),
    /// There are more changes than are held in memory. Without the newest ones the others cannot be
    /// undone.
    #[error(
        "too many changes were made since: those from record {0} on were not looked at, and nothing \
         was undone"
    )]
    TooMany(u64),
    /// The record is not that of a change that was made.
    #[error("record {0} changed nothing in the workspace")]
    NoChange(u64),
    /// No session of the log has this identifier.
    #[error(
        "no session whose identifier begins with `{session}` changed anything{}",
        begins.map(|first| format!(" since record {first}; records before it were pruned"))
            .unwrap_or_default()
    )]
    NoSession {
        /// The beginning of the identifier.
        session: String,
        /// The first record, if earlier ones were pruned.
        begins: Option<u64>,
    },
    /// Several sessions' identifiers have this prefix.
    #[error("more than one session has an identifier that begins with `{0}`")]
    Ambiguous(String),
    /// The backup store cannot be read.
    #[error(transparent)]
    Backups(#[from] BackupError),
    /// The workspace cannot be read.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}
