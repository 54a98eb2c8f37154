//! Seals of prepared operations, which only their records open.

use std::collections::BTreeMap;

use portcullis_audit::{Hash, Kind, Receipt};

use super::{Error, SomeAttributes};
use crate::{
    audit_log::{Grant, Seal},
    backup::{BackupId, Origin, Saved},
    model::WorkspacePath,
    policy::Labelled,
    workspace::{EntryIdentity, Permit, TempName, Version, Walked},
};

/// Content to disclose or a change to commit. Only the [`Grant`] that the log makes for its seal,
/// once the record is safe, opens it.
#[must_use]
pub(crate) struct Sealed<T> {
    inner: T,
    facts: Facts,
    labels: Labelled,
}

/// Content that may be disclosed as soon as its record is written.
#[must_use]
pub(crate) struct Disclosable<T> {
    inner: T,
    seal: Seal,
}

/// A change to commit. Only the [`Grant`] for its seal opens it.
#[must_use]
pub(crate) struct SealedChange<'a> {
    inner: Box<dyn Change + 'a>,
    facts: Facts,
    seal: Seal,
}

/// Facts of a sealed operation for its record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Bytes disclosed or stored.
    pub bytes: Option<u64>,
    /// Hash of the complete content before.
    pub before: Option<Hash>,
    /// Hash of what a reader gets in its place, where secrets are redacted.
    pub shown: Option<Hash>,
    /// Hash of the content after.
    pub after: Option<Hash>,
    /// Hash of everything that a rename moves, if a person is asked about it.
    pub moved: Option<Hash>,
    /// The backup from which secrets were put back.
    pub secrets_from: Option<BackupId>,
    /// The temporary name of the change, beside the object.
    pub temp: Option<TempName>,
    /// The new canonical path of a rename.
    pub to: Option<WorkspacePath>,
    /// The entry that gets another name or attributes, as it is afterwards.
    pub entry: Option<EntryIdentity>,
    /// The entry that gets the old path in an exchange.
    pub other_entry: Option<EntryIdentity>,
    /// True if the entry at the new path gets the old one.
    pub exchange: bool,
    /// Attributes that are set.
    pub attributes: Option<SomeAttributes>,
    /// Values of these attributes before.
    pub attributes_before: Option<SomeAttributes>,
    /// The target of a link that is made.
    pub target: Option<String>,
    /// True if content comes from or goes to the editor.
    pub editor: bool,
    /// Named numbers for the record.
    pub counts: BTreeMap<String, u64>,
}

impl Facts {
    /// Adds a named number unless it is zero.
    pub(crate) fn count(&mut self, name: &str, number: u64) {
        if number > 0 {
            self.counts.insert(name.to_owned(), number);
        }
    }
}

impl<T> Sealed<T> {
    /// Seals content with these labels.
    pub(super) fn content(inner: T, facts: Facts, labels: Labelled) -> Self {
        Self { inner, facts, labels }
    }

    /// Names and facts about them: no content, so no label.
    pub(super) fn names(inner: T, facts: Facts) -> Self {
        Self { inner, facts, labels: Labelled::default() }
    }

    /// Returns the facts for the record.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Has `carry` take the labels of what is to be disclosed.
    ///
    /// # Errors
    /// As `carry` says: nothing is disclosed.
    pub(crate) fn carried<E>(
        self,
        carry: impl FnOnce(&Labelled) -> Result<(), E>,
    ) -> Result<Disclosable<T>, E> {
        carry(&self.labels)?;
        Ok(Disclosable { inner: self.inner, seal: Seal::new() })
    }
}

impl<T> Disclosable<T> {
    /// Returns the seal that a grant must be for.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Opens the content to disclose.
    ///
    /// # Errors
    /// [`Error::Ungranted`] for the grant of another record.
    pub(crate) fn disclose(self, grant: Grant) -> (Receipt, Result<T, Error>) {
        let (receipt, is_granted) = grant.redeem(Kind::Decision, &self.seal);
        (receipt, if is_granted { Ok(self.inner) } else { Err(Error::Ungranted) })
    }
}

/// A change that is ready to be made.
pub(crate) trait Change {
    /// Returns the permit of the object that changes.
    fn permit(&self) -> &Permit;

    /// Returns the permit under whose path the backup is stored: the object's, except for a rename,
    /// which replaces the entry with the new name.
    fn backup_permit(&self) -> &Permit {
        self.permit()
    }

    /// Returns what it will replace or remove, to be backed up first.
    fn origins(&self) -> Vec<Origin<'_>>;

