//! One try at one request, from the question to the reply.

use std::{collections::BTreeMap, sync::Arc};

use portcullis_audit::{Draft, Receipt};

use super::{
    Changed, Error, Gateway, Output, Reply,
    asking::Approved,
    authorizer::Authorizer,
    error::{self, Failure, UNSEEN},
    limits::{Meter, Spent},
    record, recovery,
    reservations::Reservations,
    saved::{discard, keep, settle},
};
use crate::{
    backup::{BackupStore, Saved},
    ledger::{Grant, Seal},
    model::{Access, Operation, Session, WorkspacePath},
    ops::{self, Change, Committed, Context, Findings, Follower, Sealed, Source, prepare},
    policy::{Object, ObjectKind, Policy, Secrets},
    workspace::{Follow, Met, Permit, Resolved, Walked},
};

/// Longest content of which a diff is made, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

/// A change that is prepared, and what was kept of what it will replace.
pub(super) struct Ready<'a> {
    sealed: Sealed<Box<dyn Change + 'a>>,
    saved: Vec<Saved>,
}

impl Ready<'_> {
    /// The canonical path of what changes.
    pub(super) fn path(&self) -> &WorkspacePath {
        self.sealed.permit().path()
    }

    /// The seal that the grant must be for.
    pub(super) fn seal(&self) -> &Seal {
        self.sealed.seal()
    }

    /// Makes the change once what was kept is on stable storage; tells what that
    /// was and how many bytes the change stores.
    pub(super) fn commit(
        mut self,
        grant: Grant,
        vault: &BackupStore,
    ) -> (Receipt, Result<Committed, ops::Error>, Vec<Saved>, Option<u64>) {
        let bytes = self.sealed.facts().bytes;
        let (receipt, committed) = match settle(vault, &mut self.saved) {
            Ok(()) => self.sealed.commit(grant, &self.saved),
            Err(error) => (grant.into_receipt(), Err(error.into())),
        };
        (receipt, committed, self.saved, bytes)
    }

    /// Lets go of what was kept, because the change is not made.
    pub(super) fn discard(self, vault: &BackupStore) {
        discard(vault, self.saved);
    }
}

/// One try at one request.
pub(super) struct Transaction<'a> {
    pub(super) gate: &'a Gateway,
    pub(super) policy: &'a Policy,
    pub(super) session: &'a Session,
    pub(super) operation: &'a Operation,
    pub(super) source: Source<'a>,
    pub(super) meter: Option<&'a Arc<Meter>>,
    pub(super) reservations: Reservations,
    pub(super) findings: &'a Findings,
    pub(super) follower: &'a dyn Follower,
    /// Whether it puts right what was done.
    pub(super) redress: bool,
    /// What a person said yes to.
    pub(super) approved: Option<&'a Approved>,
}

