//! What one agent's subscriptions of one kind may see. Subscribers that ask for
//! the same share a scope, so that a thousand of them cost no more than one.

use std::sync::Arc;

use super::{
    queue::{Change, Queue, WatchEnd},
    tree::{Id, Places},
};
use crate::{
    model::{Access, AgentName, OperationKind, WatchQuery, WorkspacePath},
    policy::{Object, ObjectKind, Policy, Query, Sight},
};

/// One agent's view of one query.
pub(super) struct Scope {
    agent: AgentName,
    query: WatchQuery,
    /// The directories of which it is told what happens in them.
    pub(super) entered: Places,
    pub(super) queues: Vec<Arc<Queue>>,
}

impl Scope {
    pub(super) fn new(agent: AgentName, query: WatchQuery) -> Self {
        Self { agent, query, entered: Places::default(), queues: Vec::new() }
    }

    pub(super) fn is(&self, agent: &AgentName, query: &WatchQuery) -> bool {
        self.agent == *agent && self.query == *query
    }

    /// Where it begins.
    pub(super) fn start(&self) -> &WorkspacePath {
        &self.query.path
    }

    pub(super) fn is_recursive(&self) -> bool {
        self.query.recursive
    }

    /// Whether the start lies beneath the directory at `path`, which then has
    /// to be watched whatever may be told of it.
    pub(super) fn leads_through(&self, path: &WorkspacePath) -> bool {
        self.query.path != *path && self.query.path.is_within(path)
    }

    /// Whether it is told what happens in the directory at `path`, whose parent
    /// it enters or not.
    pub(super) fn enters(&self, policy: &Policy, parent: bool, path: &WorkspacePath) -> bool {
        if *path == self.query.path {
            return true;
        }
        if !parent || !self.query.recursive || self.ignores(path) {
            return false;
        }
        match policy.sight(&self.about(path), &object(ObjectKind::Directory)) {
            Sight::Shown { .. } => true,
            Sight::Closed => policy.may_allow_beneath(&self.about(path)),
            Sight::Asked | Sight::Denied => false,
        }
    }

    /// Whether it may be told of the entry at `path` in the directory `parent`.
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
        matches!(policy.sight(&self.about(path), &object(kind)), Sight::Shown { .. })
    }

    /// Whether the policy still lets the subscription begin where it does.
    pub(super) fn holds(&self, policy: &Policy) -> bool {
        let about = self.about(&self.query.path);
        let decision = policy.evaluate(&about);
        decision.is_allow() || (decision.is_default_deny() && policy.may_allow_beneath(&about))
    }

    pub(super) fn tell(&self, change: &Change) {
        for queue in &self.queues {
            queue.push(change);
        }
    }

    pub(super) fn end(&self, why: &WatchEnd) {
        for queue in &self.queues {
            queue.end(why.clone());
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
