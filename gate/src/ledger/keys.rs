//! The public keys of a log that lost them, or some of them: found again where its
//! checkpoints bear them out.

use portcullis_audit::{KEY_FACT, KEYS, Kind, NEWEST, PublicKey, Reader, RecordView};
use rustix::fs::RenameFlags;

use super::{Error, checkpoints, disk::Folder, log::Log, quarantine, signing};

/// The keys that belong in `key.vkey`, the one in use first, where that is gone,
/// holds none or lacks one; nothing where it is as it should be, or nothing was
/// signed and no record names a key.
pub(super) fn lost(log: &Log) -> Result<Vec<PublicKey>, Error> {
    let audit = &*log.audit;
    let (known, is_damaged) = match signing::keys_of(audit) {
        Ok(known) => (known, false),
        Err(Error::Note(_) | Error::Irregular(..)) => (Vec::new(), true),
        Err(error) => return Err(error),
    };
    let mut notes = Vec::new();
    for name in [NEWEST.to_owned()].into_iter().chain(checkpoints::files(audit)?) {
        match signing::read(audit, &name) {
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
    // Where the log's directory has none that is left whole.
    notes.extend(signing::read(&log.keys()?, signing::SIGNED)?);
    let signed =
        |keys: &[PublicKey]| notes.iter().any(|note| checkpoints::opened(note, keys).is_ok());
    // Where records name every key that is there, one that they name besides, and
    // that signed a checkpoint, was there, too. So was any that they name where the
    // file begins with the key of the private one: the log had it before that.
    let lacks =
        |key: &PublicKey| !known.contains(key) && (is_own || signed(std::slice::from_ref(key)));
    let all_named = is_own || known.iter().all(|key| named.contains(key));
    let is_part = all_named && named.iter().any(lacks);
    if !known.is_empty() && !is_part {
        return Ok(Vec::new());
    }
    // A key that somebody put there since is none of the log's yet.
    let own = own.filter(|own| is_own || named.contains(own) || signed(std::slice::from_ref(own)));
    let mut keys: Vec<PublicKey> = own.into_iter().collect();
    for key in named.into_iter().rev().chain(known) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    if keys.is_empty() || (!notes.is_empty() && !signed(&keys)) {
        return Err(Error::PublicKeyGone);
    }
    Ok(keys)
}

/// The keys that records name, oldest first, as far as they can be read.
fn named(audit: &Folder) -> Vec<PublicKey> {
    let mut keys = Vec::new();
    let mut reader = Reader::new(audit, 0);
    while let Ok(Some(entry)) = reader.next() {
        if !RecordView::parse(&entry.bytes).is_ok_and(|record| record.kind == Kind::Start) {
            continue;
        }
        let facts = entry.record().ok().and_then(|record| record.draft.facts);
        let key = facts.as_ref().and_then(|facts| facts.get(KEY_FACT)?.as_str()?.parse().ok());
        // The last one to name a key is what counts.
        if let Some(key) = key {
            keys.retain(|known| *known != key);
            keys.push(key);
        }
    }
    keys
}

/// Puts `keys` into `key.vkey`; what stood there is set aside.
pub(super) fn put_back(audit: &Folder, keys: &[PublicKey]) -> Result<(), Error> {
    quarantine::take(audit, "key", KEYS)?;
    let text: String = keys.iter().map(|key| format!("{key}\n")).collect();
    signing::write(audit, KEYS, text.as_bytes(), RenameFlags::empty())
}
