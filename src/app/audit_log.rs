//! Errors of commands that read an audit log.

use std::{io, path::Path};

use super::failure::{Exit, Failure};

/// Says that there is no log, or why it cannot be read.
pub(crate) fn unreadable(directory: &Path, error: &io::Error) -> Failure {
    let shown = directory.display();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format_args!("there is no audit log at `{shown}`"))
            .help(
                "name the workspace with --workspace DIR, or the state directory with --state DIR",
            ),
        io::ErrorKind::PermissionDenied => {
            Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}"))
                .help("run the command as the user whose gate writes the log")
        }
        // A line that no record can be, a compressed segment that is none.
        io::ErrorKind::InvalidData => {
            Failure::new(format_args!("the audit log at `{shown}` is damaged: {error}"))
                .help("`portcullis audit verify` says what is wrong")
                .exit(Exit::Audit)
        }
        _ => Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}")),
    }
}

/// Says of what is read from the log that nothing vouches for it.
pub(crate) fn say_unverified() {
    errln!("note: the log was not verified; `portcullis audit verify` does that");
}
