//! Visibility for one agent's subscriptions of one kind. Subscribers with equal queries share a
//! scope, so that a thousand of them cost no more than one.

use std::sync::Arc;

use super::{
    queue::{Change, Queue, WatchEnd},
    tree::{Id, IdSet},
};
use crate::{
    model::{Access, AgentName, OperationKind, WatchQuery, WorkspacePath},
    policy::{Object, ObjectKind, Policy, Query, Visibility},
};

/// One agent's view for one query.
pub(super) struct Scope {
    agent: AgentName,
    query: WatchQuery,
    /// The directories whose events it receives.
    pub(super) entered: IdSet,
    pub(super) queues: Vec<Arc<Queue>>,
}

impl Scope {
    pub(super) fn new(agent: AgentName, query: WatchQuery) -> Self {
        Self { agent, query, entered: IdSet::default(), queues: Vec::new() }
    }

    pub(super) fn is(&self, agent: &AgentName, query: &WatchQuery) -> bool {
        self.agent == *agent && self.query == *query
    }

    /// Returns its start.
    pub(super) fn start(&self) -> &WorkspacePath {
        &self.query.path
    }

    pub(super) fn is_recursive(&self) -> bool {
        self.query.recursive
    }

    /// True if the start is beneath the directory at `path`, which is then watched even if it is
    /// hidden.
    pub(super) fn leads_through(&self, path: &WorkspacePath) -> bool {
        self.query.path != *path && self.query.path.is_within(path)
    }

    /// True if it receives events of the directory at `path`; `parent` is true if it receives those
    /// of its parent.
    pub(super) fn enters(&self, policy: &Policy, parent: bool, path: &WorkspacePath) -> bool {
        if *path == self.query.path {
            return true;
        }
        if !parent || !self.query.recursive || self.ignores(path) {
            return false;
        }
        match policy.visibility(&self.about(path), &object(ObjectKind::Directory)) {
            Visibility::Shown { .. } => true,
            Visibility::Closed => policy.may_allow_beneath(&self.about(path)),
            Visibility::Asked | Visibility::Denied => false,
        }
    }

    /// True if the entry at `path` in the directory `parent` may be reported to it.
    pub(super) fn shows(
        &self,
        policy: &Policy,
        parent: Id,
        path: &WorkspacePath,
        kind: ObjectKind,
    ) -> bool {
        let itself = *path == self.query.path;
        if !itself
            && (!self.entered.has(parent) || (kind == ObjectKind::Directory && self.ignores(path)))
        {
            return false;
        }
        matches!(policy.visibility(&self.about(path), &object(kind)), Visibility::Shown { .. })
    }

    /// True if the policy still allows the subscription's start.
    pub(super) fn holds(&self, policy: &Policy) -> bool {
        let about = self.about(&self.query.path);
        let decision = policy.evaluate(&about);
        decision.is_allow() || (decision.is_default_deny() && policy.may_allow_beneath(&about))
    }

    pub(super) fn report(&self, change: &Change) {
        for queue in &self.queues {
            queue.push(change);
        }
    }

    pub(super) fn end(&self, reason: &WatchEnd) {
        for queue in &self.queues {
            queue.end(reason.clone());
        }
    }

    fn ignores(&self, path: &WorkspacePath) -> bool {
        let name = path.file_name().unwrap_or_default();
        self.query.ignore.iter().any(|ignored| ignored == name)
    }

    fn about<'a>(&'a self, path: &'a WorkspacePath) -> Query<'a> {
        let (operation, access) = (OperationKind::Watch, Access::List);
        Query { agent: &self.agent, operation, access, path }
    }
}

fn object(kind: ObjectKind) -> Object {
    Object { kind, links: 1, through_symlink: false }
}
