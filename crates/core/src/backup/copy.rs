//! Copies of content into a backup and hashes of it, in bounded memory.
//!
//! The content is always a reflink or a copy of the bytes: a hard link, or the inode itself, could
//! still be changed through another process's descriptor.

use std::{
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
};

use portcullis_audit::Hash;
use rustix::{
    fs::{Advice, FileType, Stat, fadvise, fstat, fstatvfs, ioctl_ficlone},
    io::{Errno, pread},
};
use sha2::{Digest, Sha256};

use super::Error;

const BUFFER: u64 = 128 * 1024;
/// Space that backups leave free on the state directory's file system: this part of it, at most
/// this many bytes.
const FREE_RESERVE_DIVISOR: u64 = 20;
const MAX_FREE_RESERVE: u64 = 64 << 20;

/// Computes the SHA-256 of an open file's content, read in pieces from its start; the descriptor's
/// position stays. A file of more than `most` bytes is not read, because a sparse file takes no
/// space, however long it is.
///
/// # Errors
/// [`Error::NotRegular`]; [`Error::Large`]; [`Error::Changed`] when the file grows meanwhile (it
/// could grow for ever); errors of the system.
pub(crate) fn content_hash(file: BorrowedFd<'_>, most: u64) -> Result<Hash, Error> {
    let size = size_of(&regular(file)?);
    if size > most {
        return Err(Error::Large);
    }
    let mut hasher = Sha256::new();
    stream(file, &mut buffer_for(size), |piece, offset| {
        hasher.update(piece);
        if offset + piece.len() as u64 > size { Err(Error::Changed) } else { Ok(()) }
    })?;
    Ok(Hash::from_bytes(hasher.finalize().into()))
}

/// True if an open file has exactly `content`.
///
/// # Errors
/// As [`content_hash`], except for a file of another size.
pub(crate) fn holds(file: BorrowedFd<'_>, content: &[u8]) -> Result<bool, Error> {
    let size = content.len() as u64;
    Ok(size_of(&regular(file)?) == size && content_hash(file, size)? == Hash::of(content))
}

/// Returns the attributes of a regular file; refuses other kinds.
pub(super) fn regular(file: BorrowedFd<'_>) -> Result<Stat, Error> {
    let stat = fstat(file).map_err(Error::os("look at the file"))?;
    if FileType::from_raw_mode(stat.st_mode).is_file() { Ok(stat) } else { Err(Error::NotRegular) }
}

pub(super) fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// The output of a backup's bytes: a new file, written from its start.
pub(super) struct Sink<'a> {
    file: &'a File,
    at: u64,
    limit: u64,
    buffer: Vec<u8>,
}

impl<'a> Sink<'a> {
    /// Makes a sink for at most `limit` bytes.
    pub(super) fn new(file: &'a File, limit: u64) -> Self {
        Self { file, at: 0, limit, buffer: Vec::new() }
    }

    /// Returns the number of written bytes.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Writes bytes from memory.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.make_sure_of(bytes.len() as u64)?;
        let end = self.at + bytes.len() as u64;
        self.file.write_all_at(bytes, self.at).map_err(Error::io("write the backup"))?;
        self.at = end;
        Ok(())
    }

    /// Checks that `bytes` more fit: into the backup store, and on the file system without the
    /// space that the log needs. Agents determine the size of backups, and a log that cannot be
    /// written ends the gateway.
    fn make_sure_of(&self, bytes: u64) -> Result<(), Error> {
        if self.at.saturating_add(bytes) > self.limit {
            return Err(Error::Full { limit: self.limit });
        }
        let found = fstatvfs(self.file).map_err(Error::os("look at the state directory"))?;
        let of = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let reserve = (of(found.f_blocks) / FREE_RESERVE_DIVISOR).min(MAX_FREE_RESERVE);
        if of(found.f_bavail) < bytes.saturating_add(reserve) {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Copies the whole of `file` as the sink's first content, as it is now or while it changes:
    /// the returned hash and length are those of the stored bytes.
    pub(super) fn take(&mut self, file: BorrowedFd<'_>) -> Result<(Hash, u64), Error> {
        let size = size_of(&regular(file)?);
        if size > self.limit {
            return Err(Error::Full { limit: self.limit });
        }
        // Most file systems cannot clone, and it fails for special files too; the copy below
        // reports the real error, if there is one.
        if size > 0 && ioctl_ficlone(self.file, file).is_ok() {
            return self.hash_clone();
        }
        self.copy(file, u64::MAX)
    }

    /// Adds the content of `file`, of at most `bound` bytes.
    pub(super) fn copy(&mut self, file: BorrowedFd<'_>, bound: u64) -> Result<(Hash, u64), Error> {
        let size = size_of(&regular(file)?);
        // Fails before most of it is written.
        if size > BUFFER {
            self.make_sure_of(size)?;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.is_empty() {
            buffer = buffer_for(size);
        }
        let mut hasher = Sha256::new();
        let copied = stream(file, &mut buffer, |piece, offset| {
            if offset + piece.len() as u64 > bound {
                return Err(Error::Changed);
            }
            // The hashed buffer is the one that is stored.
            hasher.update(piece);
            self.write(piece)
        });
        self.buffer = buffer;
        Ok((Hash::from_bytes(hasher.finalize().into()), copied?))
    }

    /// Makes the buffer as large as possible, for many files.
    pub(super) fn reuse_buffer(&mut self) {
        self.buffer = buffer_for(BUFFER);
    }

    fn hash_clone(&mut self) -> Result<(Hash, u64), Error> {
        let stat = fstat(self.file).map_err(Error::os("look at the backup"))?;
        self.at = size_of(&stat);
        if self.at > self.limit {
            return Err(Error::Full { limit: self.limit });
        }
        Ok((content_hash(self.file.as_fd(), self.limit)?, self.at))
    }
}

fn buffer_for(size: u64) -> Vec<u8> {
    // With one byte more, the end is found in as few reads as possible.
    let size = size.saturating_add(1).clamp(4096, BUFFER);
    vec![0; usize::try_from(size).unwrap_or(4096)]
}

/// Reads `file` from its start to its end and returns its length.
fn stream(
    file: BorrowedFd<'_>,
    buffer: &mut [u8],
    mut each: impl FnMut(&[u8], u64) -> Result<(), Error>,
) -> Result<u64, Error> {
    let mut offset = 0;
    loop {
        let count = match pread(file, &mut *buffer, offset) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Error::os("read the file")(errno)),
        };
        let piece = buffer.get(..count).unwrap_or_default();
        if piece.is_empty() {
            return Ok(offset);
        }
        each(piece, offset)?;
        offset += piece.len() as u64;
    }
}

/// Starts to write the new data of a file to the disk without waiting, so that a later sync, of
/// this file or another one, has less to do. Linux does so when told that the file is not needed
/// (`posix_fadvise(2)`); elsewhere, and where it fails, the sync does it all.
pub(crate) fn start_writing(file: impl AsFd) {
    let _hint = fadvise(file, 0, None, Advice::DontNeed);
}
