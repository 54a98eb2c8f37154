//! The view that a mount has of the workspace, besides the requests that it sends: names,
//! attributes, and the lengths of what reads would return.
//!
//! Lookups and lists are decided as `list` requests are. An entry that may not be listed is
//! missing, whatever is there; only a lookup that its name denies has a record. Reads of links are
//! recorded.

mod link;

use std::{cell::OnceCell, collections::BTreeMap, time::Instant};

use portcullis_audit::Draft;
use rustix::{fs::OFlags, io::Errno};
use serde_json::Value;

use super::{
    Gateway,
    authorizer::decide_name,
    client::Client,
    error::{Error as GatewayError, HIDDEN, UNSEEN},
    record,
    request::Request,
    transaction::Transaction,
};
use crate::{
    model::{
        Access, AsOperation as _, Encoding, LineRange, OperationKind, Session, WorkspacePath,
        request::Read,
    },
    ops::{self, Findings, Follower, prepare},
    policy::{Decision, Effect, Object, ObjectKind, Policy, Query, Secrets, Visibility},
    workspace::{Error, Kinds, Stat, TempName},
};

/// The workspace as the mount of a session shows it.
#[derive(Debug, Clone, Copy)]
pub struct MountView<'g> {
    gateway: &'g Gateway,
    session: &'g Session,
}

/// An entry that the mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisibleEntry {
    /// Its facts; a link is not followed.
    pub stat: Stat,
    /// True of a directory that nothing allows to be listed, and that is shown because something
    /// beneath it may be.
    pub traverse: bool,
}

/// The fact of a record of a lookup.
const LOOKUP: &str = "lookup";

/// The fact of the record of a write that was too large: the size of the file.
const SIZE: &str = "size";

/// A directory, to which rules about extensions do not apply: what the policy shows at a name, it
/// shows as a directory.
const DIRECTORY: Object = Object { kind: ObjectKind::Directory, links: 1, through_symlink: false };

impl Gateway {
    /// Returns the workspace as the mount of `session` shows it.
    pub fn mount_view<'g>(&'g self, session: &'g Session) -> MountView<'g> {
        MountView { gateway: self, session }
    }
}

