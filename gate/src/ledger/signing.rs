//! Who signs checkpoints: the log's own key in the state directory, or whoever
//! the operator names instead.

use std::{fmt, io::Read as _, io::Write as _, time::Duration};

use cap_std::fs::Dir;
use portcullis_audit::{Checkpoint, KEYS, Note, PrivateKey, PublicKey, parse_keys};
use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};

use super::{
    AuditLog, Error,
    disk::{self, Folder},
    keys,
    log::Log,
};

/// The directory of private keys, outside the log's, which is copied about.
pub(super) const PRIVATE: &str = "keys";
const FILE: &str = "checkpoint.key";
/// Beside it: the newest checkpoint that was signed. Who can write to the log's
/// directory alone cannot make it seem that none was, or an older one.
pub(super) const SIGNED: &str = "signed";
impl AuditLog {
    /// Where that is in the state directory.
    pub const LAST_SIGNED: &str = "keys/signed";
}
/// Bytes of a file of keys at most.
const MOST: u64 = 64 * 1024;

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
        let private = match private(&keys)? {
            Some(private) => private,
            None => {
                if !AuditLog::published_keys(state)?.is_empty() {
                    return Err(Error::KeyGone);
                }
                make(&keys, false)?
            }
        };
        Ok(Self::by(Box::new(Own { public: private.public(), private })))
    }
}

/// The private key in its directory, if there is one.
pub(super) fn private(keys: &Folder) -> Result<Option<PrivateKey>, Error> {
    let parse = |text: String| PrivateKey::from_secret(text.trim_end());
    read(keys, FILE)?.map(parse).transpose().map_err(|_none| Error::KeyDamaged)
}

/// Makes a key; `replace`: instead of the one that is there.
fn make(keys: &Folder, replace: bool) -> Result<PrivateKey, Error> {
    let mut seed = [0; 32];
    disk::random_bytes(&mut seed)?;
    let name = disk::random_hex()?;
    let name = format!("portcullis/{}", name.get(..16).unwrap_or(&name));
    let private = PrivateKey::from_seed(&name, seed)?;
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match write(keys, FILE, format!("{}\n", private.to_secret()).as_bytes(), flags) {
        // Another gate was first; its key is the log's.
        Err(Error::Io { errno: Errno::EXIST, .. }) => {
            let text = read(keys, FILE)?.ok_or(Error::KeyGone)?;
            Ok(PrivateKey::from_secret(text.trim_end())?)
        }
        other => other.map(|()| private),
    }
}

impl AuditLog {
    /// The public keys that the log's directory names: the one in use first.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or holds something else.
    pub fn published_keys(state: &Dir) -> Result<Vec<PublicKey>, Error> {
        keys_of(&Folder::open(state, "audit")?)
    }

    /// Gives the log in the state directory a new key from now on: that of `signer`, or
    /// one of its own.
    ///
    /// # Errors
    ///
    /// When the log's directory lacks a key that signed the log, which nothing could put
    /// back any more, and when the key cannot be made or written. The log is as it was.
    pub fn renew_key(state: &Dir, signer: Option<PublicKey>) -> Result<PublicKey, Error> {
        let log = Log::attach(state, String::new())?;
        match keys::lost(&log) {
            Ok(lost) if lost.is_empty() => {}
            // Of a log that nothing ties to a key.
            Err(Error::PublicKeyGone) if keys_of(&log.audit).is_ok() => {}
            Ok(_) | Err(Error::PublicKeyGone) => return Err(Error::KeysIncomplete),
            Err(error) => return Err(error),
        }
        let key = match signer {
            Some(key) => key,
            None => make(&log.keys()?, true)?.public(),
        };
        publish_in(&log.audit, &key)?;
        Ok(key)
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

/// What is noted beside the key of the newest checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Noted {
    /// None was ever signed.
    Nothing,
    /// One was, but which the file does not say: power was lost.
    Unclear,
    /// This one.
    Head(Checkpoint),
}

impl Noted {
    /// Reads it. The place is as safe as the key's, so no signature is checked.
    pub(super) fn read(keys: &Folder) -> Result<Self, Error> {
        let Some(text) = read(keys, SIGNED)? else { return Ok(Self::Nothing) };
        let checkpoint = Note::parse(text.as_bytes()).and_then(|note| Checkpoint::of(&note));
        Ok(checkpoint.map_or(Self::Unclear, Self::Head))
    }

    /// Notes that this was signed. Only the first time it must not be lost: the
    /// log's own directory has a copy on stable storage.
    pub(super) fn write(keys: &Folder, note: &str) -> Result<(), Error> {
        let first = Self::read(keys)? == Self::Nothing;
        put(keys, SIGNED, note.as_bytes(), RenameFlags::empty(), first)
    }

    /// The checkpoint, where it is known.
    pub(super) fn head(&self) -> Option<&Checkpoint> {
        match self {
            Self::Head(checkpoint) => Some(checkpoint),
            Self::Nothing | Self::Unclear => None,
        }
    }
}

/// A small file's text, with marks in it where it is none; `None` when there is
/// no file.
pub(super) fn read(folder: &Folder, name: &str) -> Result<Option<String>, Error> {
    let file = match folder.file(name, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => {
            let action = "open a file of the log's keys or checkpoints";
            return Err(Error::opening(action, name)(errno));
        }
    };
    let mut bytes = Vec::new();
    file.take(MOST)
        .read_to_end(&mut bytes)
        .map_err(Error::std("read a file of the log's keys or checkpoints"))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes a small file as a whole: after a crash it is the old or the new one.
pub(super) fn write(
    folder: &Folder,
    name: &str,
    bytes: &[u8],
    flags: RenameFlags,
) -> Result<(), Error> {
    put(folder, name, bytes, flags, true)
}

/// The same; without `durable` a power loss may leave anything.
pub(super) fn put(
    folder: &Folder,
    name: &str,
    bytes: &[u8],
    flags: RenameFlags,
    durable: bool,
) -> Result<(), Error> {
    let temp = format!(".{name}.{}", disk::random_hex()?);
    let put = || {
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = folder
            .file(&temp, create)
            .map_err(Error::io("make a file of the log's keys or checkpoints"))?;
        file.write_all(bytes).map_err(Error::std("write the log's keys or checkpoints"))?;
        if durable {
            file.sync_all().map_err(Error::std("sync the log's keys or checkpoints"))?;
        }
        rustix::fs::renameat_with(folder, &temp, folder, name, flags)
            .map_err(Error::io("name a file of the log's keys or checkpoints"))
    };
    put().inspect_err(|_error| {
        // What is left of it has no meaning.
        let _removed = folder.remove(&temp);
    })
}
