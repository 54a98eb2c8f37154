//! The transfer of a policy's texts to a process that cannot open its files.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use sha2::{Digest as _, Sha256};

use crate::config::PolicyTexts;

/// Maximum of bytes of a policy's texts in transfer: the maximum of files, of maximum size, as
/// JSON, with their names.
const MAX_TEXTS: u64 = 64 << 20;

/// Returns the texts in a sealed, immutable file.
pub(crate) fn packed(texts: &PolicyTexts) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("policy", flags)?);
    serde_json::to_writer(io::BufWriter::new(&file), texts)?;
    file.flush()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Reads the texts from such a file.
pub(crate) fn read(file: OwnedFd) -> io::Result<PolicyTexts> {
    let mut file = File::from(file);
    file.rewind()?;
    let mut text = Vec::new();
    file.take(MAX_TEXTS).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// A file shared by a broker and the process that it starts, for later policies: attaching a
/// descriptor to a message fails while a process of the same user has too many in flight.
#[derive(Debug)]
pub(crate) struct SharedPolicy(File);

impl SharedPolicy {
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self(memfd_create("policy", MemfdFlags::CLOEXEC)?.into()))
    }

    /// Replaces the content by these texts. Returns the hash to take them by.
    pub(crate) fn put(&self, texts: &PolicyTexts) -> io::Result<[u8; 32]> {
        let text = serde_json::to_vec(texts)?;
        self.0.set_len(0)?;
        self.0.write_all_at(&text, 0)?;
        Ok(Sha256::digest(text).into())
    }

    /// Returns the texts with that hash; `None` if others have replaced them.
    pub(crate) fn take(&self, hash: [u8; 32]) -> io::Result<Option<PolicyTexts>> {
        let length = usize::try_from(self.0.metadata()?.len().min(MAX_TEXTS)).unwrap_or(usize::MAX);
        let mut text = vec![0; length];
        match self.0.read_exact_at(&mut text, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let is_whole = <[u8; 32]>::from(Sha256::digest(&text)) == hash;
        Ok(is_whole.then(|| serde_json::from_slice(&text)).transpose()?)
    }
}

impl AsFd for SharedPolicy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for SharedPolicy {
    fn from(file: OwnedFd) -> Self {
        Self(file.into())
    }
}
