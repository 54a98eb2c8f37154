//! Runs one attempt of a request: authorize, prepare, back up, log, apply.

use std::{collections::BTreeMap, sync::Arc};

use portcullis_audit::{Draft, Hash};

use super::{
    Gateway,
    approval_preview::Description,
    approvals::{Binding, ShownObject},
    authorizer::Authorizer,
    client::Client,
    error::{self, Error, Failure},
    limits::{LimitReservation, Meter},
    obligations::Obligations,
    pending_approval::{ApprovalNeeded, ApprovalPreview, Approved},
    prepared_change::{Applied, PreparedChange, check_is_empty, discard, keep, settle},
    record, recovery,
    reply::{Attempt, Changed, Reply},
    scheduler::SchedulerSlot,
};
use crate::{
    backup::{Meta, Saved},
    model::{Access, Operation, Session, WorkspacePath, request::Append},
    ops::{self, Base, Context, Findings, Sealed, SealedChange},
    policy::{Object, ObjectKind, Policy},
    workspace::{Follow, Permit, Resolved, VisitedName},
};

/// An attempt of a request.
pub(super) struct Transaction<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) session: &'a Session,
    pub(super) operation: Operation<'a>,
    pub(super) context: Context<'a>,
    pub(super) meter: Option<&'a Arc<Meter>>,
    /// The slot of a shared gateway, to which bytes of content are charged.
    pub(super) slot: Option<&'a SchedulerSlot<'a>>,
    pub(super) obligations: Obligations,
    /// The state of the path on which it is based, if it reverses earlier changes.
    pub(super) undo: Option<Base>,
    /// The approval of the request.
    pub(super) approved: Option<&'a Approved>,
}

impl<'a> Transaction<'a> {
    /// Returns an attempt without limits and without an approval.
    pub(super) fn new(
        gateway: &'a Gateway,
        policy: &'a Policy,
        session: &'a Session,
        operation: Operation<'a>,
        client: Client<'a>,
        findings: &'a Findings,
    ) -> Self {
        let context = Context {
            workspace: &gateway.workspace,
            policy,
            agent: &session.agent,
            session,
            transport: session.transport,
            operation: operation.kind(),
            source: client.source,
            backup_store: &gateway.backup_store,
            key: &gateway.key,
            last_renames: &gateway.last_renames,
            name_locks: &gateway.name_locks,
            findings,
            follower: client.follower,
        };
        Self {
            gateway,
            session,
            operation,
            context,
            meter: None,
            slot: None,
            obligations: Obligations::default(),
            undo: None,
            approved: None,
        }
    }

    /// Decides on the requested name, resolves it, and decides on the object.
    pub(super) fn permit(&self, draft: &mut Draft) -> Result<Permit, Failure> {
        use Operation as O;
        let (authorizer, path) = (self.authorizer(), self.operation.path());
        let asked = authorizer.decide_request(path, self.operation.new_path())?;
        record::decide(draft, &asked);
        let follow = match self.operation {
            O::Remove(_) | O::Rename(_) | O::SetAttributes(_) | O::Symlink(_) => Follow::No,
            // Its request resolves the path itself.
            O::Restore(_) => Follow::No,
            O::Read(_) | O::Write(_) | O::Append(_) | O::Edit(_) | O::Mkdir(_) => Follow::Yes,
            O::List(_) | O::Names(_) | O::Stat(_) | O::Recall(_) => Follow::Yes,
            O::Glob(_) | O::Grep(_) | O::Watch(_) => Follow::Yes,
        };
        let accesses = authorizer.operation.accesses();
        let resolved = self.gateway.workspace.resolve_with(path, follow, &mut |visited| {
            let follows = authorizer.follows(accesses, visited);
            if let (true, VisitedName::Name(name) | VisitedName::Left(name)) = (follows, visited) {
                // On a failure here, the record has the last name that was visited.
                record::resolve(draft, name);
            }
            follows
        })?;
        let decision = if resolved.path() == path {
            authorizer.decide_object(&resolved)?;
            asked
        } else {
            record::resolve(draft, resolved.path());
            let decision = authorizer.decide_resolved(&resolved)?;
            record::decide(draft, &decision);
            decision
        };
        if let O::Edit(_) = self.operation {
            // Its result shows whether the file has the old text, also where it fails.
            self.carry(draft, &self.context.policy.labels().of(resolved.path()))?;
        }
        if let O::Write(_) | O::Append(_) | O::Mkdir(_) | O::Symlink(_) = self.operation {
            self.count_ancestors(&resolved, draft)?;
        }
        Ok(Permit::new(resolved, decision)?)
    }

