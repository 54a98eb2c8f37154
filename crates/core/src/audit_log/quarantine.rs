//! `audit/quarantine/`: bytes that were taken out of the log, and are never deleted.
//!
//! A file has the name `KIND-SHA256.pending` from before its bytes leave the log until after a
//! `recovered` record names it, so that a crash in between loses neither: the next gateway that
//! opens the log writes the record.

use std::{
    fs::File,
    io::{self, Read, Seek as _, Write},
};

use portcullis_audit::{Draft, Hash};
use rustix::fs::{FileType, OFlags, Stat};
use sha2::{Digest, Sha256};

use super::{Error, disk, disk::Folder};

pub(super) const FOLDER: &str = "quarantine";
const PENDING: &str = ".pending";
/// Maximum size of a file that is set aside, unless it is a segment, in bytes.
pub(super) const MAX_ASIDE: u64 = 1 << 30;
/// The prefix of an incomplete copy, of bytes that the log still has.
const INCOMING: &str = "incoming-";

/// A file in quarantine that no record names yet.
#[derive(Debug)]
pub(super) struct Pending {
    /// Its name without `.pending`.
    name: String,
    size: u64,
}

/// Copies `bytes` to quarantine, durably.
pub(super) fn keep(audit: &Folder, kind: &str, bytes: impl Read) -> Result<Pending, Error> {
    let folder = Folder::open(audit, FOLDER)?;
    let incoming = format!("{INCOMING}{}", disk::random_id()?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = folder.file(&incoming, flags).map_err(Error::io("make a file in quarantine"))?;
    let pending = fill(file, bytes).and_then(|(hash, size)| {
        let name = format!("{kind}-{hash}");
        folder
            .rename(&incoming, &folder, &format!("{name}{PENDING}"))
            .and_then(|()| folder.sync())
            .map_err(Error::io("name a file in quarantine"))?;
        Ok(Pending { name, size })
    });
    if pending.is_err() {
        // An incomplete copy is of no use; the log still has all its bytes.
        let _removed = folder.remove(&incoming);
    }
    pending
}

/// Moves the file `name` of the log to quarantine. Of a link its text is stored, of a pipe, a
/// socket or a device nothing; a directory, or a file whose length is over [`MAX_ASIDE`], stays for
/// an operator to look at.
pub(super) fn take(audit: &Folder, kind: &str, name: &str) -> Result<(), Error> {
    take_named(audit, kind, name).map_err(|error| match error {
        Error::Irregular(..) | Error::TooLong(..) => error,
        error => error.of(name),
    })
}

fn take_named(audit: &Folder, kind: &str, name: &str) -> Result<(), Error> {
    let aside = || Error::io("set a file of the log aside");
    let Some(stat) = movable(audit, name)? else { return Ok(()) };
    let raw = audit.raw_name(name).map_err(aside())?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            keep(audit, kind, audit.file(&raw, OFlags::RDONLY).map_err(aside())?)?
        }
        FileType::Symlink => {
            keep(audit, kind, &*audit.link(&raw).map_err(aside())?.unwrap_or_default())?
        }
        _ => keep(audit, kind, io::empty())?,
    };
    audit.remove(&raw).map_err(aside())
}

/// Returns the attributes of the file that [`take`] would move; `None` if it is missing.
///
/// # Errors
///
/// When [`take`] would leave it in its place.
pub(super) fn movable(audit: &Folder, name: &str) -> Result<Option<Stat>, Error> {
    let found = audit.raw_name(name).and_then(|raw| audit.stat(raw));
    let stat = found.map_err(Error::io("set a file of the log aside"))?;
    match stat.map(|stat| (FileType::from_raw_mode(stat.st_mode), disk::length(&stat))) {
        Some((FileType::Directory, _)) => Err(Error::Irregular(audit.place(name), "regular file")),
        Some((FileType::RegularFile, length)) if length > MAX_ASIDE => {
            Err(Error::TooLong(name.to_owned(), length))
        }
        _ => Ok(stat),
    }
}

fn fill(mut file: File, mut bytes: impl Read) -> Result<(Hash, u64), Error> {
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = bytes.read(&mut buffer).map_err(Error::std("read the audit log"))?;
        let Some(part) = buffer.get(..read).filter(|part| !part.is_empty()) else { break };
        hash.update(part);
        size += part.len() as u64;
        // A sparse file can be longer than its space on the disk.
        let is_hole = part.iter().all(|byte| *byte == 0);
        let written =
            if is_hole { file.seek_relative(part.len() as i64) } else { file.write_all(part) };
        written.map_err(Error::std("write to quarantine"))?;
    }
    file.set_len(size).map_err(Error::std("write to quarantine"))?;
    file.sync_all().map_err(Error::std("sync a file in quarantine"))?;
    Ok((Hash::from_bytes(hash.finalize().into()), size))
}

/// Returns the files without a record. Removes the incomplete copies of dead gateways. Requires the
/// log's lock, under which all copies are made.
pub(super) fn pending(audit: &Folder) -> Result<Vec<Pending>, Error> {
    let io = |errno| Error::Io { action: "read the quarantine", errno };
    if audit.stat(FOLDER).map_err(io)?.is_none() {
        return Ok(Vec::new());
    }
    let folder = Folder::open(audit, FOLDER)?;
    let mut list = Vec::new();
    for name in folder.names().map_err(io)? {
        if name.starts_with(INCOMING) {
            let clear = Error::io("clear the quarantine");
            folder.remove(&name).map_err(|errno| clear(errno).of(&format!("{FOLDER}/{name}")))?;
        }
        if let Some(name) = name.strip_suffix(PENDING)
            && let Some(stat) = folder.stat(format!("{name}{PENDING}")).map_err(io)?
        {
            list.push(Pending { name: name.to_owned(), size: disk::length(&stat) });
        }
    }
    Ok(list)
}

impl Pending {
    /// Returns the `recovered` record that names it.
    pub(super) fn draft(&self) -> Draft {
        let (kind, sha256) = self.name.rsplit_once('-').unwrap_or(("", &self.name));
        let reason = match kind {
            "torn" => "the log ended within a line: a gateway or the machine died while it wrote",
            "checkpoint" => "an operator had a checkpoint set aside that the log does not confirm",
            "signed" => {
                "an operator had the log signed again: it differs from the checkpoint that was signed last"
            }
            "key" => "an operator had a damaged file of the log's public keys set aside",
            "roots" => {
                "an operator had the kept roots of segments set aside: they were not those of the \
                 log, or of more segments than it has"
            }
            "damaged" => "an operator had a damaged end of the log set aside",
            _ => "an operator had a file set aside that does not belong to the log",
        };
        let facts = [
            ("what".to_owned(), kind.into()),
            ("file".to_owned(), format!("{FOLDER}/{}", self.name).into()),
            ("sha256".to_owned(), sha256.into()),
            ("size".to_owned(), self.size.into()),
        ];
        Draft { reason: Some(reason.to_owned()), facts: Some(facts.into()), ..Draft::default() }
    }

    /// Renames the file once its record is synced.
    pub(super) fn settle(&self, audit: &Folder) -> Result<(), Error> {
        let folder = Folder::open(audit, FOLDER)?;
        folder
            .rename(&format!("{}{PENDING}", self.name), &folder, &self.name)
            .and_then(|()| folder.sync())
            .map_err(Error::io("name a file in quarantine"))
    }
}
