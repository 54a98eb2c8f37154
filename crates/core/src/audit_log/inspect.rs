//! A start's checks of the log without changes.

use std::sync::Mutex;

use cap_std::fs::Dir;
use portcullis_audit::PublicKey;

use super::{
    AuditLog, Error, Signer, Signing,
    checkpoint_builder::CheckpointBuilder,
    checkpoints,
    disk::{FileLock, Folder},
    inspection::LogInspection,
    last_signed::LastSigned,
    lifetime,
    log::Log,
    signing,
};

impl AuditLog {
    /// Returns the gateways that run with the state directory `state`, by the `boot` of their
    /// records.
    ///
    /// # Errors
    ///
    /// When the log cannot be locked.
    pub fn running(state: &Dir) -> Result<Vec<String>, Error> {
        if state.symlink_metadata(super::log::LOCK).is_err() {
            return Ok(Vec::new());
        }
        let log = Log::attach(state, String::new())?;
        let lock = log.lock();
        // A gateway that begins has a file and no lock yet.
        let _held = FileLock::wait(&lock, super::log::LOCK)?;
        Ok(lifetime::census(&Folder::open(state, "gateways")?, None)?.1)
    }

    /// Checks the log in the state directory `state` as a start does, with checkpoints signed by
    /// `signer`, or the log's own key. `None` if there is no log yet. The caller holds the log's
    /// lock, if there is one.
    ///
    /// # Errors
    ///
    /// The reason why a start would refuse.
    pub fn look(state: &Dir, signer: Option<PublicKey>) -> Result<Option<LogInspection>, Error> {
        let there = |name: &str| state.symlink_metadata(name).is_ok();
        let keys =
            there(signing::PRIVATE).then(|| Folder::open(state, signing::PRIVATE)).transpose()?;
        if !there(super::log::AUDIT) {
            if let (Some(keys), None) = (&keys, &signer) {
                signing::private(keys)?;
            }
            return Ok(None);
        }
        let mut log = Log::attach_to_look(state)?;
        let noted = keys.as_ref().map_or(Ok(LastSigned::Nothing), LastSigned::read)?;
        let found = log.look(&noted)?;
        checkpoints::newest_known(&log.audit, &noted, log.snapshot().segment)?;
        let published = signing::keys_of(&log.audit)?;
        let own = match &keys {
            Some(keys) if signer.is_none() => {
                let next = signing::unfinished(keys, &log.audit);
                next.map_or_else(|| signing::private(keys), |next| Ok(Some(next)))?
                    .map(|private| private.public())
            }
            _ => None,
        };
        match (signer.or(own), published.into_iter().next(), keys) {
            (None, Some(_known), _) => Err(Error::KeyGone),
            (Some(key), Some(known), _) if key != known => Err(Error::OtherKey),
            (Some(key), _, Some(keys)) if found.records.is_some_and(|records| records > 0) => {
                let signing = Signing::by(Box::new(PublicKeyOnly(key)));
                let audit = std::sync::Arc::clone(&log.audit);
                let maker = CheckpointBuilder::unpublished(audit, keys, signing);
                maker.check(&Mutex::new(log)).map(|()| Some(found))
            }
            _ => Ok(Some(found)),
        }
    }
}

/// A public key without signatures.
struct PublicKeyOnly(PublicKey);

impl Signer for PublicKeyOnly {
    fn public(&self) -> &PublicKey {
        &self.0
    }

    fn sign(&self, _text: &str) -> Result<String, String> {
        Err("nothing is signed while the log is only looked at".to_owned())
    }
}
