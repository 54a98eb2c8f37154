//! What one agent's subscriptions of one kind may see. Subscribers that ask for
//! the same share a scope, so that a thousand of them cost no more than one.

use std::{collections::HashSet, sync::Arc};

use super::{
    queue::{Event, Queue, WatchEnd},
    tree::{Id, Places},
};
use crate::{
    model::{Access, AgentName, OperationKind, WatchQuery, WorkspacePath},
    policy::{Object, ObjectKind, Policy, Query, Sight},
    workspace::WatchId,
};

/// Most directories that are remembered though they were let go of.
const MOST_LEFT: usize = 65_536;

/// One agent's view of one query.
pub(super) struct Scope {
    agent: AgentName,
    query: WatchQuery,
    /// The directories of which it is told what happens in them.
    pub(super) entered: Places,
    pub(super) queues: Vec<Arc<Queue>>,
    /// Whether what it was told may be wrong.
    pub(super) doubted: bool,
    /// Whether a directory that it enters was let go of since this was looked at last.
    pub(super) uprooted: bool,
    /// Watches of directories that it entered and that were let go of since it was
    /// quiet: the kernel may have something to say of them yet.
    pub(super) left: HashSet<WatchId>,
}

impl Scope {
    pub(super) fn new(agent: AgentName, query: WatchQuery) -> Self {
        let (entered, queues) = (Places::default(), Vec::new());
        Self {
            agent,
            query,
            entered,
            queues,
            doubted: false,
            uprooted: false,
            left: HashSet::new(),
        }
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

    /// Whether it may be told of the entry at `path` in the directory
    /// `parent`, under which the places are those in `entered`.
    pub(super) fn shows(
        &self,
        policy: &Policy,
        entered: &Places,
        parent: Id,
        path: &WorkspacePath,
        kind: ObjectKind,
    ) -> bool {
        let itself = *path == self.query.path;
        if !itself
            && (!entered.has(parent) || (kind == ObjectKind::Directory && self.ignores(path)))
        {
            return false;
        }
        matches!(policy.sight(&self.about(path), &object(kind)), Sight::Shown { .. })
    }

    /// Whether it makes a difference to it what is at `path` in the directory `parent`.
    pub(super) fn minds(&self, policy: &Policy, parent: Id, path: &WorkspacePath) -> bool {
        let shows = |kind| self.shows(policy, &self.entered, parent, path, kind);
        *path == self.query.path
            || self.leads_through(path)
            || shows(ObjectKind::File)
            || shows(ObjectKind::Directory)
            || self.enters(policy, self.entered.has(parent), path)
    }

    /// Takes note that the directory `id` is let go of, or another has its place.
    pub(super) fn uproot(&mut self, id: Id, watch: Option<WatchId>) {
        if self.entered.has(id) {
            self.uprooted = true;
            self.left.extend(watch);
        }
    }

    /// Forgets of which directories it let go of when there are too many; whether
    /// there were.
    pub(super) fn forgot(&mut self) -> bool {
        let many = self.left.len() > MOST_LEFT;
        if many {
            self.left.clear();
        }
        many
    }

    /// Whether the policy still lets the subscription begin where it does.
    pub(super) fn holds(&self, policy: &Policy) -> bool {
        let about = self.about(&self.query.path);
        let decision = policy.evaluate(&about);
        decision.is_allow() || (decision.is_default_deny() && policy.may_allow_beneath(&about))
    }

    pub(super) fn tell(&self, event: &Event) {
        for queue in &self.queues {
            queue.push(event);
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
