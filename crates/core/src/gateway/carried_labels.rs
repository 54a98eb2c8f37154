//! Labels of what is shown, which its session carries from then on.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use portcullis_audit::{Draft, Kind, Receipt};
use serde_json::json;

use super::{
    Gateway,
    error::{self, Failure},
    labels::Carrier,
    record,
    reply::{Attempt, Reply},
    transaction::Transaction,
};
use crate::{
    audit_log,
    model::{Session, WorkspacePath},
    ops::Sealed,
    policy::{Decision, Labelled},
    workspace::Walked,
};

/// The operation in the record.
const LABEL: &str = "label";
/// The fact that names the labels of a record's content.
const LABELS: &str = "labels";
/// The fact that names the labels that the author of a change carried.
const CARRIES: &str = "carries";
/// The rule that refuses to disclose what an open connection could carry away.
const RULE: &str = "network.whenRead";
/// The timeout of a disclosure that waits for connections to be closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Gateway {
    /// Joins two gateways that serve the same sandbox from now on: what is shown by way of either
    /// counts as shown by way of both, and this gateway's policy restricts the connections that
    /// `other` decides on.
    pub fn share_sandbox(&mut self, other: &Self) {
        self.carriers = Arc::clone(&other.carriers);
        let mut further = other.further.write().unwrap_or_else(PoisonError::into_inner);
        further.push(Arc::clone(&self.policy));
    }

    /// Returns the labels that a session carries now, each with the path that was read.
    pub fn labels_of(&self, session: &Session) -> BTreeMap<String, String> {
        let reads = self.carrier(session).reads();
        reads.paths().map(|(id, path)| (id.to_owned(), path.to_owned())).collect()
    }

    /// Has a session carry labels before its program starts, because the program may read a copy of
    /// labelled content. `source` names the copy in the record.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn carry_copied(
        &self,
        session: &Session,
        labels: &Labelled,
        source: &str,
    ) -> Result<(), error::Error> {
        self.carrier(session).add(labels, |new| {
            let paths: BTreeMap<_, _> = new.iter().map(|(id, path)| (id, path.as_str())).collect();
            let facts = [(LABELS.to_owned(), json!(paths)), ("by".to_owned(), json!(source))];
            let receipt = self.note_durably(session, LABEL, facts.into())?;
            Ok((receipt.seq, self.audit_log.boot().to_owned()))
        })
    }

    /// Returns the carrier of the labels of what a session is shown. All sessions of a sandbox are
    /// one program's; agents that share a gateway have nothing in common.
    pub(super) fn carrier(&self, session: &Session) -> Arc<Carrier> {
        self.carriers.of(if self.slots.is_some() { session.agent.as_str() } else { "" })
    }
}

impl Transaction<'_> {
    /// Discloses what was decided on: the session carries its labels and what these forbid is
    /// over, then it is recorded, with whatever `record_more` records beside it, and only then
    /// opened.
    pub(super) fn open<T>(
        &self,
        draft: &mut Draft,
        sealed: Sealed<T>,
        record_more: impl FnOnce(&Receipt) -> Result<(), audit_log::Error>,
    ) -> Attempt<T> {
        let disclosable = sealed.carried(|labels| self.carry(draft, labels))?;
        self.confirm()?;
        draft.result = Some("ok".to_owned());
        // Should the log refuse, there is nothing left to record.
        let grant = self.gateway.audit_log.record_for(std::mem::take(draft), disclosable.seal())?;
        record_more(grant.receipt())?;
        match disclosable.disclose(grant) {
            (receipt, Ok(output)) => Ok(Reply { receipt, output }),
            // The record is there.
            (receipt, Err(error)) => {
                Err(Failure::Answered(error::render(&error).with_receipt(receipt)))
            }
        }
    }

    /// Has the session carry labels of what is about to be disclosed. When this returns they
    /// are durably on record, and every connection that they deny is closed.
    ///
    /// # Errors
    /// Nothing may be disclosed: no record can be written, or a connection is not closed in time.
    pub(super) fn carry(&self, draft: &mut Draft, labels: &Labelled) -> Result<(), Failure> {
        if labels.is_empty() {
            return Ok(());
        }
        let carrier = self.gateway.carrier(self.session);
        carrier.add(labels, |new| self.record_labels(draft, new))?;
        // Also of those that were carried before: another read of them may still wait.
        if !carrier.tunnels.close_denied(Instant::now() + CLOSE_TIMEOUT) {
            let reason = "a connection that may not be open once this is read cannot be closed";
            return Err(Decision::built_in_denial(RULE, reason).into());
        }
        let ids: Vec<_> = labels.ids().collect();
        draft.facts.get_or_insert_default().insert(LABELS.to_owned(), json!(ids));
        Ok(())
    }

    fn record_labels(
        &self,
        request: &Draft,
        labels: &Labelled,
    ) -> Result<(u64, String), audit_log::Error> {
        let path = request.path.as_deref();
        let mut draft = record::request(self.session, self.context.policy, LABEL, path);
        let paths = labels.iter().map(|(id, path)| (id, path.as_str()));
        let paths: BTreeMap<_, _> = paths.collect();
        let mut facts = request.facts.clone().unwrap_or_default();
        facts.insert(LABELS.to_owned(), json!(paths));
        facts.insert("by".to_owned(), json!(request.op));
        draft.facts = Some(facts);
        draft.result = Some("ok".to_owned());
        let audit_log = &self.gateway.audit_log;
        let receipt = audit_log.note(Kind::Decision, draft, true)?;
        Ok((receipt.seq, audit_log.boot().to_owned()))
    }

    /// Carries the labels of what a rename takes out of their reach: it can be read afterwards
    /// without them.
    ///
    /// # Errors
    /// As [`Transaction::carry`].
    pub(super) fn carry_moved(
        &self,
        draft: &mut Draft,
        from: &WorkspacePath,
        to: &WorkspacePath,
        tree: &[Walked],
    ) -> Result<(), Failure> {
        let labels = self.context.policy.labels();
        if labels.is_empty() {
            return Ok(());
        }
        let mut lost = Labelled::default();
        for path in std::iter::once(from).chain(tree.iter().map(|walked| &walked.path)) {
            let after = path.rebase(from, to).map(|path| labels.of(&path)).unwrap_or_default();
            lost.unite(labels.of(path).filtered(|id| !after.ids().any(|kept| kept == id)));
        }
        self.carry(draft, &lost)
    }

    /// Writes into the record of a change which labels the session carries.
    pub(super) fn note_carried(&self, draft: &mut Draft) {
        let reads = self.gateway.carrier(self.session).reads();
        if !reads.ids().is_empty() {
            draft.facts.get_or_insert_default().insert(CARRIES.to_owned(), json!(reads.ids()));
        }
    }
}