impl MountView<'_> {
    /// Returns the entry at `path`; `None` if nothing is there, if the agent may not list it, or if
    /// a link is on the way. The root is always shown.
    ///
    /// # Errors
    /// Of the system, for entries that the agent may list, and if the log takes no more records.
    pub fn lookup(&self, path: &WorkspacePath) -> Result<Option<VisibleEntry>, Error> {
        self.gateway.audit_log.check().map_err(|_| Error::os("record what is shown")(Errno::IO))?;
        let policy = self.gateway.policy();
        // The name is decided on before anything is looked at.
        let Some(traverse) = self.shows_directory(&policy, path) else { return Ok(None) };
        let stat = match self.stat(path) {
            Ok(stat) => stat,
            Err(Error::NotFound | Error::NotADirectory | Error::Moved | Error::Mount) => {
                return Ok(None);
            }
            // The decision depends on the kind of the entry, which is unknown, so the entry is
            // hidden.
            Err(_) if traverse => return Ok(None),
            Err(error) => return Err(error),
        };
        if stat.kind == ObjectKind::Directory {
            return Ok(Some(VisibleEntry { stat, traverse }));
        }
        let visibility = policy
            .visibility(&self.query(OperationKind::List, Access::List, path), &stat.object(false));
        let is_shown = matches!(visibility, Visibility::Shown { .. });
        Ok(is_shown.then_some(VisibleEntry { stat, traverse: false }))
    }

    /// Returns the entries of the directory at `path` that [`MountView::lookup`] would show, sorted
    /// by name; `None` as for a lookup. Each name, hidden or not, takes memory while the directory
    /// is read: `room` is called before with the length of the name.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; [`Error::TooLarge`] past a million entries, and where `room`
    /// returns false; errors of the system.
    pub fn list(
        &self,
        path: &WorkspacePath,
        room: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<(String, ObjectKind)>>, Error> {
        match self.lookup(path)? {
            None => return Ok(None),
            Some(seen) if seen.stat.kind != ObjectKind::Directory => {
                return Err(Error::NotADirectory);
            }
            Some(_) => {}
        }
        let policy = self.gateway.policy();
        let kinds = match self.gateway.workspace.open_directory(path) {
            Ok(directory) => Kinds::read_within(directory, room)?,
            Err(Error::NotFound | Error::NotADirectory | Error::Moved) => return Ok(None),
            Err(error) => return Err(error),
        };
        let query = self.query(OperationKind::List, Access::List, path);
        let (directory_visibility, mut entries) = (policy.directory_visibility(&query), Vec::new());
        if !self.is_served(&policy) {
            return Ok(Some(entries));
        }
        for (name, kind) in kinds.iter() {
            // A mount point, or removed meanwhile.
            let Some(kind) = kind else { continue };
            let entry = OnceCell::new();
            let entry = || entry.get_or_init(|| path.join(name).ok()).as_ref();
            let object = Object { kind, links: 1, through_symlink: false };
            let is_shown = match directory_visibility.of(name, entry, &object) {
                Some(Visibility::Shown { .. }) => true,
                Some(Visibility::Closed) if kind == ObjectKind::Directory => {
                    entry().is_some_and(|path| policy.may_allow_beneath(&Query { path, ..query }))
                }
                Some(Visibility::Asked | Visibility::Closed | Visibility::Denied) | None => false,
            };
            if is_shown {
                entries.push((name.to_owned(), kind));
            }
        }
        Ok(Some(entries))
    }

    /// Returns the length of what a read of the file at `path` returns, where `stat` is the result
    /// of a lookup: its size, unless secrets in it are redacted. Of a file that may not be read it
    /// is the size.
    ///
    /// # Errors
    /// [`Error::Moved`] if `stat` is out of date, or `follower` withdraws the request; errors of
    /// the system.
    pub fn view_size(
        &self,
        path: &WorkspacePath,
        stat: &Stat,
        follower: &dyn Follower,
    ) -> Result<u64, Error> {
        let policy = self.gateway.policy();
        let redacts = policy.secrets().is_some_and(Secrets::redacts);
        let most = policy.max_size(Access::Read, self.session.transport);
        if stat.kind != ObjectKind::File || !redacts || stat.size > most {
            return Ok(stat.size);
        }
        let (range, encoding) = (LineRange::default(), Encoding::Base64);
        let read = Read { path: path.clone(), range, encoding };
        let (findings, operation) = (Findings::default(), read.as_operation());
        let client = Client { follower, ..Client::default() };
        let transaction =
            Transaction::new(self.gateway, &policy, self.session, operation, client, &findings);
        let Ok(permit) = transaction.permit(&mut Draft::default()) else { return Ok(stat.size) };
        if !transaction.obligations.asks().is_empty() {
            return Ok(stat.size);
        }
        if permit.path() != path || permit.stat().map(Stat::version) != Some(stat.version()) {
            return Err(Error::Moved);
        }
        match prepare::read(&transaction.context, &permit, range, encoding) {
            Ok(sealed) => Ok(sealed.facts().bytes.unwrap_or(stat.size)),
            Err(ops::Error::Workspace(error)) => Err(error),
            Err(ops::Error::Cancelled) => Err(Error::Moved),
            Err(_) => Ok(stat.size),
        }
    }

    /// Decides again whether the agent may read the file at `path`, of which it read this version
    /// under this policy before, and counts that as a read. False is no denial: a `read` request
    /// gives the reason and records it.
    pub fn repeat(&self, path: &WorkspacePath, stat: &Stat) -> bool {
        let begun = Instant::now();
        let policy = self.gateway.policy();
        let query = self.query(OperationKind::Read, Access::Read, path);
        let may_be_read = !TempName::is_reserved(path)
            && stat.kind == ObjectKind::File
            && matches!(policy.visibility(&query, &stat.object(false)), Visibility::Shown { .. });
        let begins = || {
            let meter = self.gateway.meter_of(self.session, &policy);
            meter.and_then(|meter| meter.map_or(Ok(()), |meter| meter.begin(begun))).is_ok()
        };
        // Content with labels that are not carried yet was another file when it was given.
        let is_carried = || {
            let reads = self.gateway.carrier(self.session).reads();
            policy.labels().of(path).ids().all(|id| reads.ids().contains(id))
        };
        let is_recorded = self.gateway.audit_log.check().is_ok();
        let is_allowed = is_recorded && may_be_read && is_carried() && begins();
        if let (true, Some(counter)) = (is_allowed, &self.gateway.counter) {
            counter.answered(OperationKind::Read.as_str(), begun.elapsed());
        }
        is_allowed
    }

    /// Decides again on a read of the file at `path` that `rule` denied before. True if it still
    /// denies it, by the name or the object, and no limit counts denials: a request would return
    /// and record the same.
    pub fn repeats_denial(&self, path: &WorkspacePath, stat: &Stat, rule: &str) -> bool {
        let policy = self.gateway.policy();
        let query = self.query(OperationKind::Read, Access::Read, path);
        let object = policy.evaluate_object(&query, &stat.object(false));
        let denies = |decision: &Decision| decision.is_deny() && decision.rule() == rule;
        self.is_served(&policy)
            && policy.limits(self.session.transport).denials.is_none()
            && [decide_name(&policy, &query), object].iter().any(denies)
    }

    /// Decides on a change that is yet to come: on making or changing the entry at `at`, by its
    /// name and, if it exists, by its object. A name that may not be listed is not made, because an
    /// error would reveal whether it exists. A denial is recorded as one of `request`, with
    /// `facts`; an allowed request is decided on again.
    ///
    /// # Errors
    /// The denial.
    pub fn admit<R: Request + ?Sized>(
        &self,
        request: &R,
        at: &WorkspacePath,
        existing: Option<&Stat>,
        facts: impl FnOnce() -> BTreeMap<String, Value>,
    ) -> Result<(), GatewayError> {
        let (policy, operation) = (self.gateway.policy(), request.as_operation());
        let write = self.query(operation.kind(), Access::Write, at);
        let denial = self.name_denial(&policy, at);
        let object = existing.map(|stat| policy.evaluate_object(&write, &stat.object(false)));
        let mut asked = [Some(decide_name(&policy, &write)), object].into_iter().flatten();
        let denial = denial.or_else(|| asked.find(|one| one.effect() == Effect::Deny));
        let Some(denial) = denial else { return Ok(()) };
        let mut draft = record::operation(self.session, &policy, operation);
        record::add_facts(&mut draft, facts());
        let meter = self.gateway.meter_of(self.session, &policy).ok().flatten();
        Err(self.gateway.fail(draft, denial.into(), meter.as_deref()))
    }

    /// True if a limit counts the denials of the session, and has not closed it: each denial is
    /// recorded then.
    pub fn counts_denials(&self) -> bool {
        let policy = self.gateway.policy();
        policy.limits(self.session.transport).denials.is_some() && self.is_served(&policy)
    }

    /// Denies a write of the file at `path` that makes it `size` bytes long, more than the mount
    /// takes. Recorded, with the facts that `claimed` returns.
    pub fn deny_size(
        &self,
        path: &WorkspacePath,
        size: u64,
        claimed: impl FnOnce() -> BTreeMap<String, Value>,
    ) -> GatewayError {
        let policy = self.gateway.policy();
        let op = OperationKind::Write.as_str();
        let mut draft = record::request(self.session, &policy, op, Some(path.as_str()));
        record::add_facts(&mut draft, claimed());
        record::add_facts(&mut draft, [(SIZE.to_owned(), size.into())]);
        let meter = self.gateway.meter_of(self.session, &policy).ok().flatten();
        let denial = policy.deny_write_of_size(size);
        self.gateway.fail(draft, denial.into(), meter.as_deref())
    }

    /// Records that the name at `path` is hidden, if it is, and returns that. It is decided from
    /// the name alone, and nothing at `path` is looked at. A record is written unless `facts`
    /// returns `None`. It counts against no limit: programs look for names wherever they are.
    pub fn deny_lookup(
        &self,
        path: &WorkspacePath,
        facts: impl FnOnce() -> Option<BTreeMap<String, Value>>,
    ) -> bool {
        let policy = self.gateway.policy();
        let Some(denial) = self.name_denial(&policy, path) else { return false };
        if TempName::is_reserved(path)
            || !self.is_served(&policy)
            || self.shows_directory(&policy, path).is_some()
        {
            return false;
        }
        if let Some(facts) = facts() {
            let op = OperationKind::List.as_str();
            let mut draft = record::request(self.session, &policy, op, Some(path.as_str()));
            record::add_facts(&mut draft, facts);
            record::add_facts(&mut draft, [(LOOKUP.to_owned(), true.into())]);
            // An error of the log stops every other request.
            let _ = self.gateway.fail(draft, denial.into(), None);
        }
        true
    }

    /// Returns the denial by which the name at `path` may not be listed, if there is one.
    fn name_denial(&self, policy: &Policy, path: &WorkspacePath) -> Option<Decision> {
        let list = decide_name(policy, &self.query(OperationKind::List, Access::List, path));
        match list.effect() {
            Effect::Allow => None,
            Effect::Deny => Some(list),
            Effect::Ask => Some(Decision::built_in_denial(HIDDEN, UNSEEN)),
        }
    }

    /// Returns the version of the policy in force.
    pub fn policy_id(&self) -> u64 {
        self.gateway.policy().version()
    }

    /// Decides on a directory at `path`: `None` if it is hidden, `Some(true)` if it is shown only
    /// to be passed.
    fn shows_directory(&self, policy: &Policy, path: &WorkspacePath) -> Option<bool> {
        let query = self.query(OperationKind::List, Access::List, path);
        let visibility = policy.visibility(&query, &DIRECTORY);
        let is_shown = matches!(visibility, Visibility::Shown { .. });
        if path.is_root() {
            return Some(!is_shown);
        }
        if TempName::is_reserved(path) || !self.is_served(policy) {
            return None;
        }
        let is_passed = visibility == Visibility::Closed && policy.may_allow_beneath(&query);
        (is_shown || is_passed).then_some(!is_shown)
    }

    /// True if the session is not closed.
    fn is_served(&self, policy: &Policy) -> bool {
        let meter = self.gateway.meter_of(self.session, policy);
        meter.and_then(|meter| meter.map_or(Ok(()), |meter| meter.open())).is_ok()
    }

    fn stat(&self, path: &WorkspacePath) -> Result<Stat, Error> {
        Stat::of(self.gateway.workspace.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?)
    }

    fn query<'q>(
        &'q self,
        operation: OperationKind,
        access: Access,
        path: &'q WorkspacePath,
    ) -> Query<'q> {
        Query { agent: &self.session.agent, operation, access, path }
    }
}

#[cfg(test)]
mod tests;
