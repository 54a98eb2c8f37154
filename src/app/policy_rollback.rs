//! Protection against rollback of signed policies: the newest version of each policy
//! in force with a state directory is stored, and an older one, or a different one
//! of the same version, does not load, even with a valid signature.

use std::io::{self, Read as _, Write as _};

use cap_std::fs::Dir;
use portcullis_audit::Hash;
use serde::{Deserialize, Serialize};

use super::{
    failure::{Context as _, Exit, Failure},
    state_directory,
};
use crate::{policy::Policy, review::open_regular_in};

/// The directory of the stored versions.
const FOLDER: &str = "policies";
/// Longest stored entry that is read, in bytes.
const MAX_ENTRY: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Newest {
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
    let newest = Newest { version: policy.version(), sha256: policy.sha256().to_owned() };
    let name = name(policy);
    let fresh = format!("{name}.{}.tmp", std::process::id());
    let mut file = folder.create(&fresh)?;
    file.write_all(&serde_json::to_vec(&newest)?)?;
    file.sync_all()?;
    folder.rename(&fresh, &folder, &name)?;
    state_directory::sync(&folder)
}

fn read(state: &Dir, policy: &Policy) -> io::Result<Option<Newest>> {
    let file = match open_regular_in(state, &format!("{FOLDER}/{}", name(policy))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut text = Vec::new();
    file.take(MAX_ENTRY).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

fn name(policy: &Policy) -> String {
    format!("newest-{:.32}.json", Hash::of(policy.name().as_bytes()))
}
