//! Several changes of content at once.
//!
//! The changes are decided together: each is decided on, prepared and backed up before the intent
//! of the first is recorded, and a denial of one prevents all. They are then made one after the
//! other. When one fails, those before it are rolled back from the backup store, at once or, if the
//! gateway dies meanwhile, by the next start. Other programs can see the files in between.

mod rollback;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use portcullis_audit::{Draft, Hash};
use rustix::io::Errno;
use serde_json::Value;

use super::{
    Gateway, Refusal,
    changes::ContentChange,
    client::Client,
    error::{Error, ErrorKind, Failure},
    handle::MAX_ATTEMPTS,
    limits::{LimitReservation, Meter},
    prepared_change::{PreparedChange, discard},
    record,
    reply::{Changed, Reply},
    span,
    transaction::Transaction,
};
use crate::{
    audit_log::Grant,
    model::{Session, WorkspacePath},
    ops::Findings,
    policy::Decision,
    random::random_hex,
};

/// Maximum number of changes: all of their contents are in memory at once.
const MAX_CHANGES: usize = 100;
/// The fact that identifies the records of one batch.
const BATCH: &str = "batch";
/// The fact with the number of changes in the batch.
const SIZE: &str = "batchSize";
/// Reason of the denial where a rule asks.
const NOT_ASKED: &str =
    "the change needs a person's approval, for which a batch does not wait; send it alone";
/// Result of a change that was not begun.
const NOT_DONE: &str = "notDone";

/// The reason why the changes of a batch were not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("change {} of the batch: {error}", index + 1)]
pub struct BatchError {
    /// Index of the change that failed, from 0.
    pub index: usize,
    /// The error of that change.
    pub error: Error,
}

/// A prepared change, with its record and its share of the session's limits.
struct Prepared<'a> {
    ready: PreparedChange<'a>,
    draft: Draft,
    spent: Option<LimitReservation>,
}

/// A change that was made and can be rolled back.
struct AppliedChange {
    path: WorkspacePath,
    after: Option<Hash>,
    backup: Option<String>,
    seq: u64,
}

/// A batch that could not be prepared: the failed change, the failure, and the records of all
/// changes.
struct Refused {
    index: usize,
    reason: Failure,
    drafts: Vec<Draft>,
}

impl Gateway {
    /// Makes all of several changes or none; at most one for each file. Nobody is asked: where a
    /// rule would ask, the batch is denied.
    ///
    /// # Errors
    /// When a change is denied or fails. No change is left then, except one that could not be
    /// rolled back because another process changed the file meanwhile, or because the disk failed;
    /// the log records that.
    pub fn handle_together(
        &self,
        session: &Session,
        changes: &[Box<dyn ContentChange>],
    ) -> Result<Vec<Reply<Changed>>, BatchError> {
        if let Some(change) = changes.get(MAX_CHANGES) {
            let refusal = Refusal::Parameters("a batch has at most 100 changes".to_owned());
            let operation = change.as_operation();
            let path = record::shown(operation.path());
            let error = self.refuse(session, operation.kind().as_str(), Some(&path), &refusal);
            return Err(BatchError { index: MAX_CHANGES, error });
        }
        let begun = Instant::now();
        let span = span::of(session, BATCH);
        let _inside = span.enter();
        let made = self.make_together(session, changes);
        let first = made.as_ref().map(|replies| replies.first().map(|reply| &reply.receipt));
        self.answered(&span, BATCH, begun, first.map_err(|refused| &refused.error));
        made
    }

    fn make_together(
        &self,
        session: &Session,
        changes: &[Box<dyn ContentChange>],
    ) -> Result<Vec<Reply<Changed>>, BatchError> {
        let meter = self.begin(session, changes)?;
        let facts = facts(changes.len()).map_err(|errno| {
            let message = format!("no random bytes for the batch: {errno}");
            BatchError { index: 0, error: Error::new(ErrorKind::Io, message) }
        })?;
        // One slot of the scheduler: the changes are carried out one after the other.
        let slot = self.slots.as_ref().map(|slots| slots.enter_with(session, changes.len()));
        let slot = slot
            .transpose()
            .map_err(|decision| self.deny_one(session, changes, 0, decision, meter.as_deref()))?;
        let paths = changes.iter().map(|change| change.as_operation().path().clone()).collect();
        let _held = self.locks.hold(paths);
        let mut attempt = 1;
        loop {
            let policy = self.policy();
            let findings: Vec<_> = changes.iter().map(|_| Findings::default()).collect();
            let transactions: Vec<_> = changes
                .iter()
                .zip(&findings)
                .map(|(change, findings)| {
                    let (operation, client) = (change.as_operation(), Client::default());
                    Transaction {
                        meter: meter.as_ref(),
                        slot: slot.as_ref(),
                        ..Transaction::new(self, &policy, session, operation, client, findings)
                    }
                })
                .collect();
            match self.prepare_all(&transactions, changes, &facts) {
                Ok(prepared) => return self.make_all(session, &transactions, prepared),
                Err(refused)
                    if matches!(refused.reason, Failure::Moved) && attempt < MAX_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(refused) => return Err(self.refuse_all(*refused, &findings, meter.as_deref())),
            }
        }
    }