impl<'a> Transaction<'a> {
    /// Runs the pipeline and fills `draft` with what becomes known on the way.
    pub(super) fn run(&self, draft: &mut Draft) -> Result<Reply, Failure> {
        let context = self.context();
        let authorizer = self.authorizer();
        let permit = |draft: &mut Draft| self.permit(&authorizer, draft);
        match self.operation {
            Operation::Read { range, encoding, .. } => {
                let content = prepare::read(&context, &permit(draft)?, *range, *encoding)?;
                self.disclose(draft, content, Output::Content)
            }
            Operation::List { .. } => {
                let entries = prepare::list(&context, &permit(draft)?)?;
                self.disclose(draft, entries, Output::Entries)
            }
            Operation::Names { .. } => {
                let names = prepare::names(&context, &permit(draft)?)?;
                self.disclose(draft, names, Output::Names)
            }
            Operation::Stat { .. } => {
                let stat = prepare::stat(&permit(draft)?)?;
                self.disclose(draft, stat, Output::Stat)
            }
            Operation::Glob { query, .. } => self.glob(draft, query),
            Operation::Grep { query, .. } => self.grep(draft, query),
            Operation::Watch { query } => self.watch(draft, query),
            Operation::Write { content, .. } => {
                let change = prepare::write(&context, permit(draft)?, content.clone())?;
                self.limited_change(draft, change, 0)
            }
            Operation::Append { content, .. } => {
                let change = prepare::append(&context, permit(draft)?, content)?;
                self.limited_change(draft, change, 0)
            }
            Operation::Edit { old, new, .. } => {
                let change = prepare::edit(&context, permit(draft)?, old, new)?;
                self.limited_change(draft, change, 0)
            }
            Operation::Mkdir { recursive, .. } => {
                let change = prepare::mkdir(&context, permit(draft)?, *recursive)?;
                self.limited_change(draft, change, 0)
            }
            Operation::Remove { recursive, .. } => {
                let permit = permit(draft)?;
                let files = match permit.object().kind {
                    ObjectKind::Directory if *recursive => {
                        let tree = authorizer.walk(&self.gate.workspace, permit.path())?;
                        authorizer.removal(permit.path(), &tree)?;
                        tree.iter().filter(|w| w.stat.kind != ObjectKind::Directory).count()
                    }
                    ObjectKind::Directory => 0,
                    _ => 1,
                };
                self.limited_change(draft, prepare::remove(&context, permit, *recursive)?, files)
            }
            Operation::Rename { to, replace, .. } => {
                let permit = permit(draft)?;
                let target = self.rename_target(&authorizer, draft, to, &permit.object())?;
                let tree = match permit.object().kind {
                    ObjectKind::Directory => {
                        authorizer.walk(&self.gate.workspace, permit.path())?
                    }
                    _ => Vec::new(),
                };
                authorizer.renaming(permit.path(), target.path(), &permit.object(), &tree)?;
                // An approval holds for what moves as it was.
                let shown = (!self.reservations.asks().is_empty()).then_some(LONGEST);
                // Only rules about secrets look at what lies beneath.
                let is_searched = self.policy.secrets().is_some_and(Secrets::depends_on_path);
                let sees = |walked: &Walked| {
                    authorizer.lists(&walked.path, &walked.stat.object(false))
                        && authorizer.reads(&walked.path)
                };
                let sees_all = self.is_operators()
                    || !is_searched
                    || (authorizer.reads(permit.path()) && tree.iter().all(sees));
                let change = prepare::rename(&context, permit, target, tree, *replace, shown);
                let change = match change {
                    // Perhaps about the content of what is not shown.
                    Err(ops::Error::Refused(decision)) if !sees_all => {
                        return Err(Failure::Hidden(Box::new(decision), UNSEEN));
                    }
                    change => change?,
                };
                // The file whose name it takes is gone.
                let files = change.origins().len();
                self.limited_change(draft, change, files)
            }
            Operation::Recall { path, backup, encoding } => {
                self.recall(draft, path, backup, *encoding)
            }
            Operation::Restore { path, backup, dry_run } => {
                self.restore(draft, path, backup, *dry_run)
            }
        }
    }

    /// Decides on the name that was asked for, finds the object, and decides
    /// on that.
    fn permit(&self, authorizer: &Authorizer<'_>, draft: &mut Draft) -> Result<Permit, Failure> {
        let path = self.operation.path();
        let asked = authorizer.names(path)?;
        record::decide(draft, &asked);
        let follow = match self.operation {
            Operation::Remove { .. } | Operation::Rename { .. } => Follow::No,
            _ => Follow::Yes,
        };
        let accesses = authorizer.operation.accesses();
        let resolved = self.gate.workspace.resolve_heeding(path, follow, &mut |met| {
            let follows = authorizer.follows(accesses, met);
            if let (true, Met::Name(name) | Met::Left(name)) = (follows, met) {
                // Should it fail here, this is how far it came.
                record::resolve(draft, name);
            }
            follows
        })?;
        let decision = if resolved.path() == path {
            authorizer.object(&resolved)?;
            asked
        } else {
            record::resolve(draft, resolved.path());
            let decision = authorizer.resolved(&resolved)?;
            record::decide(draft, &decision);
            decision
        };
        if matches!(
            self.operation,
            Operation::Write { .. } | Operation::Append { .. } | Operation::Mkdir { .. }
        ) {
            self.count_ancestors(authorizer, &resolved, draft)?;
        }
        Permit::new(resolved, decision).map_err(|denied| Failure::Denied(Box::new(denied)))
    }

    /// The same for the new name of a rename.
    fn rename_target(
        &self,
        authorizer: &Authorizer<'_>,
        draft: &mut Draft,
        to: &WorkspacePath,
        moving: &Object,
    ) -> Result<Permit, Failure> {
        authorizer.one(authorizer.name(Access::Write, to))?;
        let follows = &mut |met: Met<'_>| authorizer.follows(&[Access::Write], met);
        let resolved = self.gate.workspace.resolve_heeding(to, Follow::No, follows)?;
        let decision = authorizer.target(&resolved, moving)?;
        self.count_ancestors(authorizer, &resolved, draft)?;
        Permit::new(resolved, decision).map_err(|denied| Failure::Denied(Box::new(denied)))
    }

