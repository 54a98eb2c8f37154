//! Access to an audit log, and the errors of commands that read one.

use std::{fmt, io, path::Path};

use cap_std::fs::Dir;

use portcullis_audit::{Directory, FileEntry, NEWEST, Source as _};

use super::{
    failure::{Context as _, Exit, Failure},
    state_directory,
};
use crate::{
    gateway::{AuditLog, LogError, Signing},
    model::Escaped,
    operator_files,
    review::{Log, Scanned},
};

/// The name of a workspace's log in messages.
pub(crate) const AUDIT_LOG: &str = "the audit log";

/// Advice for a log with records of another version of the format. A changed record looks the same.
pub(crate) const NEWER: &str =
    "use the portcullis that wrote it; if none did, the log was changed: compare it with a copy";

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
    let newer = opened.as_ref().is_err_and(LogError::is_newer);
    let denied = opened.as_ref().is_err_and(LogError::is_denied);
    let full = opened.as_ref().is_err_and(LogError::is_full);
    let exit = if damaged { Exit::Audit } else { Exit::Failure };
    opened.or_fail(doing).map_err(|failure| match failure.exit(exit) {
        failure if newer => failure.help(NEWER),
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

/// Opens the log in `directory` for reading.
///
/// # Errors
/// As [`log_files`].
pub(crate) fn read_log(directory: &Path) -> Result<Log, Failure> {
    let log = Log::open(directory).map_err(|error| unreadable(directory, &error))?;
    if log.is_empty() {
        is_unused(directory)?;
    }
    Ok(log)
}

/// Opens the log in `directory` for reading; `None` if no record was ever written to it.
///
/// # Errors
/// As [`log_files`], except that the log may be missing; when no segment of it can be read.
pub(crate) fn begun_log(directory: &Path) -> Result<Option<Log>, Failure> {
    match Log::open(directory) {
        Ok(log) if !log.is_empty() => Ok(Some(log)),
        Ok(log) if !is_unused(directory)? => complete(directory, log).map(Some),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_unused(directory)? => Ok(None),
        Err(error) => Err(unreadable(directory, &error)),
    }
}

/// Opens the log in `directory` for what must not go on where segments are missing.
///
/// # Errors
/// As [`log_files`], and when segments are missing or no segments.
pub(crate) fn complete_log(directory: &Path) -> Result<Log, Failure> {
    complete(directory, read_log(directory)?)
}

fn complete(directory: &Path, log: Log) -> Result<Log, Failure> {
    undamaged(&log.damages().map_err(|error| unreadable(directory, &error))?)?;
    Ok(log)
}

/// Returns the files of the log in `directory` for reading.
///
/// # Errors
/// When the log is missing or cannot be read, or has no record although a checkpoint was signed.
pub(crate) fn log_files(directory: &Path) -> Result<Directory, Failure> {
    let source = Directory::new(directory);
    let files = source.list().map_err(|error| unreadable(directory, &error))?;
    has_no_record(directory, &files)?;
    Ok(source)
}

/// Fails with exit code 5 if a scan found damage, and nothing is shown of the log therefore.
///
/// # Errors
/// The damage.
pub(crate) fn undamaged(scanned: &Scanned) -> Result<(), Failure> {
    judged(scanned, ["this one cannot read it", "nothing of it is shown"])
}

/// Fails with exit code 5 if a scan found damage; its results were printed.
///
/// # Errors
/// The damage.
pub(crate) fn damaged(scanned: &Scanned) -> Result<(), Failure> {
    judged(scanned, ["what this one can read is shown", "what could be read of it is shown"])
        .map_err(Failure::beside_result)
}

fn judged(scanned: &Scanned, [newer, damaged]: [&str; 2]) -> Result<(), Failure> {
    if scanned.damaged == 0 {
        return Ok(());
    }
    let is_newer = scanned.newer == scanned.damaged;
    let mut message = match is_newer {
        true => format!("a newer portcullis wrote a part of the audit log; {newer}"),
        false => format!("the audit log is damaged; {damaged}"),
    };
    for damage in &scanned.damages {
        message += &format!("\n  {}", Escaped(damage));
    }
    let more = scanned.damaged.saturating_sub(scanned.damages.len() as u64);
    if more > 0 {
        message += &format!("\n  and {more} more");
    }
    Err(Failure::new(message)
        .help(if is_newer {
            NEWER
        } else {
            "`portcullis audit verify` says what is wrong and what to do"
        })
        .exit(Exit::Audit))
}

/// Returns the failure for a log that is missing or cannot be read.
pub(crate) fn unreadable(directory: &Path, error: &io::Error) -> Failure {
    let shown = directory.display();
    match error.kind() {
        io::ErrorKind::NotFound => missing(directory),
        io::ErrorKind::PermissionDenied => {
            Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}"))
                .help("run the command as the user whose gateway writes the log")
        }
        io::ErrorKind::NotADirectory => {
            Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}"))
                .help("something else has its name: move it away, and put the log back from a copy")
        }
        io::ErrorKind::TimedOut => {
            Failure::new(format_args!("cannot read the audit log at `{shown}`: {error}"))
                .help("`lslocks` shows which process that is: wait for it or end it, and try again")
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

/// Returns the failure for a log that is missing.
fn missing(directory: &Path) -> Failure {
    if is_unused(directory).is_ok_and(|is_unused| !is_unused) {
        return Failure::new(format_args!(
            "the audit log at `{}` changed while it was read: a segment that it had was removed",
            directory.display()
        ))
        .help("`portcullis audit prune` does that: run this command again");
    }
    match was_signed(directory) {
        Err(failure) => failure,
        Ok(true) => gone(directory),
        Ok(false) if directory.parent().is_some_and(state_directory::is_marked) => {
            not_begun(directory)
        }
        Ok(false) => {
            Failure::new(format_args!("there is no audit log at `{}`", directory.display())).help(
                "name the workspace with --workspace DIR, or the state directory with --state DIR",
            )
        }
    }
}

/// Returns the failure for a state directory without a log of which no checkpoint was signed.
fn not_begun(directory: &Path) -> Failure {
    let shown = directory.display();
    let is_used = |name: &&str| {
        let entries = directory.parent().map(|state| operator_files::read_dir(state.join(name)));
        entries.is_some_and(|entries| entries.is_ok_and(|mut entries| entries.next().is_some()))
    };
    let used: Vec<_> = ["backups", "policies"].into_iter().filter(is_used).collect();
    if used.is_empty() {
        return Failure::new(format_args!("there is no record yet: `{shown}` was not begun"))
            .help("the start that made the state directory failed; start again");
    }
    let used = used.join("` and `");
    Failure::new(format_args!(
        "there is no record: `{shown}` is missing, and `{used}` are not empty"
    ))
    .help(
        "the log was removed, or a start failed before its first record: put the log back from a \
         copy if there was one; the next start begins a new one",
    )
}

/// Returns true if no record was ever written to the log in `directory`: a start made it and failed,
/// or there is none.
///
/// # Errors
/// When there is no record, although a checkpoint was signed, and when the directory cannot be read.
pub(crate) fn is_unused(directory: &Path) -> Result<bool, Failure> {
    match Directory::new(directory).list() {
        Ok(files) => has_no_record(directory, &files),
        Err(error) if error.kind() == io::ErrorKind::NotFound => has_no_record(directory, &[]),
        Err(error) => Err(unreadable(directory, &error)),
    }
}

/// Returns the same for the files that are in `directory`.
fn has_no_record(directory: &Path, files: &[FileEntry]) -> Result<bool, Failure> {
    let has = |is: fn(&str) -> bool| files.iter().any(|file| is(&file.name));
    if has(|name| name.starts_with("seg-")) {
        return Ok(false);
    }
    if has(|name| name == NEWEST) || was_signed(directory)? {
        Err(gone(directory))
    } else {
        Ok(true)
    }
}

/// Returns true if a checkpoint of the log in `directory` was signed. The file beside the private key
/// says so, which is outside the log's directory.
///
/// # Errors
/// When that file cannot be looked at.
fn was_signed(directory: &Path) -> Result<bool, Failure> {
    let Some(state) = directory.parent() else { return Ok(false) };
    let signed = state.join(AuditLog::LAST_SIGNED);
    match operator_files::symlink_metadata(&signed) {
        Ok(_) => Ok(true),
        // Beside a copy of a log there are no keys.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::new(format_args!(
            "cannot look at `{}`, which says whether a checkpoint was signed: {error}",
            signed.display()
        ))),
    }
}

/// Returns the failure for a log that was signed and has no record any more.
fn gone(directory: &Path) -> Failure {
    Failure::new(format_args!(
        "the audit log at `{}` is damaged: a checkpoint of it was signed, and no record is left",
        directory.display()
    ))
    .help(
        "put the log back from a copy; without one, make an empty directory there and run \
         `portcullis audit recover`, which begins a new log",
    )
    .exit(Exit::Audit)
}

/// Notes that the log in `directory` was read without verification, or has nothing to verify.
pub(crate) fn note_unverified(directory: &Path) {
    if is_unused(directory).is_ok_and(|is_unused| is_unused) {
        errln!("note: the log has no record yet");
    } else {
        errln!("note: the log was not verified; `portcullis audit verify` does that");
    }
}
