//! The texts of a policy on their way to a process that cannot open its files.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::fd::OwnedFd,
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::config::PolicyTexts;

/// Most bytes that the texts of a policy take on their way here: as many files
/// as it may have, of the largest size, as JSON, and their names.
const LARGEST: u64 = 64 << 20;

/// The texts in a file that nobody can change any more.
pub(crate) fn packed(texts: &PolicyTexts) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("policy", flags)?);
    serde_json::to_writer(io::BufWriter::new(&file), texts)?;
    file.flush()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// The texts in such a file.
pub(crate) fn read(file: OwnedFd) -> io::Result<PolicyTexts> {
    let mut file = File::from(file);
    file.rewind()?;
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