    /// Resolves the new name of a rename, which [`permit`](Self::permit) decided on, and decides on
    /// the object.
    pub(super) fn rename_target(
        &self,
        draft: &mut Draft,
        to: &WorkspacePath,
        moving: &Object,
    ) -> Result<Permit, Failure> {
        let authorizer = self.authorizer();
        let follows = &mut |visited: VisitedName<'_>| authorizer.follows(&[Access::Write], visited);
        let resolved = self.gateway.workspace.resolve_with(to, Follow::No, follows)?;
        let decision = authorizer.decide_target(&resolved, moving)?;
        self.count_ancestors(&resolved, draft)?;
        Ok(Permit::new(resolved, decision)?)
    }

    /// Decides on the directories that will be made, and counts them.
    pub(super) fn count_ancestors(
        &self,
        resolved: &Resolved,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        let directories = self.authorizer().decide_ancestors(&self.gateway.workspace, resolved)?;
        if directories > 0 {
            let counts = draft.counts.get_or_insert_with(BTreeMap::new);
            counts.insert("directories".to_owned(), directories);
        }
        Ok(())
    }

    /// Records a disclosure, then makes it.
    pub(super) fn disclose<T>(&self, draft: &mut Draft, sealed: Sealed<T>) -> Attempt<T> {
        self.disclose_shown(draft, sealed, |description| description.discloses())
    }

    /// Records a disclosure, then makes it; `shown` describes it for a person.
    pub(super) fn disclose_shown<T>(
        &self,
        draft: &mut Draft,
        sealed: Sealed<T>,
        shown: impl FnOnce(&Description<'_>) -> ApprovalPreview,
    ) -> Attempt<T> {
        record::facts(draft, sealed.facts());
        self.require_approval(draft, None, shown)?;
        record::findings(draft, self.context.findings.take());
        let bytes = draft.bytes;
        let reply = self.open(draft, sealed, |_| Ok(()))?;
        self.charge(bytes);
        Ok(reply)
    }

    /// Confirms that the decision is still valid before it has an effect: a policy that is no
    /// longer in force decides nothing, and a session that was closed or a client that withdrew its
    /// request gets nothing.
    pub(super) fn confirm(&self) -> Result<(), Failure> {
        if self.undo.is_some() {
            return Ok(());
        }
        if !std::ptr::eq(Arc::as_ptr(&self.gateway.policy()), self.context.policy) {
            return Err(Failure::Moved);
        }
        self.meter.map_or(Ok(()), |meter| meter.open())?;
        match self.context.follower.is_given_up() {
            true => Err(ops::Error::Cancelled.into()),
            false => Ok(()),
        }
    }

    /// Counts bytes of content that were read or written.
    pub(super) fn charge(&self, bytes: Option<u64>) {
        if let (Some(slot), Some(bytes)) = (self.slot, bytes) {
            slot.charge(bytes);
        }
    }

    /// Makes a change if the session's limits allow it.
    pub(super) fn limited_change(
        &self,
        draft: &mut Draft,
        sealed: SealedChange<'a>,
        files: usize,
    ) -> Attempt<Changed> {
        let spent = self.spend(&sealed, files)?;
        let reply = self.change(draft, sealed)?;
        if let Some(spent) = spent {
            spent.keep();
        }
        Ok(reply)
    }

    /// Counts a change against the session's limits.
    pub(super) fn spend(
        &self,
        sealed: &SealedChange<'a>,
        files: usize,
    ) -> Result<Option<LimitReservation>, Failure> {
        let bytes = sealed.facts().bytes.unwrap_or(0);
        let files = u64::try_from(files).unwrap_or(u64::MAX);
        Ok(self.meter.map(|meter| meter.spend(bytes, files)).transpose()?)
    }

    /// Backs up, records the intent, applies the change, records the outcome.
    pub(super) fn change(&self, draft: &mut Draft, sealed: SealedChange<'a>) -> Attempt<Changed> {
        let gateway = self.gateway;
        self.undo.unwrap_or_default().check(sealed.permit().stat())?;
        let mut ready = self.ready(draft, sealed)?;
        ready.sealed.stage();
        let confirmed = self.confirm().and_then(|()| match self.context.follower.begins() {
            true => Ok(()),
            false => Err(ops::Error::Cancelled.into()),
        });
        if let Err(failure) = confirmed {
            record::give_up(draft);
            discard(&gateway.backup_store, ready.saved);
            return Err(failure);
        }
        match gateway.audit_log.admit(draft.clone(), ready.sealed.seal()) {
            Ok(grant) => self.conclude(draft, ready.commit(grant, &gateway.backup_store)),
            Err(error) => {
                discard(&gateway.backup_store, ready.saved);
                Err(error.into())
            }
        }
    }

    /// Backs up what a change will replace and describes it for its record; continues only if no
    /// approval is needed.
    pub(super) fn ready(
        &self,
        draft: &mut Draft,
        sealed: SealedChange<'a>,
    ) -> Result<PreparedChange<'a>, Failure> {
        let gateway = self.gateway;
        let mut saved = self.save(&sealed)?;
        let is_examined = sealed.permit().object().kind == ObjectKind::Directory
            || !self.obligations.asks().is_empty();
        let settled = match is_examined {
            true => settle(&gateway.backup_store, &mut saved).map_err(Failure::from),
            false => Ok(()),
        };
        if let Err(failure) = settled.and_then(|()| self.decide_on_saved(&sealed, &saved)) {
            discard(&gateway.backup_store, saved);
            return Err(failure);
        }
        if !sealed.is_based_on(&saved) {
            discard(&gateway.backup_store, saved);
            return Err(Failure::Moved);
        }
        let counts = draft.counts.take();
        record::facts(draft, sealed.facts());
        draft.counts = draft.counts.take().or(counts);
        record::findings(draft, self.context.findings.take());
        record::backups(draft, &saved);
        self.note_carried(draft);
        let object = self.shown_object(&sealed);
        let describe = |description: &Description<'_>| description.describe(&saved, &sealed);
        let approved = self.require_approval(draft, object, describe);
        if let Err(failure) = approved {
            record::give_up(draft);
            discard(&gateway.backup_store, saved);
            return Err(failure);
        }
        Ok(PreparedChange { sealed, saved })
    }

