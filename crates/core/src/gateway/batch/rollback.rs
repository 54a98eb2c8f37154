//! Rollback of changes of a batch that fails, or whose gateway died.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd as _,
};

use portcullis_audit::AuditRecord;

use super::{AppliedChange, BATCH, SIZE};
use crate::{
    backup::content_hash,
    gateway::{
        Gateway, client::Client, error::Failure, record, recovery::SettledChange,
        transaction::Transaction,
    },
    model::{
        Operation, Session, Transport, WorkspacePath,
        request::{Remove, Restore},
    },
    ops::{self, Base, Findings, Resolution, prepare},
    workspace::{Follow, Permit},
};

impl Gateway {
    /// Rolls one change back: restores what it replaced, or removes what it made, if the file still
    /// has the content that it left. `transport` is the transport of the batch, for the record.
    pub(super) fn take_back(
        &self,
        session: &Session,
        transport: Option<&str>,
        made: &AppliedChange,
    ) -> Result<(), Failure> {
        let path = made.path.clone();
        let remove = Remove { path: path.clone(), recursive: false };
        let restore = made.backup.clone().map(|backup| Restore { path, backup, dry_run: false });
        let operation = restore.as_ref().map_or(Operation::Remove(&remove), Operation::Restore);
        let (policy, findings) = (self.policy(), Findings::default());
        let transaction = Transaction {
            undo: Some(Base::Anything),
            ..Transaction::new(self, &policy, session, operation, Client::default(), &findings)
        };
        let decision = policy.batch_rollback();
        let mut draft = record::operation(session, &policy, operation);
        record::decide(&mut draft, &decision);
        draft.transport = transport.map(str::to_owned).or(draft.transport);
        let facts = draft.facts.get_or_insert_default();
        facts.insert("reverts".to_owned(), made.seq.into());
        if let Some(backup) = &made.backup {
            facts.insert("fromBackup".to_owned(), backup.clone().into());
        }
        let resolved = self.workspace.resolve(&made.path, Follow::No)?;
        let permit = Permit::new(resolved, decision)?;
        let there =
            content_hash(permit.open_file(&self.workspace)?.as_fd(), policy.backups().size)?;
        if Some(there) != made.after {
            return Err(ops::Error::Conflict.into());
        }
        let change = match &made.backup {
            Some(backup) => {
                let entry = self.backup_store.find_from(&made.path, backup)?;
                prepare::restore(&transaction.context, permit, &self.backup_store, entry)?
            }
            None => prepare::remove(&transaction.context, permit, false)?,
        };
        transaction.change(&mut draft, change).map(drop)
    }

    /// Rolls back the changes of batches that a dead gateway did not finish, newest first. The
    /// outcomes are recorded afterwards: if this gateway dies too, the next one finds the intents
    /// again.
    pub(in crate::gateway) fn take_back_unfinished(&self, settled: &[SettledChange<'_>]) {
        let unfinished = unfinished(settled);
        for (intent, _) in settled
            .iter()
            .rev()
            .filter(|(_, resolution)| *resolution == Some(Resolution::Committed))
            .filter(|(intent, _)| batch(intent).is_some_and(|(id, _)| unfinished.contains(id)))
        {
            let draft = &intent.draft;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let path = draft.resolved.as_ref().or(draft.path.as_ref());
            let (Some(Ok(path)), Ok(agent)) =
                (path.map(|path| WorkspacePath::parse(path)), text(&draft.agent).parse())
            else {
                continue;
            };
            let session = Session {
                id: text(&draft.session),
                agent,
                user: text(&draft.user),
                transport: Transport::Cli,
                acp: None,
            };
            let backup = draft.backup.clone();
            let made = AppliedChange { path, after: draft.after, backup, seq: intent.seq };
            if let Err(reason) = self.take_back(&session, draft.transport.as_deref(), &made) {
                tracing::error!(
                    record = made.seq,
                    ?reason,
                    "a change of a batch was not taken back"
                );
            }
        }
    }
}

/// Returns the batch of an intent, and the number of its changes.
fn batch(intent: &AuditRecord) -> Option<(&str, u64)> {
    let facts = intent.draft.facts.as_ref()?;
    Some((facts.get(BATCH)?.as_str()?, facts.get(SIZE)?.as_u64()?))
}

/// Returns the batches that a dead gateway did not finish. As long as a rollback may be needed, a
/// gateway records no outcome of the batch. So a batch with an outcome was made or rolled back
/// completely, and needs nothing from the next start.
fn unfinished<'a>(settled: &[SettledChange<'a>]) -> BTreeSet<&'a str> {
    let mut batches: BTreeMap<&str, (u64, u64, bool)> = BTreeMap::new();
    for (intent, resolution) in settled {
        let Some((id, size)) = batch(intent) else { continue };
        let (open, expected, all_made) = batches.entry(id).or_insert((0, size, true));
        (*open, *expected) = (*open + 1, size);
        *all_made &= *resolution == Some(Resolution::Committed);
    }
    let is_unfinished = |(open, size, all_made): (u64, u64, bool)| open == size && !all_made;
    batches.into_iter().filter(|(_, it)| is_unfinished(*it)).map(|(id, _)| id).collect()
}