    /// Counts the changes against the session's limits.
    fn begin(
        &self,
        session: &Session,
        changes: &[Box<dyn ContentChange>],
    ) -> Result<Option<Arc<Meter>>, BatchError> {
        let policy = self.policy();
        let denied = |index: usize, decision: Decision, meter: Option<&Meter>| {
            self.deny_one(session, changes, index, decision, meter)
        };
        let meter =
            self.meter_of(session, &policy).map_err(|decision| denied(0, decision, None))?;
        for index in 0..changes.len() {
            if let Some(meter) = &meter {
                meter
                    .begin(Instant::now())
                    .map_err(|decision| denied(index, decision, Some(meter)))?;
            }
        }
        Ok(meter)
    }

    /// Records the denial of one of the changes, before any was looked at.
    fn deny_one(
        &self,
        session: &Session,
        changes: &[Box<dyn ContentChange>],
        index: usize,
        decision: Decision,
        meter: Option<&Meter>,
    ) -> BatchError {
        let policy = self.policy();
        let draft = match changes.get(index) {
            Some(change) => record::operation(session, &policy, change.as_operation()),
            None => record::request(session, &policy, BATCH, None),
        };
        let error = self.fail(draft, decision.into(), meter);
        BatchError { index, error }
    }

    /// Decides on each change, prepares it and backs up what it will replace.
    fn prepare_all<'a>(
        &self,
        transactions: &[Transaction<'a>],
        changes: &'a [Box<dyn ContentChange>],
        facts: &BTreeMap<String, Value>,
    ) -> Result<Vec<Prepared<'a>>, Box<Refused>> {
        let mut prepared: Vec<Prepared<'a>> = Vec::new();
        let (mut drafts, mut paths) = (Vec::new(), BTreeSet::new());
        for transaction in transactions {
            let mut draft = record::operation(
                transaction.session,
                transaction.context.policy,
                transaction.operation,
            );
            record::add_facts(&mut draft, facts.clone());
            drafts.push(draft);
        }
        for (index, (transaction, change)) in transactions.iter().zip(changes).enumerate() {
            let Some(draft) = drafts.get_mut(index) else { continue };
            let ready = ready(transaction, &**change, draft).and_then(|(ready, spent)| {
                let reason = match quarrel(&paths, ready.path()) {
                    None => {
                        paths.insert(ready.path().clone());
                        return Ok((ready, spent));
                    }
                    Some(reason) => reason,
                };
                self.give_up(ready);
                Err(Failure::Rendered(Error::new(ErrorKind::InvalidInput, reason)))
            });
            match ready {
                Ok((ready, spent)) => {
                    prepared.push(Prepared { ready, draft: draft.clone(), spent });
                }
                Err(reason) => {
                    prepared.into_iter().for_each(|one| self.give_up(one.ready));
                    let reason = match drafts.get_mut(index) {
                        Some(draft) => transaction.mask_failure(draft, reason),
                        None => reason,
                    };
                    let reason = match reason {
                        Failure::Ask(asking) => asking.refused(NOT_ASKED),
                        reason => reason,
                    };
                    return Err(Box::new(Refused { index, reason, drafts }));
                }
            }
        }
        if let Some(Err(reason)) = transactions.first().map(Transaction::confirm) {
            prepared.into_iter().for_each(|one| self.give_up(one.ready));
            return Err(Box::new(Refused { index: 0, reason, drafts }));
        }
        Ok(prepared)
    }

    /// Discards the backups of a change that is not made.
    fn give_up(&self, ready: PreparedChange<'_>) {
        discard(&self.backup_store, ready.saved);
    }

    /// Records why a batch was not begun: the change that failed, and that the others were not
    /// made.
    fn refuse_all(
        &self,
        refused: Refused,
        findings: &[Findings],
        meter: Option<&Meter>,
    ) -> BatchError {
        let Refused { index, reason, drafts } = refused;
        let (mut reason, mut answer) = (Some(reason), None);
        for (number, mut draft) in drafts.into_iter().enumerate() {
            record::give_up(&mut draft);
            if number == index {
                if let Some(findings) = findings.get(number) {
                    record::findings(&mut draft, findings.take());
                }
                answer = reason.take().map(|reason| self.fail(draft, reason, meter));
                continue;
            }
            draft.result = Some(NOT_DONE.to_owned());
            if let Err(error) = self.audit_log.record(draft) {
                return BatchError { index, error: error.into() };
            }
        }
        let lost = || Error::new(ErrorKind::Io, "the batch was lost");
        BatchError { index, error: answer.unwrap_or_else(lost) }
    }

    /// Records all intents, then makes the changes; rolls back those that were made when one fails.
    fn make_all<'a>(
        &self,
        session: &Session,
        transactions: &[Transaction<'a>],
        prepared: Vec<Prepared<'a>>,
    ) -> Result<Vec<Reply<Changed>>, BatchError> {
        let mut admitted: Vec<(Prepared<'a>, Grant)> = Vec::new();
        let mut prepared = prepared.into_iter();
        while let Some(one) = prepared.next() {
            match self.audit_log.admit(one.draft.clone(), one.ready.sealed.seal()) {
                Ok(grant) => admitted.push((one, grant)),
                Err(error) => {
                    let index = admitted.len();
                    // Intents without outcomes are left to the next start, which finds nothing
                    // done.
                    std::iter::once(one).chain(prepared).for_each(|one| self.give_up(one.ready));
                    return Err(BatchError { index, error: error.into() });
                }
            }
        }
        let (mut done, mut made, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        let mut stopped = None;
        for (index, ((one, grant), transaction)) in
            admitted.into_iter().zip(transactions).enumerate()
        {
            let Prepared { ready, draft, spent } = one;
            if stopped.is_some() {
                dropped.push((ready, draft, grant));
                continue;
            }
            let path = ready.path().clone();
            let applied = ready.commit(grant, &self.backup_store);
            if applied.committed.is_err() {
                stopped = Some((index, transaction, draft, applied));
                continue;
            }
            let (backup, seq) = (draft.backup.clone(), applied.receipt.seq);
            made.push(AppliedChange { path, after: draft.after, backup, seq });
            done.push((transaction, draft, applied, spent));
        }
        // Before any outcome is recorded: if the gateway dies meanwhile, the next start finds all
        // intents open, and that one change was not made.
        if stopped.is_some() {
            for one in made.into_iter().rev() {
                if let Err(reason) = self.take_back(session, None, &one) {
                    let record = one.seq;
                    tracing::error!(record, ?reason, "a change of a batch was not taken back");
                }
            }
        }
        let mut failed = stopped.map(|(index, transaction, draft, applied)| {
            (index, transaction.conclude(&draft, applied))
        });
        for (ready, draft, grant) in dropped {
            self.drop_intent(ready, &draft, grant);
        }
        let mut replies = Vec::new();
        for (transaction, draft, applied, spent) in done {
            match (transaction.conclude(&draft, applied), spent) {
                (Ok(reply), spent) => {
                    if let (Some(spent), None) = (spent, &failed) {
                        spent.keep();
                    }
                    replies.push(reply);
                }
                (Err(reason), _) => failed = failed.or(Some((replies.len(), Err(reason)))),
            }
        }
        match failed {
            None => Ok(replies),
            Some((index, reason)) => {
                let error = match reason {
                    Err(Failure::Answered(error)) => error,
                    Err(Failure::Log(error)) => error.into(),
                    _ => Error::new(ErrorKind::Conflict, "the change could not be made"),
                };
                Err(BatchError { index, error })
            }
        }
    }

    /// Records the outcome of a change that was not begun.
    fn drop_intent(&self, ready: PreparedChange<'_>, draft: &Draft, grant: Grant) {
        let outcome = Draft { result: Some(NOT_DONE.to_owned()), ..record::outcome(draft) };
        if let Err(error) = self.audit_log.complete(&grant.into_receipt(), outcome) {
            tracing::error!(%error, "the outcome of a change that was not made is missing");
        }
        self.give_up(ready);
    }
}

/// Prepares a change up to the record of its intent.
fn ready<'a>(
    transaction: &Transaction<'a>,
    change: &'a dyn ContentChange,
    draft: &mut Draft,
) -> Result<(PreparedChange<'a>, Option<LimitReservation>), Failure> {
    let permit = transaction.permit(draft)?;
    let sealed = change.prepare(&transaction.context, permit)?;
    let spent = transaction.spend(&sealed, 0)?;
    Ok((transaction.ready(draft, sealed)?, spent))
}

/// Returns why a change of the file at `path` cannot be in one batch with those at `others`.
fn quarrel(others: &BTreeSet<WorkspacePath>, path: &WorkspacePath) -> Option<&'static str> {
    let beneath = |path: &WorkspacePath, other| path.ancestors().contains(other);
    if others.contains(path) {
        Some("two changes of the batch are about the same file")
    } else if others.iter().any(|other| beneath(other, path) || beneath(path, other)) {
        Some("two changes of the batch are about a file and what would lie beneath it")
    } else {
        None
    }
}

/// Returns the facts that the records of one batch share.
fn facts(size: usize) -> Result<BTreeMap<String, Value>, Errno> {
    let id = random_hex::<16>()?;
    Ok(BTreeMap::from([(BATCH.to_owned(), id.into()), (SIZE.to_owned(), size.into())]))
}
