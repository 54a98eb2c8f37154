//! Links that are followed for an agent while a path is resolved. Following a link reveals it,
//! whatever the result.

use super::{
    authorizer::{Authorizer, decide_name},
    error::never_served,
    link_targets::climbs_later,
    search::{beginning, begun},
};
use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, Policy, Query},
    view::WorkspaceView,
    workspace::{self, Follow, Resolved, VisitedName},
};

/// The request for which a path is resolved.
#[derive(Debug, Clone, Copy)]
pub struct LinkDecisions<'a> {
    /// The policy in force.
    pub policy: &'a Policy,
    /// The agent that sent the request.
    pub agent: &'a AgentName,
    /// The operation.
    pub operation: OperationKind,
    /// The accesses of the operation that are decided on.
    pub accesses: &'a [Access],
    /// True if the request needs an approval whatever is on the way.
    pub is_asked: bool,
}

impl<'a> LinkDecisions<'a> {
    /// Returns the request of an agent that lists the target of a link.
    pub(super) fn listing(policy: &'a Policy, agent: &'a AgentName) -> Self {
        let (operation, accesses) = (OperationKind::List, &[Access::List][..]);
        Self { policy, agent, operation, accesses, is_asked: false }
    }

    /// Resolves `target` as the target of a link at `link`. Nobody is asked about a target, so a
    /// name under a rule that asks is not followed: it is as one that is hidden.
    ///
    /// # Errors
    /// As [`LinkDecisions::resolve`].
    pub(super) fn target(
        self,
        workspace: WorkspaceView<'_>,
        link: &WorkspacePath,
        target: &str,
    ) -> Result<Resolved, workspace::Error> {
        workspace.resolve_target(link, target, &mut |visited| self.is_shown(visited))
    }

    /// True if the component of a link's target may be followed.
    pub(super) fn is_shown(&self, visited: VisitedName<'_>) -> bool {
        match visited {
            VisitedName::Name(name) | VisitedName::Left(name) => self.is_open(name),
            VisitedName::Link(link) => self.may_reveal(link),
        }
    }
}

impl LinkDecisions<'_> {
    /// Resolves `path` as the gateway does for this request. `followed` gets the names to which
    /// links lead, which are decided on like the requested one.
    ///
    /// # Errors
    /// As [`WorkspaceView::resolve`].
    pub fn resolve(
        mut self,
        workspace: WorkspaceView<'_>,
        path: &WorkspacePath,
        follow: Follow,
        followed: &mut Vec<WorkspacePath>,
    ) -> Result<Resolved, workspace::Error> {
        use OperationKind as O;
        let begins = matches!(self.operation, O::Glob | O::Grep | O::Watch);
        workspace.resolve_with(path, follow, &mut |visited| {
            let visited = if begins { beginning(visited) } else { visited };
            let follows = self.follows(visited);
            if let (true, VisitedName::Name(name)) = (follows, visited) {
                followed.push(name.clone());
            }
            follows
        })
    }

    /// Returns the decision on the name at which a search or a subscription begins; `decision` is
    /// that of the name itself.
    pub fn beginning(policy: &Policy, query: &Query<'_>, decision: Decision) -> Decision {
        begun(policy, query, decision)
    }

    /// Returns the denial of what the workspace refuses, whatever the policy says; `None` when an
    /// error is no decision.
    pub fn refused(error: &workspace::Error) -> Option<Decision> {
        never_served(error)
    }

    /// Refuses a link at `link` that leads out of the workspace, or would if a name on its way
    /// became a link.
    ///
    /// # Errors
    /// [`workspace::Error::Outside`], [`workspace::Error::Mount`], [`workspace::Error::Loop`] and
    /// errors of the system.
    pub(super) fn check_target(
        policy: &Policy,
        agent: &AgentName,
        workspace: WorkspaceView<'_>,
        link: &WorkspacePath,
        target: &str,
    ) -> Result<(), workspace::Error> {
        if climbs_later(target) {
            return Err(workspace::Error::Outside);
        }
        // Resolved as the agent would resolve it, which may list the target or not.
        LinkDecisions::listing(policy, agent).target(workspace, link, target).map(drop)
    }

    /// True if the visited component may be followed.
    fn follows(&mut self, visited: VisitedName<'_>) -> bool {
        match visited {
            // A name that asks does so even when nothing is there.
            VisitedName::Name(name) => {
                let asks = self.decisions(name).any(|decision| decision.is_ask());
                self.is_asked |= asks;
                self.decisions(name).all(|decision| !decision.is_deny())
            }
            // A name that a `..` leaves asks nobody when nothing is there.
            VisitedName::Left(name) => self.is_open(name),
            VisitedName::Link(link) => self.may_reveal(link),
        }
    }

    /// True if the agent may know what is at the name of a link that its request only passes. A
    /// link that no rule denies and none allows needs no permission of its own, as directories on
    /// the way need none.
    fn may_reveal(&self, link: &WorkspacePath) -> bool {
        let listed = self.decide(OperationKind::List, Access::List, link);
        listed.is_allow()
            || (listed.is_ask() && self.is_asked)
            || listed.is_default_deny()
            || self.is_open(link)
    }

    fn is_open(&self, name: &WorkspacePath) -> bool {
        self.decisions(name).all(|decision| decision.is_allow())
    }

    fn decisions(&self, name: &WorkspacePath) -> impl Iterator<Item = Decision> {
        self.accesses.iter().map(|access| self.decide(self.operation, *access, name))
    }

    fn decide(&self, operation: OperationKind, access: Access, path: &WorkspacePath) -> Decision {
        decide_name(self.policy, &Query { agent: self.agent, operation, access, path })
    }
}

impl Authorizer<'_> {
    /// True if the visited component may be followed for these accesses. Collects the decisions on
    /// names that are followed, which may ask.
    pub(super) fn follows(&self, accesses: &[Access], visited: VisitedName<'_>) -> bool {
        let Self { policy, agent, operation, obligations, .. } = *self;
        let is_asked = !obligations.asks().is_empty();
        let mut following = LinkDecisions { policy, agent, operation, accesses, is_asked };
        if !following.follows(visited) {
            return false;
        }
        if let VisitedName::Name(name) | VisitedName::Left(name) = visited {
            following.decisions(name).for_each(|decision| obligations.add(&decision));
        }
        if let VisitedName::Name(name) = visited {
            obligations.follow(name);
        }
        true
    }
}