    /// Returns the complete new content of a file, if that is the change.
    fn content(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the entries that move with a directory.
    fn tree(&self) -> &[Walked] {
        &[]
    }

    /// True if the backups have the content from which the change was computed, or it was computed
    /// from none.
    fn is_based_on(&self, _saved: &[Saved]) -> bool {
        true
    }

    /// Makes what nobody can see before the change: a file without a name. A part that cannot be
    /// made now is made, or fails, with the change.
    fn stage(&mut self) {}

    /// Makes the change durably, and verifies that exactly what was backed up was replaced.
    ///
    /// # Errors
    /// [`Error::Conflict`] and others; the old state is intact then, unless the disk did not let
    /// the change be undone either ([`super::is_undone`]).
    fn commit(
        self: Box<Self>,
        temp: Option<&TempName>,
        saved: &[Saved],
    ) -> Result<Committed, Error>;
}

/// The result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The change is on the disk; with the file's version if it got new content.
    Stored(Option<Version>),
    /// The editor has the change in its buffer; the disk does not show it yet.
    Buffered,
    /// There was nothing to change.
    Unchanged,
}

impl Committed {
    /// Returns the word in records and in replies for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored(_) => "ok",
            Self::Buffered => "buffered",
            Self::Unchanged => "unchanged",
        }
    }
}

impl<'a> SealedChange<'a> {
    pub(super) fn new(inner: Box<dyn Change + 'a>, facts: Facts) -> Self {
        Self { inner, facts, seal: Seal::new() }
    }

    /// Adds the backup from which secrets were put back.
    pub(super) fn with_secrets_from(mut self, backup: Option<BackupId>) -> Self {
        self.facts.secrets_from = backup;
        self
    }

    /// Returns the facts that the record may have.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the seal that a grant must be for.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Returns the permit of the object that changes.
    pub(crate) fn permit(&self) -> &Permit {
        self.inner.permit()
    }

    /// Returns the complete new content of a file, for a person who is asked.
    pub(crate) fn content(&self) -> Option<&[u8]> {
        self.inner.content()
    }

    /// Returns the entries that move with a directory, for a person who is asked.
    pub(crate) fn tree(&self) -> &[Walked] {
        self.inner.tree()
    }

    /// Returns the permit under whose path the backup is stored.
    pub(crate) fn backup_permit(&self) -> &Permit {
        self.inner.backup_permit()
    }

    /// Returns what must be backed up before the change.
    pub(crate) fn origins(&self) -> Vec<Origin<'_>> {
        self.inner.origins()
    }

    /// True if the backups have the content from which the change was computed.
    pub(crate) fn is_based_on(&self, saved: &[Saved]) -> bool {
        self.inner.is_based_on(saved)
    }

    /// Makes what nobody can see before the change, so that it can be synced together with the
    /// intent.
    pub(crate) fn stage(&mut self) {
        self.inner.stage();
    }

    /// Makes the change. The grant proves that its intent is durable.
    ///
    /// # Errors
    /// As [`Change::commit`]; [`Error::Ungranted`] for the grant of another record.
    pub(crate) fn commit(
        self,
        grant: Grant,
        saved: &[Saved],
    ) -> (Receipt, Result<Committed, Error>) {
        let (receipt, is_granted) = grant.redeem(Kind::Intent, &self.seal);
        let committed = match is_granted {
            true => self.inner.commit(self.facts.temp.as_ref(), saved),
            false => Err(Error::Ungranted),
        };
        (receipt, committed)
    }
}

#[cfg(test)]
mod tests {
    use cap_std::fs::Dir;
    use portcullis_audit::Draft;

    use super::*;
    use crate::audit_log::AuditLog;

    fn audit_log(directory: &tempfile::TempDir) -> AuditLog {
        let state = rustix::fs::openat(
            rustix::fs::CWD,
            directory.path(),
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        );
        AuditLog::open(&Dir::from_std_file(state.unwrap().into())).unwrap()
    }

    #[test]
    fn the_grant_of_another_record_opens_nothing() {
        let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (audit_log, journal) = (audit_log(&here), audit_log(&elsewhere));
        let draft = || Draft { op: Some("read".to_owned()), ..Draft::default() };
        let sealed = || {
            let sealed = Sealed::content("content", Facts::default(), Labelled::default());
            sealed.carried(|_| Ok::<(), Error>(())).unwrap()
        };

        let (one, other) = (sealed(), sealed());
        let grant = audit_log.record_for(draft(), other.seal()).unwrap();
        let (receipt, opened) = one.disclose(grant);
        assert!(matches!(opened, Err(Error::Ungranted)) && receipt.seq == 0);
        // The same sequence number in another log is another record.
        let one = sealed();
        let grant = journal.record_for(draft(), &Seal::new()).unwrap();
        assert!(matches!(one.disclose(grant).1, Err(Error::Ungranted)));
        // The record of an intent discloses nothing.
        let one = sealed();
        let grant = audit_log.admit(draft(), one.seal()).unwrap();
        assert!(matches!(one.disclose(grant).1, Err(Error::Ungranted)));

        let one = sealed();
        let grant = audit_log.record_for(draft(), one.seal()).unwrap();
        assert!(matches!(one.disclose(grant).1, Ok("content")));
    }
}
