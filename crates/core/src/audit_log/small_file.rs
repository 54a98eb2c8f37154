//! Small files of the log's keys and checkpoints, read and written in one piece.

use std::io::{Read as _, Write as _};

use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};

use super::{
    Error,
    disk::{self, Folder},
};

/// Maximum number of bytes of such a file that are read.
const MAX_SMALL_FILE: u64 = 64 * 1024;

/// Reads a small file's text, with replacement characters for invalid UTF-8; `None` if it is
/// missing.
pub(super) fn read(folder: &Folder, name: &str) -> Result<Option<String>, Error> {
    let file = match folder.file(name, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => {
            let action = "open a file of the log's keys or checkpoints";
            return Err(folder.opening(action, name)(errno));
        }
    };
    let mut bytes = Vec::new();
    file.take(MAX_SMALL_FILE)
        .read_to_end(&mut bytes)
        .map_err(Error::std("read a file of the log's keys or checkpoints"))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes a small file: after a crash it is the old or the new one.
pub(super) fn write(
    folder: &Folder,
    name: &str,
    bytes: &[u8],
    flags: RenameFlags,
) -> Result<(), Error> {
    put(folder, name, bytes, flags, true)
}

/// Writes a small file; without `durable` it may have any bytes after a power failure.
pub(super) fn put(
    folder: &Folder,
    name: &str,
    bytes: &[u8],
    flags: RenameFlags,
    durable: bool,
) -> Result<(), Error> {
    let temp = format!(".{name}.{}", disk::random_id()?);
    let put = || {
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = folder
            .file(&temp, create)
            .map_err(Error::io("make a file of the log's keys or checkpoints"))?;
        file.write_all(bytes).map_err(Error::std("write the log's keys or checkpoints"))?;
        if durable {
            file.sync_all().map_err(Error::std("sync the log's keys or checkpoints"))?;
        }
        rustix::fs::renameat_with(folder, &temp, folder, name, flags)
            .map_err(Error::io("name a file of the log's keys or checkpoints"))
    };
    put().inspect_err(|_error| {
        // An incomplete file is of no use.
        let _removed = folder.remove(&temp);
    })
}
