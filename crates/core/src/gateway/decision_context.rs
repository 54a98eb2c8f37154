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
    model::{AgentName, Connect, Host},
    policy::{Decision, HostPattern, NetworkLimits, NetworkRule, Policy},
};

/// The maximum of addresses that a question about a name is about, too.
const MAX_ADDRESSES: usize = 8;

/// The policies of a sandbox's further workspaces, which reloads replace.
pub(super) type FurtherPolicies = RwLock<Vec<Arc<RwLock<Arc<Policy>>>>>;

/// The context of a decision.
#[derive(Debug, Clone)]
pub(super) struct DecisionContext {
    /// The policy in force of the gateway's own workspace.
    pub(super) policy: Arc<Policy>,
    /// The policies of further workspaces, if different.
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
        let questions = |policy: &Policy| policy.questions_about(agent, connect, None, read);
        let own = self.policy.evaluate_connect(agent, connect, read);
        self.restricted(own, restrict, questions, obligations)
    }

    /// Decides on an address of the host; `obligations` collects the obligations.
    pub(super) fn evaluate_address(
        &self,
        agent: &AgentName,
        connect: &Connect,
        (address, is_local): (IpAddr, bool),
        obligations: &Obligations,
    ) -> Decision {
        let read = self.reads.ids();
        let restrict =
            |policy: &Policy| policy.restrict_address(agent, connect, address, is_local, read);
        let questions =
            |policy: &Policy| policy.questions_about(agent, connect, Some(address), read);
        let own = self.policy.evaluate_address(agent, connect, address, is_local, read);
        self.restricted(own, restrict, questions, obligations)
    }

    /// Returns the strictest of the decisions of all policies. All rules that ask are obligations.
    fn restricted(
        &self,
        own: Decision,
        restrict: impl Fn(&Policy) -> Option<Decision>,
        questions: impl Fn(&Policy) -> Vec<Decision>,
        obligations: &Obligations,
    ) -> Decision {
        obligations.add(&own);
        if own.is_ask() {
            questions(&self.policy).iter().for_each(|question| obligations.add(question));
        }
        self.further.iter().fold(own, |strictest, policy| {
            let Some(decision) = restrict(policy) else { return strictest };
            let decision = of_further(decision, policy);
            obligations.add(&decision);
            if decision.is_ask() {
                let questions = questions(policy).into_iter();
                let questions = questions.map(|question| of_further(question, policy));
                questions.for_each(|question| obligations.add(&question));
            }
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

    /// Returns the name of a rule that asks, as an approval has it: with its place, and the labels
    /// by which it applies. Another label is another question.
    pub(super) fn asking_rule(&self, decision: &Decision) -> String {
        let labels = self.network_rule(decision).map(|rule| &rule.when_read);
        let read = labels.into_iter().flatten().filter(|label| self.reads.ids().contains(*label));
        let read: Vec<_> = read.map(ToString::to_string).collect();
        match read.is_empty() {
            true => decision.located_rule(),
            false => format!("{} for {}", decision.located_rule(), read.join(", ")),
        }
    }

    /// Returns the rule of hosts with that id, of the first policy that has one.
    pub(super) fn rule_with_id(&self, id: &str) -> Option<&NetworkRule> {
        self.policies().find_map(|policy| policy.network().rules().find(|rule| rule.id() == id))
    }

    /// Returns the addresses that rules have beside the name of a host: a question about the name
    /// is about them, too.
    pub(super) fn addresses_beside(&self, host: &Host, rules: &[Decision]) -> Vec<IpAddr> {
        let rules = rules.iter().filter_map(|decision| self.network_rule(decision));
        let rules = rules.filter(|rule| host.name().is_some() && rule.holds_host(host));
        let addresses = rules.flat_map(|rule| {
            let own = rule.hosts.iter().filter_map(HostPattern::address);
            own.filter(|address| rule.holds_address(*address))
        });
        let mut beside: Vec<_> = addresses.collect();
        beside.sort_unstable();
        beside.dedup();
        beside.truncate(MAX_ADDRESSES);
        beside
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
