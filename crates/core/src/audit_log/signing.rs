//! Signers of checkpoints: the log's own key in the state directory, or one that the operator
//! configures.

use std::{fmt, time::Duration};

use cap_std::fs::Dir;
use portcullis_audit::{KEYS, PrivateKey, PublicKey, parse_keys};
use rustix::{fs::RenameFlags, io::Errno};

use super::{
    Error,
    disk::{self, Folder},
    small_file::{read, write},
};

/// The directory of private keys, outside the log's, which is copied to other places.
pub(super) const PRIVATE: &str = "keys";
const FILE: &str = "checkpoint.key";
/// The new key beside it, until the log's directory names it and it is renamed.
const NEXT: &str = "checkpoint.key.new";

/// Signs checkpoints.
pub trait Signer: Send + Sync {
    /// Returns the key that verifies the signatures; its name is the log's origin.
    fn public(&self) -> &PublicKey;

    /// Returns the signature lines over a note's text.
    ///
    /// # Errors
    ///
    /// The reason why there are none, in words.
    fn sign(&self, text: &str) -> Result<String, String>;
}

/// A key in this process's memory.
struct LocalKey {
    private: PrivateKey,
    public: PublicKey,
}

impl Signer for LocalKey {
    fn public(&self) -> &PublicKey {
        &self.public
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        Ok(self.private.sign(text))
    }
}

/// The signer of checkpoints, and their interval.
pub struct Signing {
    /// The signer.
    pub signer: Box<dyn Signer>,
    /// Records after which a checkpoint is due.
    pub records: u64,
    /// Time after which a checkpoint is due, if there is a new record.
    pub interval: Duration,
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.signer.public().to_string();
        f.debug_struct("Signing").field("key", &key).finish_non_exhaustive()
    }
}

impl Signing {
    /// Default of `records`.
    pub const DEFAULT_RECORDS: u64 = 1024;
    /// Default of `interval`.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

    /// Signs by `signer`, at the default interval.
    pub fn by(signer: Box<dyn Signer>) -> Self {
        Self { signer, records: Self::DEFAULT_RECORDS, interval: Self::DEFAULT_INTERVAL }
    }

    /// Signs by the log's own key, which is made if the log has none.
    ///
    /// # Errors
    ///
    /// When the key cannot be read or made, or is missing from a log that was signed before.
    pub fn own(state: &Dir) -> Result<Self, Error> {
        let keys = Folder::open(state, PRIVATE)?;
        let audit = Folder::open(state, "audit")?;
        finish_change(&keys, &audit)?;
        let private = match private(&keys)? {
            Some(private) => private,
            None => {
                if !keys_of(&audit)?.is_empty() {
                    return Err(Error::KeyGone);
                }
                make(&keys, FILE, RenameFlags::NOREPLACE)?
            }
        };
        Ok(Self::by(Box::new(LocalKey { public: private.public(), private })))
    }
}

/// Returns the private key in its directory, if there is one.
pub(super) fn private(keys: &Folder) -> Result<Option<PrivateKey>, Error> {
    private_in(keys, FILE)
}

fn private_in(keys: &Folder, name: &str) -> Result<Option<PrivateKey>, Error> {
    let parse = |text: String| PrivateKey::from_secret(text.trim_end());
    read(keys, name)?.map(parse).transpose().map_err(|_none| Error::KeyDamaged)
}

/// Returns the new private key of a change of keys that was interrupted after the log's directory
/// named its public key as the one in use.
///
/// An unreadable key counts as none: a start reports the damage.
pub(super) fn unfinished(keys: &Folder, audit: &Folder) -> Option<PrivateKey> {
    let next = private_in(keys, NEXT).ok()??;
    (keys_of(audit).ok()?.first() == Some(&next.public())).then_some(next)
}

/// Completes an interrupted change of keys.
pub(super) fn finish_change(keys: &Folder, audit: &Folder) -> Result<(), Error> {
    if unfinished(keys, audit).is_none() {
        return Ok(());
    }
    match keys.rename(NEXT, keys, FILE) {
        // Another gateway did it before.
        Ok(()) | Err(Errno::NOENT) => {
            keys.sync().map_err(Error::io("sync the log's keys or checkpoints"))
        }
        Err(errno) => Err(Error::io("name a file of the log's keys or checkpoints")(errno)),
    }
}

/// Makes the private key of a change of keys, which [`finish_change`] renames.
pub(super) fn make_next(keys: &Folder) -> Result<PrivateKey, Error> {
    make(keys, NEXT, RenameFlags::empty())
}

/// Makes a key in the file `name`.
fn make(keys: &Folder, name: &str, flags: RenameFlags) -> Result<PrivateKey, Error> {
    let seed = disk::random()?;
    let origin = disk::random_id()?;
    let origin = format!("portcullis/{}", origin.get(..16).unwrap_or(&origin));
    let private = PrivateKey::from_seed(&origin, seed)?;
    match write(keys, name, format!("{}\n", private.to_secret()).as_bytes(), flags) {
        // Another gateway made one before, which is the log's key.
        Err(Error::Io { errno: Errno::EXIST, .. }) => {
            let text = read(keys, name)?.ok_or(Error::KeyGone)?;
            Ok(PrivateKey::from_secret(text.trim_end())?)
        }
        other => other.map(|()| private),
    }
}

pub(super) fn keys_of(audit: &Folder) -> Result<Vec<PublicKey>, Error> {
    match read(audit, KEYS)? {
        Some(text) => Ok(parse_keys(&text)?),
        None => Ok(Vec::new()),
    }
}

/// Makes `key` the one in use; former ones stay in the file.
pub(super) fn publish_in(audit: &Folder, key: &PublicKey) -> Result<(), Error> {
    let mut text = format!("{key}\n");
    for former in keys_of(audit)?.iter().filter(|former| *former != key) {
        text += &format!("{former}\n");
    }
    write(audit, KEYS, text.as_bytes(), RenameFlags::empty())
}
