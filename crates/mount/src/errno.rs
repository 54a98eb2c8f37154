//! Conversion of errors of the core to error numbers.

use portcullis_core::{ErrorKind, WorkspaceError};
use portcullis_policy::model::PathError;
use rustix::io::Errno;

use crate::nodes::NoPath;

/// Returns the error number of a failed request.
pub(crate) fn of_kind(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Denied => Errno::ACCESS,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::AlreadyExists => Errno::EXIST,
        ErrorKind::NotADirectory => Errno::NOTDIR,
        ErrorKind::IsADirectory => Errno::ISDIR,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::Conflict => Errno::STALE,
        ErrorKind::Cancelled => Errno::INTR,
        ErrorKind::InvalidInput => Errno::INVAL,
        ErrorKind::Editor | ErrorKind::Unavailable | ErrorKind::Io => Errno::IO,
    }
}

/// Returns the error number of a failed lookup. An entry that must not be looked up
/// is missing.
pub(crate) fn of_look(error: &WorkspaceError) -> Errno {
    match error {
        WorkspaceError::NotADirectory => Errno::NOTDIR,
        WorkspaceError::TooLong => Errno::NAMETOOLONG,
        WorkspaceError::Moved => Errno::STALE,
        WorkspaceError::TooLarge => Errno::OVERFLOW,
        WorkspaceError::NotFound
        | WorkspaceError::IsADirectory
        | WorkspaceError::Outside
        | WorkspaceError::Mount
        | WorkspaceError::Loop
        | WorkspaceError::NotUtf8 => Errno::NOENT,
        WorkspaceError::Os { errno: Errno::ACCESS | Errno::PERM, .. } => Errno::ACCESS,
        WorkspaceError::Os { .. } => Errno::IO,
    }
}

/// Returns the error number of a link that cannot be followed.
pub(crate) fn of_link(error: &WorkspaceError) -> Errno {
    match error {
        WorkspaceError::Outside | WorkspaceError::Mount => Errno::ACCESS,
        WorkspaceError::Loop => Errno::LOOP,
        error => of_look(error),
    }
}

/// Returns the error number of a node without a path.
pub(crate) fn of_gone(gone: NoPath) -> Errno {
    match gone {
        NoPath::Unlinked => Errno::NOENT,
        NoPath::Replaced | NoPath::Unknown => Errno::STALE,
    }
}

/// Returns the error number of an invalid name.
pub(crate) fn of_name(error: PathError) -> Errno {
    match error {
        PathError::ComponentTooLong | PathError::TooLong => Errno::NAMETOOLONG,
        PathError::Absolute | PathError::Parent | PathError::Nul => Errno::INVAL,
    }
}
