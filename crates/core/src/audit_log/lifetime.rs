//! Lifetime locks, which show which gateways are alive.
//!
//! A gateway locks `gateways/BOOT.lock` as long as its process lives; the kernel releases the lock
//! however the process dies. The file has the sequence number of the first record that the gateway
//! may have written. Files are made, and read, under the log's lock, so that no process sees one
//! before it is locked.

use std::{
    fs::File,
    io::{Read, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};

use super::{Error, disk, disk::Folder, small_file};

const SUFFIX: &str = ".lock";

/// The second line in the file of a gateway that ended in order, see [`leave`].
const ENDED: &str = "ended";

/// The lifetime of this gateway.
pub(super) struct Lifetime {
    pub(super) gateways: Folder,
    name: String,
    file: File,
    safe: AtomicBool,
}

impl Lifetime {
    /// Begins a lifetime. Requires the log's lock.
    pub(super) fn begin(gateways: Folder, boot: &str, first: u64) -> Result<Self, Error> {
        let name = format!("{boot}{SUFFIX}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mut file = gateways.file(&name, flags).map_err(Error::io("make the gateway's lock"))?;
        if !disk::try_lock(&file)? {
            return Err(Error::InUse(1));
        }
        let text = format!("{first}\n");
        if let Err(error) = file.write_all(text.as_bytes()) {
            // The file is empty, and no process relies on it.
            let _stays = gateways.remove(&name);
            return Err(Error::std("write the gateway's lock")(error));
        }
        Ok(Self { gateways, name, file, safe: AtomicBool::new(false) })
    }

    /// Syncs the file, once: before the first intent that a recovery would have to find through it.
    pub(super) fn persist(&self) -> Result<(), Error> {
        if !self.safe.load(Ordering::Acquire) {
            self.file.sync_all().map_err(Error::std("sync the gateway's lock"))?;
            self.gateways.sync().map_err(Error::io("sync the gateway's lock"))?;
            self.safe.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Ends a lifetime that leaves nothing to recover.
    pub(super) fn end(self) -> Result<(), Error> {
        self.gateways.remove(&self.name).map_err(Error::io("remove the gateway's lock"))
    }
}

/// A gateway that died without ending its lifetime. No other gateway ever gets its name, so its
/// lock need not be held: after many deaths the descriptors for that would not suffice.
pub(super) struct DeadGateway {
    pub(super) boot: String,
    /// The first record that it may have written.
    pub(super) first: u64,
    /// True if it ended in order, and a recovery set its last records aside.
    pub(super) ended: bool,
    name: String,
}

impl DeadGateway {
    /// Removes its file, once nothing is left to recover.
    pub(super) fn remove_lock_file(&self, gateways: &Folder) -> Result<(), Error> {
        match gateways.remove(&self.name) {
            // It stopped in order after all, during the check of its lock.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("remove a dead gateway's lock")(errno)),
        }
    }
}

/// Makes a file like that of a dead gateway for one that ended in order, where a recovery sets
/// aside the outcomes of its intents from record `first` on. A gateway that died has its own.
pub(super) fn leave(gateways: &Folder, boot: &str, first: u64) -> Result<(), Error> {
    let name = format!("{boot}{SUFFIX}");
    if gateways.stat(&name).map_err(Error::io("look at a gateway's lock"))?.is_some() {
        return Ok(());
    }
    let text = format!("{first}\n{ENDED}\n");
    small_file::write(gateways, &name, text.as_bytes(), RenameFlags::NOREPLACE)
}

/// True if a gateway can have this name: records may have any text.
pub(super) fn is_boot(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the first record of the file's gateway; 0 if the number was lost in a power failure.
fn first_of(text: &str) -> u64 {
    text.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0)
}

/// Reads the beginning of a lock file. After a power failure it may have any bytes.
fn text_of(file: &File) -> Result<String, Error> {
    let mut text = Vec::new();
    file.take(32).read_to_end(&mut text).map_err(Error::std("read a gateway's lock"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

pub(super) fn unopened(gateways: &Folder, name: &str, errno: Errno) -> Error {
    gateways.opening("open a gateway's lock", name)(errno)
}

/// Returns the dead gateways, and the names of live ones. Requires the log's lock.
pub(super) fn census(
    gateways: &Folder,
    own: Option<&Lifetime>,
) -> Result<(Vec<DeadGateway>, Vec<String>), Error> {
    let (mut dead, mut alive) = (Vec::new(), Vec::new());
    for name in gateways.names().map_err(Error::io("read the gateways' locks"))? {
        let Some(boot) = name.strip_suffix(SUFFIX) else { continue };
        if own.is_some_and(|own| own.name == name) {
            continue;
        }
        let file = match gateways.file(&name, OFlags::RDWR) {
            Ok(file) => file,
            // A gateway that stops in order removes its file without the lock.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(unopened(gateways, &name, errno)),
        };
        if !disk::try_lock(&file)? {
            alive.push(boot.to_owned());
            continue;
        }
        let text = text_of(&file)?;
        let (first, ended) = (first_of(&text), text.lines().nth(1) == Some(ENDED));
        dead.push(DeadGateway { boot: boot.to_owned(), first, ended, name });
    }
    Ok((dead, alive))
}

/// Returns the first record that any gateway, dead or alive, may have written.
pub(super) fn first_needed(gateways: &Folder) -> Result<Option<u64>, Error> {
    let mut first: Option<u64> = None;
    for name in gateways.names().map_err(Error::io("read the gateways' locks"))? {
        if !name.ends_with(SUFFIX) {
            continue;
        }
        let file = match gateways.file(&name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(unopened(gateways, &name, errno)),
        };
        let number = first_of(&text_of(&file)?);
        first = Some(first.map_or(number, |known| known.min(number)));
    }
    Ok(first)
}