    /// A directory is removed exactly as its backup has it; entries that another process added
    /// since the walk are decided on now. One that has to be empty is so in its backup too.
    fn decide_on_saved(&self, sealed: &SealedChange<'a>, saved: &[Saved]) -> Result<(), Failure> {
        let (backup_store, kind) = (&self.gateway.backup_store, sealed.permit().object().kind);
        let (ObjectKind::Directory, Some(tree)) = (kind, saved.first()) else { return Ok(()) };
        match self.operation {
            Operation::Rename(_) => return check_is_empty(backup_store, tree),
            Operation::Remove(remove) if !remove.recursive => check_is_empty(backup_store, tree)?,
            Operation::Remove(_) | Operation::Restore(_) => {}
            _ => return Ok(()),
        }
        self.authorizer().decide_removal_of_saved(backup_store, tree)
    }

    /// Backs up everything that the change will replace.
    fn save(&self, sealed: &SealedChange<'a>) -> Result<Vec<Saved>, Failure> {
        let backup_store = &self.gateway.backup_store;
        let mut saved = Vec::new();
        for origin in sealed.origins() {
            let permit = sealed.backup_permit();
            let (operation, after) = (self.operation.kind(), self.authored(sealed));
            let beyond_size = self.is_operators();
            let meta = Meta { session: self.session, operation, after, beyond_size };
            match backup_store.save(permit, &meta, origin) {
                Ok(one) => saved.push(one),
                Err(error) => {
                    discard(backup_store, saved);
                    return Err(error.into());
                }
            }
        }
        Ok(saved)
    }

    /// Returns the hash of what the change stores, if the agent sent it and no approval is needed:
    /// a backup made for the description of an approval must not state that the change was made.
    fn authored(&self, sealed: &SealedChange<'a>) -> Option<Hash> {
        let is_own = matches!(
            self.operation,
            Operation::Write(_) | Operation::Append(_) | Operation::Edit(_)
        );
        if is_own && self.obligations.asks().is_empty() { sealed.facts().after } else { None }
    }

    /// Records the outcome of a change.
    pub(super) fn conclude(
        &self,
        draft: &Draft,
        Applied { receipt, committed, saved, bytes }: Applied,
    ) -> Attempt<Changed> {
        let gateway = self.gateway;
        let mut outcome = record::outcome(draft);
        match committed {
            Ok(committed) => {
                outcome.result = Some(committed.as_str().to_owned());
                gateway.audit_log.complete(&receipt, outcome)?;
                let backup = saved.first().map(|saved| saved.id.to_string());
                let bytes = match self.operation {
                    // The length of the file is not revealed to the agent.
                    Operation::Append(Append { content, .. })
                        if !self.description().may_look(draft) =>
                    {
                        u64::try_from(content.len()).ok()
                    }
                    _ => bytes,
                };
                keep(&gateway.backup_store, saved);
                self.charge(bytes);
                Ok(Reply { receipt, output: Changed { committed, bytes, backup } })
            }
            Err(error) => {
                let undone = recovery::remains(draft, &gateway.backup_store)
                    .is_some_and(|remains| ops::is_undone(&gateway.workspace, &remains, &error));
                let rendered = match Failure::from(error) {
                    Failure::Operation(error) => error::render(&error),
                    Failure::Denied(decision) => Error::denied(&decision),
                    _ => error::render(&ops::Error::Conflict),
                };
                if !undone {
                    // An outcome would end the change. Without one, the next start settles what
                    // could neither be made nor undone.
                    tracing::error!(
                        record = receipt.seq,
                        error = %rendered,
                        "a change could not be undone and is left to the next start"
                    );
                    return Err(Failure::Answered(rendered.with_receipt(receipt)));
                }
                record::fail(&mut outcome, &rendered);
                gateway.audit_log.complete(&receipt, outcome)?;
                // Backups of failed changes must not displace good ones. It is unknown what an
                // editor did with a change that it failed.
                if draft.source.is_none() {
                    discard(&gateway.backup_store, saved);
                }
                Err(Failure::Answered(rendered.with_receipt(receipt)))
            }
        }
    }

