//! What the operator asks of the vault: showing a backup and putting it back.

use portcullis_audit::Draft;

use super::{Changed, Output, Reply, error::Failure, record, transaction::Transaction};
use crate::{
    backup::{self, EntryKind},
    model::{Access, Encoding, WorkspacePath},
    ops::{Change, Committed, Sealed, prepare},
    policy::{Decision, ObjectKind},
    workspace::{Follow, Met, Permit},
};

impl<'a> Transaction<'a> {
    /// Discloses a backup to whom the policy lets read the path that it is of.
    pub(super) fn recall(
        &self,
        draft: &mut Draft,
        path: &WorkspacePath,
        backup: &str,
        encoding: Encoding,
    ) -> Result<Reply, Failure> {
        let (context, vault) = (self.context(), &self.gate.vault);
        record::decide(draft, &self.authorizer().names(path)?);
        let entry = self.entry(draft, backup)?;
        if entry.path != *path {
            return Err(backup::Error::Unknown(backup.to_owned()).into());
        }
        match entry.kind {
            EntryKind::Tree => {
                let entries = prepare::recall_tree(&context, vault, &entry)?;
                self.disclose(draft, entries, Output::Entries)
            }
            _ => {
                let content = prepare::recall(&context, vault, &entry, encoding)?;
                self.disclose(draft, content, Output::Content)
            }
        }
    }

    /// Puts a backup at `path`, or finds out whether that could be done.
    pub(super) fn restore(
        &self,
        draft: &mut Draft,
        path: &WorkspacePath,
        backup: &str,
        dry_run: bool,
    ) -> Result<Reply, Failure> {
        let authorizer = self.authorizer();
        record::decide(draft, &authorizer.names(path)?);
        let entry = self.entry(draft, backup)?;
        authorizer.restoring(&self.gate.vault, &entry, path)?;
        let follows = &mut |met: Met<'_>| authorizer.follows(&[Access::Write], met);
        let resolved = self.gate.workspace.resolve_heeding(path, Follow::No, follows)?;
        if resolved.path() != path {
            record::resolve(draft, resolved.path());
            return Err(Failure::Denied(Box::new(Decision::built_in_denial(
                "restore.links",
                "a backup is never restored through a link",
            ))));
        }
        let decision = authorizer.target(&resolved, &entry.kind.object())?;
        record::decide(draft, &decision);
        self.count_ancestors(&authorizer, &resolved, draft)?;
        if resolved.object().kind == ObjectKind::Directory {
            // It goes with all that is in it.
            authorizer.one(authorizer.name(Access::Remove, path))?;
            authorizer.removal(path, &self.gate.workspace.walk(path)?)?;
        }
        let permit =
            Permit::new(resolved, decision).map_err(|denied| Failure::Denied(Box::new(denied)))?;
        let change = prepare::restore(&self.context(), permit, &self.gate.vault, entry)?;
        if dry_run { self.pretend(draft, &change) } else { self.change(draft, change) }
    }

    /// Records that a change would have been possible.
    fn pretend(
        &self,
        draft: &mut Draft,
        sealed: &Sealed<Box<dyn Change + 'a>>,
    ) -> Result<Reply, Failure> {
        let bytes = sealed.facts().bytes;
        draft.bytes = bytes;
        draft.result = Some("dryRun".to_owned());
        let receipt = self.gate.ledger.record(draft.clone())?;
        let changed = Changed { committed: Committed::Unchanged, bytes, backup: None };
        Ok(Reply { receipt, output: Output::Changed(changed) })
    }

    /// The entry that the operator named, which the record then names too.
    fn entry(&self, draft: &mut Draft, backup: &str) -> Result<backup::Entry, Failure> {
        let entry = self.gate.vault.find(backup)?;
        let facts = draft.facts.get_or_insert_default();
        facts.insert("fromBackup".to_owned(), entry.id.to_string().into());
        Ok(entry)
    }
}
