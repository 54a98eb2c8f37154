//! The public keys of a log, and recovery of lost ones that its checkpoints confirm.

use cap_std::fs::Dir;
use portcullis_audit::{KEY_FACT, KEYS, Kind, NEWEST, PublicKey, Reader, RecordView};
use rustix::fs::RenameFlags;

use super::{
    AuditLog, Error, checkpoints, disk::Folder, last_signed::SIGNED, log::Log, quarantine, signing,
    small_file,
};

impl AuditLog {
    /// The file in the state directory with the newest checkpoint that was signed.
    pub const LAST_SIGNED: &str = "keys/signed";

    /// Returns the public keys in the log's directory, the one in use first.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is invalid.
    pub fn published_keys(state: &Dir) -> Result<Vec<PublicKey>, Error> {
        signing::keys_of(&Folder::open(state, "audit")?)
    }

    /// Gives the log in the state directory a new key from now on: that of `signer`, or one of its
    /// own.
    ///
    /// # Errors
    ///
    /// When the log's directory lacks a key that signed the log, which could not be recovered any
    /// more, and when the key cannot be made or written. The log is unchanged then.
    pub fn renew_key(state: &Dir, signer: Option<PublicKey>) -> Result<PublicKey, Error> {
        let log = Log::attach(state, String::new())?;
        let keys = log.keys()?;
        signing::finish_change(&keys, &log.audit)?;
        match lost(&log) {
            Ok(lost) if lost.is_empty() => {}
            // Such a log is not tied to a key.
            Err(Error::PublicKeyGone) if signing::keys_of(&log.audit).is_ok() => {}
            Ok(_) | Err(Error::PublicKeyGone) => return Err(Error::KeysIncomplete),
            Err(error) => return Err(error),
        }
        let key = match &signer {
            Some(key) => key.clone(),
            None => signing::make_next(&keys)?.public(),
        };
        // From here on the new key is the log's, even if the rest fails.
        signing::publish_in(&log.audit, &key)?;
        if signer.is_none() {
            signing::finish_change(&keys, &log.audit)?;
        }
        Ok(key)
    }
}

/// Returns the keys that belong in `key.vkey`, the one in use first, if the file is missing,
/// invalid or incomplete; empty if it is in order, or nothing was signed and no record names a key.
pub(super) fn lost(log: &Log) -> Result<Vec<PublicKey>, Error> {
    let audit = &*log.audit;
    let (known, is_damaged) = match signing::keys_of(audit) {
        Ok(known) => (known, false),
        Err(Error::Note(_) | Error::Irregular(..)) => (Vec::new(), true),
        Err(error) => return Err(error),
    };
    let mut notes = Vec::new();
    for name in [NEWEST.to_owned()].into_iter().chain(checkpoints::files(audit)?) {
        match small_file::read(audit, &name) {
            Err(Error::Irregular(..)) => {}
            note => notes.extend(note?),
        }
    }
    let own = match signing::private(&log.keys()?) {
        Err(Error::KeyDamaged) => None,
        own => own?.map(|private| private.public()),
    };
    let is_own = own.is_some() && own.as_ref() == known.first();
    if notes.is_empty() && !known.is_empty() && !is_own {
        return Ok(Vec::new());
    }
    let named = named(audit);
    if notes.is_empty() && !is_damaged && named.is_empty() {
        return Ok(Vec::new());
    }
    // Covers a log's directory without an intact checkpoint.
    notes.extend(small_file::read(&log.keys()?, SIGNED)?);
    let signed =
        |keys: &[PublicKey]| notes.iter().any(|note| checkpoints::opened(note, keys).is_ok());
    // If records name every key in the file, a further key that they name and that signed a
    // checkpoint was in the file too. So was any that they name if the file begins with the public
    // key of the private one: the log had it before that. If the private key is one that they name
    // and that signed a checkpoint, the file is another log's.
    let lacks =
        |key: &PublicKey| !known.contains(key) && (is_own || signed(std::slice::from_ref(key)));
    let is_foreign = own.as_ref().is_some_and(|own| lacks(own) && named.contains(own));
    let all_named = is_own || is_foreign || known.iter().all(|key| named.contains(key));
    let is_part = all_named && named.iter().any(lacks);
    if !known.is_empty() && !is_part {
        return Ok(Vec::new());
    }
    // A private key that was replaced since is not the log's yet.
    let own = own.filter(|own| is_own || named.contains(own) || signed(std::slice::from_ref(own)));
    let mut keys: Vec<PublicKey> = own.into_iter().collect();
    for key in named.iter().rev().chain(&known) {
        // Of another log's file, nothing stays.
        if !keys.contains(key) && (!is_foreign || named.contains(key)) {
            keys.push(key.clone());
        }
    }
    if keys.is_empty() || (!notes.is_empty() && !signed(&keys)) {
        return Err(Error::PublicKeyGone);
    }
    Ok(keys)
}

/// Returns the keys that records name, oldest first, up to the first unreadable record.
fn named(audit: &Folder) -> Vec<PublicKey> {
    let mut keys = Vec::new();
    let mut reader = Reader::new(audit, 0);
    while let Ok(Some(entry)) = reader.next() {
        if !RecordView::parse(&entry.bytes).is_ok_and(|record| record.kind == Kind::Start) {
            continue;
        }
        let facts = entry.record().ok().and_then(|record| record.draft.facts);
        let key = facts.as_ref().and_then(|facts| facts.get(KEY_FACT)?.as_str()?.parse().ok());
        // The last record that names a key counts.
        if let Some(key) = key {
            keys.retain(|known| *known != key);
            keys.push(key);
        }
    }
    keys
}

/// Writes `keys` to `key.vkey`; sets the previous file aside.
pub(super) fn put_back(audit: &Folder, keys: &[PublicKey]) -> Result<(), Error> {
    quarantine::take(audit, "key", KEYS)?;
    let text: String = keys.iter().map(|key| format!("{key}\n")).collect();
    small_file::write(audit, KEYS, text.as_bytes(), RenameFlags::empty())
}
