//! The key for placeholders and for the hashes of findings, in the state directory:
//! `secrets.key`, 32 random bytes, accessible to the owner only.
//!
//! It is created at the first start and never shown. Without it, placeholders that
//! agents got earlier are unknown, and hashes in the log cannot be compared with
//! later ones; nothing else is lost.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};

use super::{
    failure::{Context as _, Failure},
    state_directory,
};
use crate::{
    gateway::{random_bytes, random_hex},
    policy::SecretKey,
    review::open_regular_in,
};

const NAME: &str = "secrets.key";
const FAILED: &str = "cannot open the key for secrets (`secrets.key` in the state directory)";

/// Opens the key, or creates it.
///
/// # Errors
/// When it is no regular file accessible to the owner only, or has a wrong length.
pub(crate) fn open(state: &Dir) -> Result<SecretKey, Failure> {
    match read(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(state).or_fail("cannot make the key for secrets")?;
            // Another gateway may have been faster: the file with the name counts.
            read(state).or_fail(FAILED)
        }
        other => usable(other),
    }
}

/// Looks at the key as [`open`] does, without creating it.
///
/// # Errors
/// As [`open`].
pub(crate) fn look(state: &Dir) -> Result<(), Failure> {
    match read(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => usable(other).map(drop),
    }
}

fn usable(read: io::Result<SecretKey>) -> Result<SecretKey, Failure> {
    read.or_fail(FAILED)
        .map_err(|failure| failure.help("move the file away; the next start makes a new one"))
}

fn read(state: &Dir) -> io::Result<SecretKey> {
    let mut file = open_regular_in(state, NAME)?;
    let look = file.metadata()?;
    if look.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other("it is not its owner's alone (mode 0600)"));
    }
    if look.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("the file belongs to another user"));
    }
    let mut bytes = [0_u8; SecretKey::LENGTH];
    file.read_exact(&mut bytes)?;
    if file.read(&mut [0_u8; 1])? > 0 {
        return Err(io::Error::other("the file is longer than a key"));
    }
    Ok(SecretKey::new(&bytes))
}

/// Creates the key under a temporary name, so that it is never seen incomplete, and
/// links it to its own name unless that exists by then.
fn make(state: &Dir) -> io::Result<()> {
    let key = random_bytes::<{ SecretKey::LENGTH }>()?;
    let temp = format!("{NAME}.{}.tmp", random_hex::<8>()?);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = state.open_with(&temp, &options)?;
    let placed = file.write_all(&key).and_then(|()| file.sync_all()).and_then(|()| {
        match state.hard_link(&temp, state, NAME) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    });
    state.remove_file(&temp)?;
    placed?;
    state_directory::sync(state)
}

#[cfg(test)]
mod tests {
    use cap_std::fs::{MetadataExt as _, Permissions, PermissionsExt as _};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
    fn the_key_is_made_once_for_its_owner_alone_and_nothing_else_is_taken_for_one() {
        let temp = tempfile::tempdir().unwrap();
        let state = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        open(&state).unwrap();
        let made = state.read(NAME).unwrap();
        open(&state).unwrap();
        assert_eq!(state.read(NAME).unwrap(), made);
        assert_eq!(made.len(), 32);
        assert_eq!(state.metadata(NAME).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(state.entries().unwrap().count(), 1);

        state.set_permissions(NAME, Permissions::from_mode(0o644)).unwrap();
        assert!(open(&state).is_err());
        state.remove_file(NAME).unwrap();
        state.write(NAME, "short").unwrap();
        assert!(open(&state).is_err());
        state.remove_file(NAME).unwrap();
        state.symlink("elsewhere", NAME).unwrap();
        assert!(open(&state).is_err());
    }
}
