//! Which links are followed for an agent on the way to what a path means. That they are
//! tells of them, whatever comes of it.

use super::{
    authorizer::{Authorizer, named},
    error::never_served,
    search::{beginning, begun},
};
use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, Policy, Query},
    view::WorkspaceView,
    workspace::{self, Follow, Met, Resolved},
};

/// For whom and for what a path is looked up.
#[derive(Debug, Clone, Copy)]
pub struct Following<'a> {
    /// The policy in force.
    pub policy: &'a Policy,
    /// Who asks.
    pub agent: &'a AgentName,
    /// What for.
    pub operation: OperationKind,
    /// Which of the accesses that the operation needs.
    pub accesses: &'a [Access],
    /// Whether a person is asked about the request whatever it meets.
    pub is_asked: bool,
}

impl<'a> Following<'a> {
    /// For an agent that looks where a link leads.
    pub(super) fn listing(policy: &'a Policy, agent: &'a AgentName) -> Self {
        let (operation, accesses) = (OperationKind::List, &[Access::List][..]);
        Self { policy, agent, operation, accesses, is_asked: false }
    }

    /// Looks where a link at `link` with this target leads.
    ///
    /// # Errors
    /// As [`Following::resolve`].
    pub(super) fn target(
        mut self,
        workspace: WorkspaceView<'_>,
        link: &WorkspacePath,
        target: &str,
    ) -> Result<Resolved, workspace::Error> {
        workspace.resolve_target(link, target, &mut |met| self.follows(met))
    }
}

impl Following<'_> {
    /// Resolves `path` as the gateway does for this request.
    ///
    /// # Errors
    /// As [`WorkspaceView::resolve`].
    pub fn resolve(
        mut self,
        workspace: WorkspaceView<'_>,
        path: &WorkspacePath,
        follow: Follow,
    ) -> Result<Resolved, workspace::Error> {
        use OperationKind as O;
        let begins = matches!(self.operation, O::Glob | O::Grep | O::Watch);
        workspace.resolve_heeding(path, follow, &mut |met| {
            self.follows(if begins { beginning(met) } else { met })
        })
    }

    /// The decision about the name at which a search or a subscription begins, which
    /// `decision` is about.
    pub fn beginning(policy: &Policy, query: &Query<'_>, decision: Decision) -> Decision {
        begun(policy, query, decision)
    }

    /// The decision about what the workspace refuses, whatever the policy says; `None`
    /// when an error is no decision.
    pub fn refused(error: &workspace::Error) -> Option<Decision> {
        never_served(error)
    }

    /// Whether what is met on the way may be followed.
    fn follows(&mut self, met: Met<'_>) -> bool {
        match met {
            // One that asks does so, too, when nothing is there.
            Met::Name(name) => {
                let asks = self.decisions(name).any(|decision| decision.is_ask());
                self.is_asked |= asks;
                self.decisions(name).all(|decision| !decision.is_deny())
            }
            // That asks nobody when nothing is there.
            Met::Left(name) => self.is_open(name),
            Met::Link(link) => self.tells_of(link),
        }
    }

    /// Whether the agent may know what is at the name of a link that its request only
    /// passes. What nothing allows, but no rule denies, needs no permission of its own, as
    /// directories on the way need none.
    fn tells_of(&self, link: &WorkspacePath) -> bool {
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
        named(self.policy, &Query { agent: self.agent, operation, access, path })
    }
}

impl Authorizer<'_> {
    /// Whether what is met on the way to an object may be followed for these accesses.
    /// Takes note of the names that are, of which a person may have to be asked then.
    pub(super) fn follows(&self, accesses: &[Access], met: Met<'_>) -> bool {
        let Self { policy, agent, operation, reservations, .. } = *self;
        let is_asked = !reservations.asks().is_empty();
        let mut following = Following { policy, agent, operation, accesses, is_asked };
        if !following.follows(met) {
            return false;
        }
        if let Met::Name(name) | Met::Left(name) = met {
            following.decisions(name).for_each(|decision| reservations.hear(&decision));
        }
        if let Met::Name(name) = met {
            reservations.follow(name);
        }
        true
    }
}
