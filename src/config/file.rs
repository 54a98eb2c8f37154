//! Reads of the operator's files.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

use crate::{operator_files, policy::MAX_FILE};

/// The error of a text with wrong types. The keys are checked before, so it should not
/// occur; the parser's own error might contain a value.
pub(super) const NO_FORM: &str = "it does not have the form that is expected";

pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = operator_files::open_with(path, &options)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The reason why a missing file cannot be read.
pub(crate) const NO_SUCH_FILE: &str = "no such file";

/// Returns the system's error without the number.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => NO_SUCH_FILE.to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}
