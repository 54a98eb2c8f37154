//! Operator requests for backups: show one, restore one.

use portcullis_audit::Draft;

use super::{
    Gateway,
    client::Client,
    error::{Error, Failure, render},
    link_targets::{self, Move},
    record,
    reply::{Attempt, Changed, Recalled, Reply},
    request::Request,
    transaction::Transaction,
};
use crate::{
    backup::{self, BackupKind},
    model::{
        Access, Operation, Session, WorkspacePath,
        request::{Recall, Rename, Restore},
    },
    ops::{self, Base, Committed, Findings, prepare},
    policy::{Decision, Object, ObjectKind},
    workspace::{Follow, Permit, VisitedName, Walked},
};

/// An entry that an undo renames.
#[derive(Debug, Clone, Copy)]
pub struct MovedEntry<'a> {
    /// The facts about it.
    pub object: Object,
    /// Its path on the disk now; earlier steps of the undo may give it another one.
    pub on_disk: &'a WorkspacePath,
    /// Everything beneath it, by the paths before this step.
    pub tree: &'a [Walked],
}

impl Gateway {
    /// Decides on a request as [`Gateway::undo`] does, by the names alone: those of the request, of
    /// all entries in the backup that it restores, and of the entry that it renames, `moved`, with
    /// everything beneath that. Returns true if a person must be asked. Nothing is recorded.
    ///
    /// # Errors
    /// The denial; errors of the backup, and of a link that is moved.
    pub fn decide_undo(
        &self,
        session: &Session,
        operation: Operation<'_>,
        moved: Option<MovedEntry<'_>>,
    ) -> Result<bool, Error> {
        let (policy, findings) = (self.policy(), Findings::default());
        let transaction = Transaction {
            undo: Some(Base::Anything),
            ..Transaction::new(self, &policy, session, operation, Client::default(), &findings)
        };
        let authorizer = transaction.authorizer();
        let decide = || -> Result<(), Failure> {
            authorizer.decide_request(operation.path(), operation.new_path()).map(drop)?;
            match (operation, moved) {
                (Operation::Restore(Restore { path, backup, .. }), _) => {
                    let entry = self.backup_store.find_from(path, backup)?;
                    authorizer.decide_restore((self.workspace(), &self.backup_store), &entry, path)
                }
                (Operation::Rename(Rename { from, to, .. }), Some(moved)) => {
                    let MovedEntry { object, on_disk, tree } = moved;
                    authorizer.decide_rename(from, to, &object, tree)?;
                    let beneath =
                        tree.iter().map(|walked| (&walked.path, walked.stat.object(false)));
                    let entries = std::iter::once((from, object)).chain(beneath);
                    let led_out = Move { from, to, agent_follows: None }.first_refused(
                        self.workspace(),
                        on_disk,
                        entries,
                    )?;
                    led_out.map_or(Ok(()), |(link, _)| {
                        Err(link_targets::outside(link, link_targets::REMOVE).into())
                    })
                }
                _ => Ok(()),
            }
        };
        decide().map_err(|failure| match failure {
            Failure::Denied(decision) | Failure::Hidden(decision, _) => Error::denied(&decision),
            Failure::Operation(error) => render(&error),
            _ => render(&ops::Error::Conflict),
        })?;
        Ok(!transaction.obligations.asks().is_empty())
    }
}

impl Request for Recall {
    type Output = Recalled;

    /// Discloses a backup if the policy allows reading its path.
    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Recalled> {
        let (context, backup_store) = (&transaction.context, &transaction.gateway.backup_store);
        record::decide(draft, &transaction.authorizer().decide_names(&self.path)?);
        let entry = entry(transaction, draft, (&self.path, &self.backup))?;
        if entry.path != self.path {
            return Err(backup::Error::Unknown(self.backup.clone()).into());
        }
        match entry.kind {
            BackupKind::Tree => {
                let entries = prepare::recall_tree(context, backup_store, &entry)?;
                let Reply { receipt, output } = transaction.disclose(draft, entries)?;
                Ok(Reply { receipt, output: Recalled::Tree(output) })
            }
            _ => {
                let content = prepare::recall(context, backup_store, &entry, self.encoding)?;
                let Reply { receipt, output } = transaction.disclose(draft, content)?;
                Ok(Reply { receipt, output: Recalled::Content(output) })
            }
        }
    }
}

impl Request for Restore {
    type Output = Changed;

    /// Restores a backup at the path, or checks whether that is possible.
    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let (path, gateway) = (&self.path, transaction.gateway);
        let authorizer = transaction.authorizer();
        record::decide(draft, &authorizer.decide_names(path)?);
        let entry = entry(transaction, draft, (path, &self.backup))?;
        authorizer.decide_restore((gateway.workspace(), &gateway.backup_store), &entry, path)?;
        let follows = &mut |visited: VisitedName<'_>| authorizer.follows(&[Access::Write], visited);
        let resolved = gateway.workspace.resolve_with(path, Follow::No, follows)?;
        if resolved.path() != path {
            record::resolve(draft, resolved.path());
            let reason = "a backup is never restored through a link";
            return Err(Decision::built_in_denial("restore.links", reason).into());
        }
        let decision = authorizer.decide_target(&resolved, &entry.kind.object())?;
        record::decide(draft, &decision);
        transaction.count_ancestors(&resolved, draft)?;
        if resolved.object().kind == ObjectKind::Directory {
            // A replaced directory is removed with everything in it.
            authorizer.require(authorizer.decide_name(Access::Remove, path))?;
            authorizer.decide_removal(path, &gateway.workspace.walk(path)?)?;
        }
        let permit = Permit::new(resolved, decision)?;
        let change = prepare::restore(&transaction.context, permit, &gateway.backup_store, entry)?;
        if !self.dry_run {
            return transaction.change(draft, change);
        }
        let bytes = change.facts().bytes;
        draft.bytes = bytes;
        draft.result = Some("dryRun".to_owned());
        let receipt = gateway.audit_log.record(draft.clone())?;
        transaction.charge(bytes);
        let output = Changed { committed: Committed::Unchanged, bytes, backup: None };
        Ok(Reply { receipt, output })
    }
}

/// Finds the backup that the operator named, and adds it to the record.
fn entry(
    transaction: &Transaction<'_>,
    draft: &mut Draft,
    (path, backup): (&WorkspacePath, &str),
) -> Result<backup::Backup, Failure> {
    let entry = transaction.gateway.backup_store.find_from(path, backup)?;
    let facts = draft.facts.get_or_insert_default();
    facts.insert("fromBackup".to_owned(), entry.id.to_string().into());
    Ok(entry)
}
