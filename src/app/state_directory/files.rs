//! Small files of a state directory, which are read and written as one.

use std::io::{self, Read as _, Write as _};

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, RenameFlags, fsync, openat, renameat_with};

use crate::review::open_regular_in;

/// Reads a file of a state directory, at most `most` bytes; `None` if it is missing.
///
/// # Errors
/// When it is no regular file or no UTF-8; the error of the system.
pub(crate) fn read(folder: &Dir, name: &str, most: u64) -> io::Result<Option<String>> {
    let file = match open_regular_in(folder, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Writes a file of a state directory, all of it or nothing, and syncs it. `flags` are those of the
/// rename that gives it its name.
///
/// # Errors
/// The error of the system.
pub(crate) fn write(
    folder: &Dir,
    name: &str,
    content: &[u8],
    flags: RenameFlags,
) -> io::Result<()> {
    let fresh = format!(".{name}.{}", std::process::id());
    let mut file = folder.create(&fresh)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    match written.and_then(|()| Ok(renameat_with(folder, &fresh, folder, name, flags)?)) {
        Ok(()) => sync(folder),
        Err(error) => {
            let _ = folder.remove_file(&fresh);
            Err(error)
        }
    }
}

/// Syncs a directory; a `Dir` is an `O_PATH` descriptor, which cannot be synced.
pub(crate) fn sync(folder: &Dir) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fsync(openat(folder, ".", flags, Mode::empty())?)?)
}
