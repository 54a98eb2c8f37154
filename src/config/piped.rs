//! Policies from a pipe: for their authors, who check versions that no file
//! contains.

use std::{
    io::{self, Read},
    os::unix::fs::FileTypeExt as _,
    path::Path,
};

use super::file::reason;
use crate::{
    operator_files,
    policy::{Loaded, MAX_FILE},
};

/// The reference to standard input.
pub(super) const STDIN: &str = "-";
/// The error where only a file is accepted.
pub(super) const NOT_HERE: &str = "a pipe can be read once only, so it is no policy to enforce, \
    nor one to extend; `policy check`, `diff`, `explain`, `lint`, `replay` and `test` read one";

/// Reads the policy from the pipe `reference`; `None` if that is no pipe. Policies
/// that it extends are looked up in the current directory.
///
/// # Errors
/// The reason why it cannot be read.
pub(super) fn entry(reference: &str) -> Result<Option<Loaded>, String> {
    let bytes = if reference == STDIN {
        read(io::stdin().lock())
    } else if is_pipe(Path::new(reference)) {
        operator_files::open(reference).and_then(read)
    } else {
        return Ok(None);
    };
    let bytes = bytes.map_err(|error| reason(&error))?;
    if bytes.is_empty() {
        return Err("nothing comes from it; a pipe can be read once only".to_owned());
    }
    let here = std::env::current_dir().map_err(|error| reason(&error))?;
    let id = here.join(STDIN);
    let id = id.to_str().ok_or("the path of the current directory must be UTF-8")?.to_owned();
    Ok(Some(Loaded { id, name: reference.to_owned(), bytes }))
}

/// Returns true for a pipe without a name of its own, such as `/dev/fd/63`. A named
/// one may have no writer, and would block for ever.
pub(super) fn is_pipe(path: &Path) -> bool {
    operator_files::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
        && operator_files::canonicalize(path).is_err()
}

/// Reads at most one byte more than a policy may have, which proves that it is too
/// large.
fn read(pipe: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
