//! The version of the state directory's format, in its file `format`.
//!
//! A version of the program that changes the format writes the new version while it holds the lock
//! on the log, so no other gateway uses the directory. Others refuse the directory from then on.

use std::{io, path::Path};

use cap_std::fs::Dir;
use rustix::fs::RenameFlags;

use super::{read, write};
use crate::{
    app::failure::{Context as _, Failure},
    model::Escaped,
    operator_files,
};

/// The name of the file.
const NAME: &str = "format";
/// The version that this program reads and writes.
const VERSION: u32 = 1;
/// The directories, one of which is in each used state directory.
const PARTS: [&str; 3] = ["audit", "backups", "keys"];
/// Maximum number of bytes of the file that are read.
const MAX_LENGTH: u64 = 32;

/// Refuses the directory at `path`, of which a command only reads the log, if it has another
/// version. One that is missing or cannot be opened is for the command to report.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_at(path: &Path) -> Result<(), Failure> {
    operator_files::open_dir(path).map_or(Ok(()), |state| check(&state, path))
}

/// Refuses a directory with another version. A directory without one is new.
pub(super) fn check(state: &Dir, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let found =
        read(state, NAME, MAX_LENGTH).or_fail(format_args!("cannot read `{shown}/{NAME}`"))?;
    let Some(text) = found else { return Ok(()) };
    let (reason, help) = match text.trim_end().parse::<u32>() {
        Ok(VERSION) => return Ok(()),
        Ok(other) => (
            format!("has format {other}, and this portcullis knows format {VERSION} only"),
            "use the portcullis that wrote it, or name another directory with --state DIR",
        ),
        Err(_) => (
            format!(
                "has an invalid format number in its file `{NAME}`: `{}`",
                Escaped(text.trim_end())
            ),
            "put the file back as it was: one line with the number of the format",
        ),
    };
    Err(Failure::new(format_args!("the state directory `{shown}` {reason}")).help(help))
}

/// Returns true for a directory that a start has made, also one that failed then.
pub(crate) fn is_marked(path: &Path) -> bool {
    operator_files::exists(path.join(NAME))
}

/// Returns the state directory that `path` is or lies in. The user's own can be searched.
pub(crate) fn around(path: &Path) -> Option<&Path> {
    let has_part = |at: &Path| PARTS.iter().any(|part| operator_files::exists(at.join(part)));
    path.ancestors().find(|at| is_marked(at) && has_part(at))
}

/// Writes the version, unless the directory has one.
///
/// # Errors
/// If the file cannot be read or written.
pub(crate) fn mark(state: &Dir) -> io::Result<()> {
    if read(state, NAME, MAX_LENGTH)?.is_some() {
        return Ok(());
    }
    match write(state, NAME, format!("{VERSION}\n").as_bytes(), RenameFlags::NOREPLACE) {
        // Another gateway has written it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}