    pub(super) fn count_ancestors(
        &self,
        authorizer: &Authorizer<'_>,
        resolved: &Resolved,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        let directories = authorizer.ancestors(&self.gate.workspace, resolved)?;
        if directories > 0 {
            let counts = draft.counts.get_or_insert_with(BTreeMap::new);
            counts.insert("directories".to_owned(), directories);
        }
        Ok(())
    }

    /// Record, then disclose.
    pub(super) fn disclose<T>(
        &self,
        draft: &mut Draft,
        sealed: Sealed<T>,
        output: impl FnOnce(T) -> Output,
    ) -> Result<Reply, Failure> {
        record::facts(draft, sealed.facts());
        self.heed(draft, || self.discloses())?;
        record::findings(draft, self.findings.take());
        draft.result = Some("ok".to_owned());
        // Should the ledger refuse, there is nothing left to record.
        let grant = self.gate.ledger.record_for(std::mem::take(draft), sealed.seal())?;
        opened(sealed.disclose(grant), output)
    }

    /// Makes a change if the session's limits leave room for it.
    fn limited_change(
        &self,
        draft: &mut Draft,
        sealed: Sealed<Box<dyn Change + 'a>>,
        files: usize,
    ) -> Result<Reply, Failure> {
        let spent = self.spend(&sealed, files)?;
        let reply = self.change(draft, sealed)?;
        if let Some(spent) = spent {
            spent.keep();
        }
        Ok(reply)
    }

    /// Takes from the session's limits what a change will write and remove.
    fn spend(
        &self,
        sealed: &Sealed<Box<dyn Change + 'a>>,
        files: usize,
    ) -> Result<Option<Spent>, Failure> {
        let bytes = sealed.facts().bytes.unwrap_or(0);
        let files = u64::try_from(files).unwrap_or(u64::MAX);
        match self.meter.map(|meter| meter.spend(bytes, files)) {
            Some(Err(decision)) => Err(Failure::Denied(Box::new(decision))),
            Some(Ok(spent)) => Ok(Some(spent)),
            None => Ok(None),
        }
    }

    /// Prepares a change of content up to where its intent would be recorded.
    pub(super) fn ready_alone(
        &self,
        draft: &mut Draft,
    ) -> Result<(Ready<'a>, Option<Spent>), Failure> {
        let context = self.context();
        let permit = self.permit(&self.authorizer(), draft)?;
        let sealed = match self.operation {
            Operation::Write { content, .. } => prepare::write(&context, permit, content.clone()),
            Operation::Append { content, .. } => prepare::append(&context, permit, content),
            Operation::Edit { old, new, .. } => prepare::edit(&context, permit, old, new),
            _ => Err(ops::Error::Invalid("this is no change of content")),
        }?;
        let spent = self.spend(&sealed, 0)?;
        Ok((self.ready(draft, sealed)?, spent))
    }

    /// Keep the old bytes, record the intent, act, record the outcome.
    pub(super) fn change(
        &self,
        draft: &mut Draft,
        sealed: Sealed<Box<dyn Change + 'a>>,
    ) -> Result<Reply, Failure> {
        let gate = self.gate;
        let mut ready = self.ready(draft, sealed)?;
        ready.sealed.stage();
        let grant = match gate.ledger.admit(draft.clone(), ready.seal()) {
            Ok(grant) => grant,
            Err(error) => {
                ready.discard(&gate.vault);
                return Err(error.into());
            }
        };
        let (receipt, committed, saved, bytes) = ready.commit(grant, &gate.vault);
        self.conclude(draft, receipt, committed, saved, bytes)
    }

