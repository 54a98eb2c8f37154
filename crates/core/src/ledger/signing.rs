//! Who signs checkpoints: the log's own key in the state directory, or whoever
//! the operator names instead.

use std::{fmt, time::Duration};

use cap_std::fs::Dir;
use portcullis_audit::{KEYS, PrivateKey, PublicKey, parse_keys};
use rustix::{fs::RenameFlags, io::Errno};

use super::{
    Error,
    disk::{self, Folder},
    small_file::{read, write},
};

/// The directory of private keys, outside the log's, which is copied about.
pub(super) const PRIVATE: &str = "keys";
const FILE: &str = "checkpoint.key";
/// Beside it: a new one, until the log's directory names it and it takes its place.
const NEXT: &str = "checkpoint.key.new";

/// Signs checkpoints.
pub trait Signer: Send + Sync {
    /// The key that signatures are checked with; its name is the log's origin.
    fn public(&self) -> &PublicKey;

    /// The signature lines over a note's text.
    ///
    /// # Errors
    ///
    /// Why there are none, in words.
    fn sign(&self, text: &str) -> Result<String, String>;
}

/// A key in this process's memory.
struct Own {
    private: PrivateKey,
    public: PublicKey,
}

impl Signer for Own {
    fn public(&self) -> &PublicKey {
        &self.public
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        Ok(self.private.sign(text))
    }
}

/// Who signs checkpoints, and how often.
pub struct Signing {
    /// Who.
    pub signer: Box<dyn Signer>,
    /// After so many records at the latest.
    pub records: u64,
    /// After this time at the latest, where there is a new record.
    pub interval: Duration,
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.signer.public().to_string();
        f.debug_struct("Signing").field("key", &key).finish_non_exhaustive()
    }
}

impl Signing {
    /// After so many records there is a checkpoint, unless configured
    /// otherwise.
    pub const RECORDS: u64 = 1024;
    /// And after this time.
    pub const INTERVAL: Duration = Duration::from_secs(60);

    /// By `signer`, as often as usual.
    pub fn by(signer: Box<dyn Signer>) -> Self {
        Self { signer, records: Self::RECORDS, interval: Self::INTERVAL }
    }

    /// By the log's own key, which is made when the log has none.
    ///
    /// # Errors
    ///
    /// When it cannot be read or made, or when it is gone from a log that was
    /// signed before.
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
        Ok(Self::by(Box::new(Own { public: private.public(), private })))
    }
}

/// The private key in its directory, if there is one.
pub(super) fn private(keys: &Folder) -> Result<Option<PrivateKey>, Error> {
    private_in(keys, FILE)
}

fn private_in(keys: &Folder, name: &str) -> Result<Option<PrivateKey>, Error> {
    let parse = |text: String| PrivateKey::from_secret(text.trim_end());
    read(keys, name)?.map(parse).transpose().map_err(|_none| Error::KeyDamaged)
}

/// The new private key of a change that was cut short after the log's directory named
/// its public one as the one in use.
///
/// What cannot be read is none: a start says what is wrong with it.
pub(super) fn unfinished(keys: &Folder, audit: &Folder) -> Option<PrivateKey> {
    let next = private_in(keys, NEXT).ok()??;
    (keys_of(audit).ok()?.first() == Some(&next.public())).then_some(next)
}

/// Does the last step of a change of keys that was cut short before it.
pub(super) fn finish_change(keys: &Folder, audit: &Folder) -> Result<(), Error> {
    if unfinished(keys, audit).is_none() {
        return Ok(());
    }
    match keys.rename(NEXT, keys, FILE) {
        // Another gate was first.
        Ok(()) | Err(Errno::NOENT) => {
            keys.sync().map_err(Error::io("sync the log's keys or checkpoints"))
        }
        Err(errno) => Err(Error::io("name a file of the log's keys or checkpoints")(errno)),
    }
}

/// Makes the private key of a change of keys, which [`finish_change`] puts in place.
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
        // Another gate was first; its key is the log's.
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

/// Makes `key` the one in use; former ones stay known.
pub(super) fn publish_in(audit: &Folder, key: &PublicKey) -> Result<(), Error> {
    let mut text = format!("{key}\n");
    for former in keys_of(audit)?.iter().filter(|former| *former != key) {
        text += &format!("{former}\n");
    }
    write(audit, KEYS, text.as_bytes(), RenameFlags::empty())
}