    /// True if the operator undoes changes or looks at a backup.
    pub(super) fn is_operators(&self) -> bool {
        self.undo.is_some()
            || matches!(self.operation, Operation::Recall(_) | Operation::Restore(_))
    }

    pub(super) fn authorizer(&self) -> Authorizer<'_> {
        Authorizer {
            policy: self.context.policy,
            agent: &self.session.agent,
            operation: self.operation.kind(),
            is_operators: self.is_operators(),
            obligations: &self.obligations,
        }
    }

    /// Returns the description of the request for a person.
    fn description(&self) -> Description<'_> {
        Description {
            operation: self.operation,
            authorizer: self.authorizer(),
            context: self.context,
            carried: self.gateway.carrier(self.session).reads().ids().clone(),
            backup_store: &self.gateway.backup_store,
        }
    }

    /// Returns what the question shows of the entry that a rename moves or a removal removes.
    fn shown_object(&self, sealed: &SealedChange<'_>) -> Option<ShownObject> {
        let is_rename = match self.operation {
            Operation::Rename(_) => true,
            Operation::Remove(_) => false,
            _ => return None,
        };
        let kind = sealed.permit().object().kind;
        let stat = sealed.permit().stat().filter(|stat| is_rename && stat.kind == ObjectKind::File);
        let mode = stat.map(|stat| stat.mode & 0o7777);
        let has_executable = sealed.tree().iter().any(|walked| walked.stat.is_executable());
        let replaces = is_rename && !sealed.origins().is_empty();
        Some(ShownObject { kind, mode, has_executable, replaces })
    }

    /// Continues if no rule asks, or if exactly this was approved, and adds the approval to the
    /// record. `object` is what an approval for the session is bound to, and `change` describes the
    /// effect.
    fn require_approval(
        &self,
        draft: &mut Draft,
        object: Option<ShownObject>,
        change: impl FnOnce(&Description<'_>) -> ApprovalPreview,
    ) -> Result<(), Failure> {
        self.obligations.observe(draft);
        let rules = self.obligations.asks();
        let Some(first) = rules.first() else {
            return Ok(());
        };
        let fact = |name| draft.facts.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let binding = Binding {
            operation: self.operation.kind(),
            path: draft.resolved.clone().or_else(|| draft.path.clone()).unwrap_or_default(),
            to: draft.to.clone(),
            before: draft.before,
            buffer: fact(record::BUFFER_BEFORE),
            after: draft.after,
            moved: fact("moved"),
            object,
            attributes: draft
                .facts
                .as_ref()
                .and_then(|facts| facts.get(record::ATTRIBUTES))
                .cloned(),
            command: None,
            policy_sha256: self.context.policy.sha256().to_owned(),
            rules: rules.iter().map(|rule| rule.rule().to_owned()).collect(),
        };
        let Some(seq) = self.gateway.approvals.record_of(self.approved, self.session, &binding)
        else {
            let description = self.description();
            let shown = change(&description);
            let disclosed_part = description.disclosed_part(draft, &binding, &rules, &shown);
            let asking = ApprovalNeeded { binding, rules, change: shown.text, disclosed_part };
            return Err(Failure::Ask(Box::new(asking)));
        };
        record::decide(draft, first);
        record::approve(draft, &rules, seq);
        Ok(())
    }

    /// Returns the question in place of a failure where a rule asks. A failure reveals what is
    /// there, so an agent that may not look learns of it after an approval only.
    pub(super) fn mask_failure(&self, draft: &mut Draft, failure: Failure) -> Failure {
        let is_told = matches!(failure, Failure::Ask(_) | Failure::Log(_) | Failure::Answered(_));
        let asks = !self.obligations.asks().is_empty();
        if is_told
            || self.is_operators()
            || !asks
            || self.is_denied_by_name()
            || self.description().may_look(draft)
        {
            return failure;
        }
        self.require_approval(draft, None, |description| description.fails())
            .err()
            .unwrap_or(failure)
    }

    /// True if the requested names are enough to deny the request, whatever is there.
    fn is_denied_by_name(&self) -> bool {
        let (path, to) = (self.operation.path(), self.operation.new_path());
        self.authorizer().decide_request(path, to).is_err()
    }
}
