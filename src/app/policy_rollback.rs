//! Protection against rollback of signed policies: the newest version of each policy
//! in force with a state directory is stored, and an older one, or a different one
//! of the same version, does not load, even with a valid signature.

use std::io;

use cap_std::fs::Dir;
use portcullis_audit::Hash;
use rustix::fs::RenameFlags;
use serde::{Deserialize, Serialize};

use super::{
    failure::{Context as _, Exit, Failure},
    state_directory,
};
use crate::policy::Policy;

/// The directory of the stored versions.
const FOLDER: &str = "policies";
/// Longest stored entry that is read, in bytes.
const MAX_ENTRY: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct NewestPolicy {
    version: u64,
    sha256: String,
}

/// Checks that a signed policy is not older than one that was in force.
///
/// # Errors
/// When it is, or when that cannot be determined.
pub(crate) fn check(state: &Dir, policy: &Policy) -> Result<(), Failure> {
    let Some(newest) = read(state, policy).or_fail("cannot read which policies were in force")?
    else {
        return Ok(());
    };
    let new = (policy.version(), policy.sha256());
    if new.0 > newest.version || new == (newest.version, newest.sha256.as_str()) {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "the signed policy `{}` has version {}, and version {} (sha256 {}) was in force here",
        policy.name(),
        policy.version(),
        newest.version,
        newest.sha256
    ))
    .help("sign it with a greater `version`")
    .exit(Exit::Policy))
}

/// Stores that a signed policy is in force.
///
/// # Errors
/// The error of the system.
pub(crate) fn note(state: &Dir, policy: &Policy) -> io::Result<()> {
    if read(state, policy)?.is_some_and(|newest| newest.version >= policy.version()) {
        return Ok(());
    }
    state.create_dir_all(FOLDER)?;
    let folder = state.open_dir(FOLDER)?;
    let newest = NewestPolicy { version: policy.version(), sha256: policy.sha256().to_owned() };
    let newest = serde_json::to_vec(&newest)?;
    state_directory::write(&folder, &name(policy), &newest, RenameFlags::empty())
}

fn read(state: &Dir, policy: &Policy) -> io::Result<Option<NewestPolicy>> {
    let path = format!("{FOLDER}/{}", name(policy));
    let text = state_directory::read(state, &path, MAX_ENTRY)?;
    Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
}

fn name(policy: &Policy) -> String {
    format!("newest-{:.32}.json", Hash::of(policy.name().as_bytes()))
}
