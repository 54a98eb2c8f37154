//! The context of a decision on a connection: the policies of all workspaces of the sandbox,
//! and the labels of what was read.
//!
//! The policy of the gateway's own workspace allows. Those of further workspaces only restrict, as
//! files do that a policy extends.

use std::{
    borrow::Cow,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
};

use super::{labels::Reads, obligations::Obligations};
use crate::{
    model::{AgentName, Connect},
    policy::{Decision, NetworkLimits, NetworkRule, Policy},
};

/// The policies of a sandbox's further workspaces, which reloads replace.
pub(super) type FurtherPolicies = RwLock<Vec<Arc<RwLock<Arc<Policy>>>>>;

/// The context of a decision.
#[derive(Debug, Clone)]
pub(super) struct DecisionContext {
    /// The policy in force of the gateway's own workspace.
    pub(super) policy: Arc<Policy>,
    /// Those of further workspaces, if different.
    further: Vec<Arc<Policy>>,
    pub(super) reads: Arc<Reads>,
}

impl DecisionContext {
    /// Returns the context now, under the gateway's own `policy`.
    pub(super) fn new(policy: Arc<Policy>, further: &FurtherPolicies, reads: Arc<Reads>) -> Self {
        let further = further.read().unwrap_or_else(PoisonError::into_inner);
        let in_force = further
            .iter()
            .map(|further| Arc::clone(&further.read().unwrap_or_else(PoisonError::into_inner)));
        let further = in_force.filter(|further| further.sha256() != policy.sha256()).collect();
        Self { policy, further, reads }
    }

    /// Returns the policies, that of the gateway's own workspace first.
    fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        std::iter::once(&self.policy).chain(&self.further)
    }

    /// True if the policies are the same ones.
    pub(super) fn has_policies_of(&self, other: &Self) -> bool {
        self.further.len() == other.further.len()
            && self.policies().zip(other.policies()).all(|(own, other)| Arc::ptr_eq(own, other))
    }

    /// True if policies and labels are the same ones.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.has_policies_of(other) && Arc::ptr_eq(&self.reads, &other.reads)
    }

    /// Decides on the name; `obligations` collects the obligations.
    pub(super) fn evaluate_connect(
        &self,
        agent: &AgentName,
        connect: &Connect,
        obligations: &Obligations,
    ) -> Decision {
        let read = self.reads.ids();
        let restrict = |policy: &Policy| policy.restrict_connect(agent, connect, read);
        let own = self.policy.evaluate_connect(agent, connect, read);
        self.restricted(own, restrict, obligations)
    }

    /// Decides on an address of the host; `obligations` collects the obligations.
    pub(super) fn evaluate_address(
        &self,
        agent: &AgentName,
        connect: &Connect,
        (address, is_own): (IpAddr, bool),
        obligations: &Obligations,
    ) -> Decision {
        let read = self.reads.ids();
        let restrict =
            |policy: &Policy| policy.restrict_address(agent, connect, address, is_own, read);
        let own = self.policy.evaluate_address(agent, connect, address, is_own, read);
        self.restricted(own, restrict, obligations)
    }

    /// Returns the strictest of the decisions of all policies.
    fn restricted(
        &self,
        own: Decision,
        restrict: impl Fn(&Policy) -> Option<Decision>,
        obligations: &Obligations,
    ) -> Decision {
        obligations.add(&own);
        self.further.iter().fold(own, |strictest, policy| {
            let Some(decision) = restrict(policy) else { return strictest };
            let decision = of_further(decision, policy);
            obligations.add(&decision);
            strictest.and(decision)
        })
    }

    /// Returns the rule of hosts that decided.
    pub(super) fn network_rule(&self, decision: &Decision) -> Option<&NetworkRule> {
        self.policies().find_map(|policy| {
            // Rules of two policies may have the same id.
            let is_here =
                |rule: &&NetworkRule| policy.place_of(rule).as_ref() == decision.location();
            policy.network_rule(decision).filter(is_here)
        })
    }

    /// Returns the smallest limits of all policies.
    pub(super) fn limits(&self) -> Cow<'_, NetworkLimits> {
        let own = Cow::Borrowed(self.policy.network().limits());
        self.further
            .iter()
            .fold(own, |limits, policy| Cow::Owned(limits.and(policy.network().limits())))
    }

    /// Returns the hashes of all policies, joined: an approval is bound to them.
    pub(super) fn policy_hashes(&self) -> String {
        let hashes: Vec<_> = self.policies().map(|policy| policy.sha256()).collect();
        hashes.join("+")
    }
}

/// Returns a further policy's decision, with a reason that names that policy.
fn of_further(decision: Decision, policy: &Policy) -> Decision {
    if decision.is_allow() {
        return decision;
    }
    let by = format!("policy `{}` of a further workspace", policy.name());
    let reason = match decision.reason() {
        Some(reason) => format!("{reason} ({by})"),
        None => by,
    };
    decision.with_reason(reason)
}
