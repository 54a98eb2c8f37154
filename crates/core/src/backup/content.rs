//! Reads of stored content, with a comparison with its hash.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt as _,
    sync::{Arc, OnceLock},
};

use portcullis_audit::Hash;
use sha2::{Digest as _, Sha256};

use super::{BackupId, Error, object::Objects};

/// The content of a backup, unpacked when it is first needed.
#[derive(Debug)]
pub(super) struct StoredContent {
    pub(super) source: Option<(Arc<Objects>, Hash)>,
    pub(super) file: OnceLock<Arc<File>>,
}

impl StoredContent {
    pub(super) fn open(&self, id: BackupId) -> Result<Arc<File>, Error> {
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        let Some((objects, hash)) = &self.source else { return Err(Error::Damaged(id)) };
        let file = Arc::new(objects.unpack(*hash)?.ok_or(Error::Damaged(id))?);
        Ok(Arc::clone(self.file.get_or_init(|| file)))
    }
}

/// Reads stored content; the read after the last byte fails with [`io::ErrorKind::InvalidData`] if
/// the content differs from what was stored.
#[derive(Debug)]
pub struct BackupContent {
    id: BackupId,
    file: Arc<File>,
    at: u64,
    end: u64,
    hasher: Sha256,
    expected: Hash,
}

impl BackupContent {
    pub(super) fn new(id: BackupId, file: Arc<File>, at: u64, size: u64, expected: Hash) -> Self {
        Self { id, file, at, end: at.saturating_add(size), hasher: Sha256::new(), expected }
    }

    /// Reads the next bytes into `buffer`; 0 after the last byte, if the content is what was
    /// stored.
    ///
    /// # Errors
    /// [`Error::Damaged`], and errors of the system.
    pub fn piece(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.read(buffer).map_err(|error| self.failed(error))
    }

    /// Converts an error of [`Read::read`].
    pub fn failed(&self, error: io::Error) -> Error {
        read_error(self.id, error)
    }

    pub(super) fn drain(mut self) -> Result<(), Error> {
        let mut buffer = vec![0; 128 * 1024];
        while self.piece(&mut buffer)? > 0 {}
        Ok(())
    }
}

impl Read for BackupContent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let Some(buffer) = buffer.get_mut(..length) else { return Ok(0) };
        let count = self.file.read_at(buffer, self.at)?;
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        self.at = self.at.saturating_add(count as u64);
        let cut = count == 0 && left > 0 && length > 0;
        let whole = || Hash::from_bytes(self.hasher.clone().finalize().into()) == self.expected;
        if cut || (count == 0 && left == 0 && !whole()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the backup is damaged"));
        }
        Ok(count)
    }
}

pub(super) fn read_error(id: BackupId, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData => Error::Damaged(id),
        _ => Error::io("read the backup")(error),
    }
}
