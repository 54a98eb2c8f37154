//! Access to an audit log, and the errors of commands that read one.

use std::{fmt, io, path::Path};

use cap_std::fs::Dir;

use super::failure::{Context as _, Exit, Failure};
use crate::gateway::{AuditLog, LogError, Signing};

/// The name of a workspace's log in messages.
pub(crate) const AUDIT_LOG: &str = "the audit log";

/// Opens the log's own key, which signs checkpoints.
pub(crate) fn own_key(state: &Dir, log: &str) -> Result<Signing, Failure> {
    opened(Signing::own(state), format_args!("cannot open the key of {log}"))
}

/// Opens the log in the state directory, whose checkpoints `signing` signs.
pub(crate) fn open_audit_log(
    state: &Dir,
    signing: Option<Signing>,
    log: &str,
) -> Result<AuditLog, Failure> {
    let signed = |audit_log: AuditLog| match signing {
        Some(signing) => audit_log.signed(signing),
        None => Ok(audit_log),
    };
    opened(AuditLog::open(state).and_then(signed), format_args!("cannot open {log}"))
}

/// Converts an error of the log to a failure, with exit code 5 if the log is
/// damaged.
pub(crate) fn opened<T>(
    opened: Result<T, LogError>,
    doing: impl fmt::Display,
) -> Result<T, Failure> {
    let damaged = opened.as_ref().is_err_and(LogError::is_damage);
    let denied = opened.as_ref().is_err_and(LogError::is_denied);
    let full = opened.as_ref().is_err_and(LogError::is_full);
    let exit = if damaged { Exit::Audit } else { Exit::Failure };
    opened.or_fail(doing).map_err(|failure| match failure.exit(exit) {
        failure if denied => failure.help(
            "give it back to the user whose gateway writes the log, and run this as that user",
        ),
        failure if full => failure.help(
            "make room first: `index` in the state directory can be removed at any time, and \
             `portcullis audit prune` and `compress` need a little room themselves",
        ),
        failure => failure,
    })
}

/// Returns the failure for a log that is missing or cannot be read.
pub(crate) fn unreadable(directory: &Path, error: &io::Error) -> Failure {
    let shown = directory.display();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format_args!("there is no audit log at `{shown}`"))
            .help(
                "name the workspace with --workspace DIR, or the state directory with --state DIR",
            ),
        io::ErrorKind::PermissionDenied => {
            Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}"))
                .help("run the command as the user whose gateway writes the log")
        }
        io::ErrorKind::NotADirectory => {
            Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}"))
                .help("something else has its name: move it away, and put the log back from a copy")
        }
        // A line that is too long for a record, or an invalid compressed segment.
        io::ErrorKind::InvalidData => {
            Failure::new(format_args!("the audit log at `{shown}` is damaged: {error}"))
                .help("`portcullis audit verify` says what is wrong")
                .exit(Exit::Audit)
        }
        _ => Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}")),
    }
}

/// Notes that the log was read without verification.
pub(crate) fn note_unverified() {
    errln!("note: the log was not verified; `portcullis audit verify` does that");
}
