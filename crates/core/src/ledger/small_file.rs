//! Small files of the log's keys and checkpoints, read and written as a whole.

use std::io::{Read as _, Write as _};

use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};

use super::{
    Error,
    disk::{self, Folder},
};

/// Bytes of a file of keys at most.
const MOST: u64 = 64 * 1024;

/// A small file's text, with marks in it where it is none; `None` when there is
/// no file.
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
    file.take(MOST)
        .read_to_end(&mut bytes)
        .map_err(Error::std("read a file of the log's keys or checkpoints"))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes a small file as a whole: after a crash it is the old or the new one.
pub(super) fn write(
    folder: &Folder,
    name: &str,
    bytes: &[u8],
    flags: RenameFlags,
) -> Result<(), Error> {
    put(folder, name, bytes, flags, true)
}

/// The same; without `durable` a power loss may leave anything.
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
        // What is left of it has no meaning.
        let _removed = folder.remove(&temp);
    })
}
