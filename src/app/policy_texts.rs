//! The texts of former and current policies, in the state directory.

use std::io::{self, Write as _};

use cap_std::fs::Dir;

use super::state_directory;
use crate::policy::Policy;

/// The directory of the texts, in the state directory.
const POLICIES: &str = "policies";
/// The suffix of an incomplete text.
const UNFINISHED: &str = ".tmp";

/// Stores the text of the policy in force, so that a reviewer can look up the hash
/// in records. `unique` makes the temporary name unique.
pub(crate) fn keep_policy(state: &Dir, policy: &Policy, unique: &str) -> io::Result<()> {
    state.create_dir_all(POLICIES)?;
    let folder = state.open_dir(POLICIES)?;
    for entry in folder.entries()? {
        let name = entry?.file_name();
        // Left by a dead gateway; a live one creates another.
        if name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes()) {
            ignore_missing(folder.remove_file(&name))?;
        }
    }
    let name = format!("{}.toml", policy.sha256());
    while !folder.exists(&name) {
        let temp = format!("{name}.{unique}{UNFINISHED}");
        let kept = write_synced(&folder, &temp, policy.bundle())
            .and_then(|()| ignore_missing(folder.rename(&temp, &folder, &name)));
        if kept.is_err() {
            ignore_missing(folder.remove_file(&temp))?;
        }
        kept?;
        state_directory::sync(&folder)?;
    }
    Ok(())
}

fn write_synced(folder: &Dir, name: &str, text: &str) -> io::Result<()> {
    let mut file = folder.create(name)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