    /// Keeps what a change will replace and describes it for its record; goes
    /// on only if nobody has to be asked.
    fn ready(
        &self,
        draft: &mut Draft,
        sealed: Sealed<Box<dyn Change + 'a>>,
    ) -> Result<Ready<'a>, Failure> {
        let gate = self.gate;
        let mut saved = self.keep(&sealed)?;
        let is_looked_at = sealed.permit().object().kind == ObjectKind::Directory
            || !self.reservations.asks().is_empty();
        let settled = match is_looked_at {
            true => settle(&gate.vault, &mut saved).map_err(Failure::from),
            false => Ok(()),
        };
        if let Err(failure) = settled.and_then(|()| self.decide_on_kept(&sealed, &saved)) {
            discard(&gate.vault, saved);
            return Err(failure);
        }
        if !sealed.is_based_on(&saved) {
            discard(&gate.vault, saved);
            return Err(Failure::Moved);
        }
        let counts = draft.counts.take();
        record::facts(draft, sealed.facts());
        draft.counts = draft.counts.take().or(counts);
        record::findings(draft, self.findings.take());
        record::backups(draft, &saved);
        let heeded = self.heed(draft, || self.describe(&saved, &sealed));
        if let Err(failure) = heeded {
            record::give_up(draft);
            discard(&gate.vault, saved);
            return Err(failure);
        }
        Ok(Ready { sealed, saved })
    }

    /// Records what became of a change.
    pub(super) fn conclude(
        &self,
        draft: &Draft,
        receipt: Receipt,
        committed: Result<Committed, ops::Error>,
        saved: Vec<Saved>,
        bytes: Option<u64>,
    ) -> Result<Reply, Failure> {
        let gate = self.gate;
        let mut outcome = record::outcome(draft);
        match committed {
            Ok(committed) => {
                outcome.result = Some(result(committed).to_owned());
                gate.ledger.complete(&receipt, outcome)?;
                let backup = saved.first().map(|saved| saved.id.to_string());
                let bytes = match self.operation {
                    // Of what is there the agent is not told how long it is.
                    Operation::Append { content, .. } if !self.may_look(draft) => {
                        u64::try_from(content.len()).ok()
                    }
                    _ => bytes,
                };
                keep(&gate.vault, saved);
                Ok(Reply { receipt, output: Output::Changed(Changed { committed, bytes, backup }) })
            }
            Err(error) => {
                let undone = recovery::remains(draft, &gate.vault)
                    .is_some_and(|remains| ops::is_undone(&gate.workspace, &remains, &error));
                let rendered = match Failure::from(error) {
                    Failure::Operation(error) => error::render(&error),
                    Failure::Denied(decision) => Error::denied(&decision),
                    _ => error::render(&ops::Error::Conflict),
                };
                if !undone {
                    // An outcome would say that this is over. Without one, the
                    // next start settles what could neither be done nor undone.
                    tracing::error!(
                        record = receipt.seq,
                        error = %rendered,
                        "a change could not be undone and is left to the next start"
                    );
                    return Err(Failure::Answered(rendered.with_receipt(receipt)));
                }
                record::fail(&mut outcome, &rendered);
                gate.ledger.complete(&receipt, outcome)?;
                // Copies of changes that fail must not push good ones out. What
                // an editor did with a change that it failed, nobody knows.
                if draft.source.is_none() {
                    discard(&gate.vault, saved);
                }
                Err(Failure::Answered(rendered.with_receipt(receipt)))
            }
        }
    }

    pub(super) fn context(&self) -> Context<'a> {
        Context {
            workspace: &self.gate.workspace,
            policy: self.policy,
            agent: &self.session.agent,
            operation: self.operation.kind(),
            source: self.source,
            key: &self.gate.key,
            known: &self.gate.known,
            name_locks: &self.gate.name_locks,
            findings: self.findings,
            follower: self.follower,
        }
    }

    /// Whether the operator puts something right, or looks at a backup.
    pub(super) fn is_operators(&self) -> bool {
        self.redress
            || matches!(self.operation, Operation::Recall { .. } | Operation::Restore { .. })
    }

    pub(super) fn authorizer(&self) -> Authorizer<'_> {
        Authorizer {
            policy: self.policy,
            agent: &self.session.agent,
            operation: self.operation.kind(),
            is_operators: self.is_operators(),
            reservations: &self.reservations,
        }
    }
}

/// The reply with what was opened.
pub(super) fn opened<T>(
    (receipt, content): (Receipt, Result<T, ops::Error>),
    output: impl FnOnce(T) -> Output,
) -> Result<Reply, Failure> {
    match content {
        Ok(content) => Ok(Reply { receipt, output: output(content) }),
        // The record is there.
        Err(error) => Err(Failure::Answered(error::render(&error).with_receipt(receipt))),
    }
}

fn result(committed: Committed) -> &'static str {
    match committed {
        Committed::Stored => "ok",
        Committed::Buffered => "buffered",
        Committed::Unchanged => "unchanged",
    }
}
