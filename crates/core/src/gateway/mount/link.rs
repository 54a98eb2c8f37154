//! Reads of links through a mount: the kernel follows a link by itself, so it is decided here.

use std::collections::BTreeMap;

use portcullis_audit::Hash;
use rustix::{fs::OFlags, io::Errno};
use serde_json::Value;

use super::MountView;
use crate::{
    gateway::{
        LinkDecisions, authorizer::decide_name, client::Client, record, transaction::Transaction,
    },
    model::{
        Access, AsOperation as _, Encoding, LineRange, OperationKind, WorkspacePath, request::Read,
    },
    ops::Findings,
    policy::{Decision, Effect, Object, ObjectKind, Policy},
    workspace::{Error, read_link},
};

const ACTION: &str = "read the link";
/// The reason why a link is not read where a rule asks.
const NOT_ASKED: &str = "nobody is asked about the target of a link";

impl MountView<'_> {
    /// Returns the target of the link at `path`; `None` as for a lookup. It leads to a path in the
    /// workspace, which may be hidden or missing.
    ///
    /// Decided by the link's own name alone, which has to be readable: the target may be hidden. The
    /// target is the link's content, so it counts as a read of what is labelled. Recorded, with the
    /// facts that `claimed` returns, if `is_new` returns true for the target, or for `None` where it
    /// is not disclosed; a denial also if a limit counts denials.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Loop`] and [`Error::Mount`] where it leads elsewhere, or the
    /// policy denies following it; [`Error::NotFound`] if it is no link. [`Error::Os`] if a
    /// connection that forbids it cannot be closed, or no record can be written.
    pub fn read_link(
        &self,
        path: &WorkspacePath,
        is_new: impl FnOnce(Option<&str>) -> bool,
        claimed: &dyn Fn() -> BTreeMap<String, Value>,
    ) -> Result<Option<String>, Error> {
        match self.lookup(path)? {
            None => return Ok(None),
            Some(seen) if seen.stat.kind != ObjectKind::Symlink => return Err(Error::NotFound),
            Some(_) => {}
        }
        let workspace = &self.gateway.workspace;
        let handle = match workspace.open_at(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(handle) => handle,
            Err(Error::NotFound | Error::NotADirectory | Error::Moved) => return Ok(None),
            Err(error) => return Err(error),
        };
        let target = read_link(&handle)?;
        let policy = self.gateway.policy();
        let following = LinkDecisions::listing(&policy, &self.session.agent);
        // The target's object is not revealed: the kernel looks it up by its own name.
        let led = following.target(workspace.view(), path, &target);
        let draft = |facts| {
            let op = OperationKind::Read.as_str();
            let mut draft = record::request(self.session, &policy, op, Some(path.as_str()));
            record::add_facts(&mut draft, facts);
            draft
        };
        let refusal = match led {
            Err(error @ (Error::Outside | Error::Loop | Error::Mount)) => {
                Some((error.clone(), error.into()))
            }
            _ => self.link_denial(&policy, path).map(|denial| (Error::Outside, denial.into())),
        };
        if let Some((error, failure)) = refusal {
            let is_counted = policy.limits(self.session.transport).denials.is_some();
            // A denial that a limit counts has a record of its own.
            if is_counted || is_new(None) {
                let meter = self.gateway.meter_of(self.session, &policy).ok().flatten();
                // An error of the log stops every other request.
                let _ = self.gateway.fail(draft(claimed()), failure, meter.as_deref());
            }
            return Err(error);
        }
        self.carry_labels(path, &policy, claimed)?;
        if is_new(Some(&target)) {
            let mut draft = draft(claimed());
            let read = self.query(OperationKind::Read, Access::Read, path);
            record::decide(&mut draft, &decide_name(&policy, &read));
            record::add_facts(&mut draft, [(record::TARGET.to_owned(), target.as_str().into())]);
            draft.before = Some(Hash::of(target.as_bytes()));
            draft.result = Some("ok".to_owned());
            let recorded = self.gateway.audit_log.record(draft);
            recorded.map_err(|_| Error::os(ACTION)(Errno::IO))?;
        }
        Ok(Some(target))
    }

    /// Returns the denial by which the link at `path` is not read, if there is one.
    fn link_denial(&self, policy: &Policy, path: &WorkspacePath) -> Option<Decision> {
        let list = self.query(OperationKind::List, Access::List, path);
        let read = self.query(OperationKind::Read, Access::Read, path);
        let link = Object { kind: ObjectKind::Symlink, links: 1, through_symlink: true };
        let mut decisions = [
            decide_name(policy, &list),
            decide_name(policy, &read),
            policy.evaluate_object(&list, &link),
        ]
        .into_iter();
        let decision = decisions.find(|decision| !decision.is_allow())?;
        Some(match decision.effect() {
            Effect::Ask => Decision::built_in_denial(decision.rule(), NOT_ASKED),
            Effect::Allow | Effect::Deny => decision,
        })
    }

    /// Has the session carry the labels of `path`, whose content is about to be disclosed without a
    /// request of its own.
    fn carry_labels(
        &self,
        path: &WorkspacePath,
        policy: &Policy,
        claimed: &dyn Fn() -> BTreeMap<String, Value>,
    ) -> Result<(), Error> {
        let labels = policy.labels().of(path);
        if labels.is_empty() {
            return Ok(());
        }
        let read =
            Read { path: path.clone(), range: LineRange::default(), encoding: Encoding::Base64 };
        let (findings, operation) = (Findings::default(), read.as_operation());
        let client = Client::default();
        let transaction =
            Transaction::new(self.gateway, policy, self.session, operation, client, &findings);
        let op = OperationKind::Read.as_str();
        let mut draft = record::request(self.session, policy, op, Some(path.as_str()));
        record::add_facts(&mut draft, claimed());
        if let Err(failure) = transaction.carry(&mut draft, &labels) {
            self.gateway.fail(draft, failure, None);
            return Err(Error::os(ACTION)(Errno::ACCESS));
        }
        Ok(())
    }
}
