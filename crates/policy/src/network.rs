//! Hosts to which an agent may connect: `[network]`.
//!
//! A name is decided on before it is looked up, and so is each address that it has afterwards. A
//! denial of any file wins. Every file with rules that allow or ask must have one that covers the
//! host; if a rule of any file asks, an approval is required. An address that is not globally
//! routable is refused unless rules name it ([`special`]).

mod pattern;
mod session;
mod special;
mod stated;

use core::net::IpAddr;
use std::collections::BTreeSet;

pub use pattern::{HostPattern, HostPatternError};
pub(super) use stated::StatedNetwork;

use super::{
    Decision, Effect, LabelIds, Mode, Policy, SourceLocation, compiled::Layer, limits::Limit,
    statements::Agents,
};
use crate::model::{AgentName, Connect, Host};

/// The id of the built-in rule of addresses that need no rule to name them, or lack one.
const ADDRESS: &str = "network.address";

/// The `[network]` tables of all files of a policy.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// True if a file has the table, even an empty one.
    pub(super) is_stated: bool,
    pub(super) mode: Mode,
    pub(super) layers: Vec<Vec<NetworkRule>>,
    pub(super) limits: NetworkLimits,
    pub(super) credentials: BTreeSet<String>,
    /// Hosts of the session, which are rules of a further layer where they count.
    pub(super) session: SessionHosts,
}

/// Hosts that the operator gives one session besides its policy.
#[derive(Debug, Clone, Default)]
pub struct SessionHosts {
    rules: Vec<NetworkRule>,
    /// True if nothing else is allowed, not even by the policy.
    bound: bool,
}

/// Limits of one session: bytes that it sends, and connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkLimits {
    /// Bytes that one session sends to one host.
    pub bytes_out: Option<Limit>,
    /// Connections that one session has at once.
    pub connections: Option<Limit>,
}

/// A rule of `[[network.rules]]`.
#[derive(Debug, Clone)]
pub struct NetworkRule {
    pub(super) id: String,
    pub(super) layer: usize,
    pub(super) line: u64,
    /// The effect.
    pub effect: Effect,
    /// The hosts that the rule is about.
    pub hosts: Vec<HostPattern>,
    /// Hosts that the rule is not about, even if `hosts` has them.
    pub except: Vec<HostPattern>,
    /// The ports that the rule is about; `None` for all.
    pub ports: Option<Vec<u16>>,
    /// The agents that the rule is about.
    pub agents: Agents,
    /// Labels: the rule applies once content with one of them was read, or always if there are
    /// none.
    pub when_read: LabelIds,
    /// The operator's reason for the rule.
    pub reason: Option<String>,
}

impl SessionHosts {
    /// Returns no hosts yet; with `bound` the session may reach only those that are added.
    pub fn new(bound: bool) -> Self {
        Self { rules: Vec::new(), bound }
    }

    /// Adds the rule `id`, which allows connections to one port of hosts.
    pub fn add(&mut self, id: String, hosts: HostPattern, port: u16) {
        self.rules.push(NetworkRule {
            id,
            // No file of the policy has the rule.
            layer: usize::MAX,
            line: 0,
            effect: Effect::Allow,
            hosts: vec![hosts],
            except: Vec::new(),
            ports: Some(vec![port]),
            agents: Agents::All,
            when_read: LabelIds::new(),
            reason: None,
        });
    }
}

impl Network {
    /// True if an agent needs a proxy: connections may be allowed, or are to be denied and recorded
    /// because a file has the table.
    pub fn needs_proxy(&self) -> bool {
        self.is_stated || self.may_allow()
    }

    /// True if any connection may be allowed.
    pub fn may_allow(&self) -> bool {
        self.mode == Mode::Observe || self.rules().any(NetworkRule::grants)
    }

    /// Returns the mode: a host that no rule allows or denies is denied, or only recorded.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the hosts that the operator gives the session.
    pub fn session_hosts(&self) -> &SessionHosts {
        &self.session
    }

    /// Returns the limits of one session.
    pub fn limits(&self) -> &NetworkLimits {
        &self.limits
    }

    /// Returns the ids of the operator's credentials that programs may use: those that every file
    /// names of the files that name any.
    pub fn credentials(&self) -> &BTreeSet<String> {
        &self.credentials
    }

    /// Returns the rules of all files, those of the policy's own file first.
    pub fn rules(&self) -> impl Iterator<Item = &NetworkRule> {
        self.layers.iter().flatten()
    }

    fn first(&self, effect: Effect, about: impl Fn(&&NetworkRule) -> bool) -> Option<&NetworkRule> {
        self.rules().find(|rule| rule.effect == effect && about(rule))
    }

    /// Returns the number of files with rules that allow or ask, all of which must cover a host.
    pub fn bounding_files(&self) -> usize {
        self.grants().count()
    }

    /// Returns the rules that allow or ask, by file, of the files that have any.
    pub fn grants(&self) -> impl Iterator<Item = impl Iterator<Item = &NetworkRule>> {
        self.layers
            .iter()
            .filter(|rules| rules.iter().any(NetworkRule::grants))
            .map(|rules| rules.iter().filter(|rule| rule.grants()))
    }
}

impl NetworkLimits {
    /// Returns the smaller of both, limit by limit.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let smaller = |ours: &Option<Limit>, theirs: &Option<Limit>| {
            ours.iter().chain(theirs).min_by_key(|limit| limit.maximum).cloned()
        };
        Self {
            bytes_out: smaller(&self.bytes_out, &other.bytes_out),
            connections: smaller(&self.connections, &other.connections),
        }
    }
}

impl NetworkRule {
    /// Returns the id, by which decisions name the rule.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// True if the rule allows anything, possibly after an approval. A rule that asks only once
    /// something was read allows nothing.
    pub fn grants(&self) -> bool {
        self.effect != Effect::Deny && self.when_read.is_empty()
    }

    /// True if the rule is about this agent and connection, whatever the address of its host and
    /// the labels that were read.
    pub fn is_about(&self, agent: &AgentName, connect: &Connect) -> bool {
        self.is_about_port(agent, connect.port)
            && !self.except.iter().any(|pattern| pattern.holds(&connect.host))
    }

    /// True if the rule is about this agent and port, whatever the host is.
    fn is_about_port(&self, agent: &AgentName, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port)) && self.agents.hold(agent)
    }

    /// True if the rule applies once content with the labels `read` was read.
    pub fn holds_after(&self, read: &LabelIds) -> bool {
        self.when_read.is_empty() || !self.when_read.is_disjoint(read)
    }

    /// True if one of the rule's hosts is `host`.
    pub fn holds_host(&self, host: &Host) -> bool {
        self.hosts.iter().any(|pattern| pattern.holds(host))
    }

    /// True if one of the rule's networks contains the address.
    pub fn holds_address(&self, address: IpAddr) -> bool {
        let holds = |pattern: &HostPattern| pattern.holds_address(address);
        self.hosts.iter().any(holds) && !self.except.iter().any(holds)
    }

    /// True if the rule names the address, by a network that is no larger than one for private use.
    pub fn names_address(&self, address: IpAddr) -> bool {
        self.hosts.iter().any(|pattern| pattern.names_address(address))
    }
}

impl Policy {
    /// Returns the rules of hosts.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Decides on a connection before the name is looked up, where content with the labels `read`
    /// was read. If the host is an address, this decides on the address, too.
    pub fn evaluate_connect(
        &self,
        agent: &AgentName,
        connect: &Connect,
        read: &LabelIds,
    ) -> Decision {
        self.evaluate_connect_in(&self.network, agent, connect, read)
    }

    /// Decides as [`evaluate_connect`](Self::evaluate_connect), in a session with the rules of
    /// `network`, which [`network_with`](Self::network_with) makes.
    pub fn evaluate_connect_in(
        &self,
        network: &Network,
        agent: &AgentName,
        connect: &Connect,
        read: &LabelIds,
    ) -> Decision {
        let about = |rule: &&NetworkRule| {
            rule.is_about(agent, connect)
                && rule.holds_after(read)
                && rule.holds_host(&connect.host)
        };
        let decision = self.decide_host(network, about, read);
        match connect.host {
            Host::Address(address) => {
                let address = (address, false);
                decision.and(self.evaluate_address_in(network, agent, connect, address, read))
            }
            Host::Name(_) => decision,
        }
    }

    /// Decides on an address of the host, not on its name: both
    /// [`evaluate_connect`](Self::evaluate_connect) and this must allow. `is_local` says that the
    /// gateway's machine, or a network that it is on, has the address.
    pub fn evaluate_address(
        &self,
        agent: &AgentName,
        connect: &Connect,
        address: IpAddr,
        is_local: bool,
        read: &LabelIds,
    ) -> Decision {
        self.evaluate_address_in(&self.network, agent, connect, (address, is_local), read)
    }

    fn evaluate_address_in(
        &self,
        network: &Network,
        agent: &AgentName,
        connect: &Connect,
        (address, is_local): (IpAddr, bool),
        read: &LabelIds,
    ) -> Decision {
        if let Host::Address(asked) = connect.host
            && asked != address
        {
            return Decision::built_in_denial(ADDRESS, "another address was requested");
        }
        let about = |rule: &&NetworkRule| rule.is_about(agent, connect) && rule.holds_after(read);
        let holds = |rule: &&NetworkRule| about(rule) && rule.holds_address(address);
        if let Some(rule) = network.first(Effect::Deny, holds) {
            return self.decision(rule, read);
        }
        let kind = special::kind(address)
            .or(is_local.then_some("an address of this machine or its network"));
        let mut named = None;
        if let Some(kind) = kind {
            let names = |rule: &&NetworkRule| about(rule) && rule.names_address(address);
            let mut files = network.grants().map(|mut rules| rules.find(names)).peekable();
            let Some(Some(first)) = files.peek() else { return not_routable(kind) };
            named = Some(*first);
            if files.any(|rule| rule.is_none()) {
                return not_routable(kind);
            }
        }
        match network.first(Effect::Ask, holds).or(named) {
            Some(rule) => self.decision(rule, read),
            None => Decision::new(Effect::Allow, ADDRESS),
        }
    }

    /// Decides on a connection that another policy allows: that of the first workspace of a
    /// sandbox, of which this policy has a further one. `None` if this policy does not restrict the
    /// connection. It bounds hosts only if it has rules that allow or ask.
    pub fn restrict_connect(
        &self,
        agent: &AgentName,
        connect: &Connect,
        read: &LabelIds,
    ) -> Option<Decision> {
        if self.network.bounding_files() > 0 {
            return Some(self.evaluate_connect(agent, connect, read));
        }
        let about =
            |rule: &NetworkRule| rule.is_about(agent, connect) && rule.holds_host(&connect.host);
        self.restriction(about, read)
    }

    /// Decides on an address of the host as [`restrict_connect`](Self::restrict_connect) does on its
    /// name.
    pub fn restrict_address(
        &self,
        agent: &AgentName,
        connect: &Connect,
        address: IpAddr,
        is_local: bool,
        read: &LabelIds,
    ) -> Option<Decision> {
        if self.network.bounding_files() > 0 {
            return Some(self.evaluate_address(agent, connect, address, is_local, read));
        }
        let about =
            |rule: &NetworkRule| rule.is_about(agent, connect) && rule.holds_address(address);
        self.restriction(about, read)
    }

    fn restriction(
        &self,
        about: impl Fn(&NetworkRule) -> bool,
        read: &LabelIds,
    ) -> Option<Decision> {
        let holds = |rule: &&NetworkRule| rule.holds_after(read) && about(rule);
        let denial = self.network.first(Effect::Deny, holds);
        let rule = denial.or_else(|| self.network.first(Effect::Ask, holds))?;
        Some(self.decision(rule, read))
    }

    /// Decides by the rules that are about a connection.
    fn decide_host(
        &self,
        network: &Network,
        about: impl Fn(&&NetworkRule) -> bool,
        read: &LabelIds,
    ) -> Decision {
        if let Some(rule) = network.first(Effect::Deny, &about) {
            return self.decision(rule, read);
        }
        let mut files = network.grants().map(|mut rules| rules.find(&about)).peekable();
        let is_granted = files.peek().is_some() && files.all(|rule| rule.is_some());
        let question = network.first(Effect::Ask, &about);
        let would_deny = !is_granted && network.mode == Mode::Observe;
        match question.or_else(|| network.first(Effect::Allow, &about)) {
            Some(rule) if is_granted => self.decision(rule, read),
            Some(rule) if would_deny && rule.effect == Effect::Ask => {
                Decision { would_deny, ..self.decision(rule, read) }
            }
            _ => {
                let effect = if would_deny { Effect::Allow } else { Effect::Deny };
                let reason = "no rule of `[network]` allows this host and port";
                Decision { would_deny, ..Decision::new(effect, "default").with_reason(reason) }
            }
        }
    }

    /// Returns the decisions of all rules that ask about a connection, or about its address if that
    /// is given: an approval of one does not cover another.
    pub fn questions_about(
        &self,
        agent: &AgentName,
        connect: &Connect,
        address: Option<IpAddr>,
        read: &LabelIds,
    ) -> Vec<Decision> {
        let holds = |rule: &NetworkRule| match address {
            Some(address) => rule.holds_address(address),
            None => rule.holds_host(&connect.host),
        };
        let asks = |rule: &&NetworkRule| {
            rule.effect == Effect::Ask
                && rule.is_about(agent, connect)
                && rule.holds_after(read)
                && holds(rule)
        };
        self.network.rules().filter(asks).map(|rule| self.decision(rule, read)).collect()
    }

    /// True if the files that the policy extends allow the host, so that its own file may.
    pub fn may_connect_above(&self, agent: &AgentName, connect: &Connect) -> bool {
        let covers = |rule: &NetworkRule| {
            rule.grants() && rule.is_about(agent, connect) && rule.holds_host(&connect.host)
        };
        let above = self.network.layers.iter().skip(1);
        let mut bounding = above.filter(|rules| rules.iter().any(NetworkRule::grants));
        bounding.all(|rules| rules.iter().any(covers))
    }

    /// Returns the place of a rule in a policy file; `None` for a rule of no file.
    pub fn place_of(&self, rule: &NetworkRule) -> Option<SourceLocation> {
        let file = self.layers.get(rule.layer).map(Layer::file)?.to_owned();
        Some(SourceLocation { file, line: rule.line })
    }

    /// Returns the rule that decided, if it is a rule of hosts.
    pub fn network_rule(&self, decision: &Decision) -> Option<&NetworkRule> {
        self.network.rules().find(|rule| rule.id == decision.rule)
    }

    fn decision(&self, rule: &NetworkRule, read: &LabelIds) -> Decision {
        let was_read = || {
            let labels = rule.when_read.intersection(read).map(|label| format!("`{label}`"));
            let labels: Vec<_> = labels.collect();
            format!("content labelled {} was read", labels.join(", "))
        };
        let was_read = (!rule.when_read.is_empty()).then(was_read);
        let reason = match (&rule.reason, was_read) {
            (Some(reason), Some(was_read)) => Some(format!("{reason} ({was_read})")),
            (reason, was_read) => reason.clone().or(was_read),
        };
        let location = self.place_of(rule);
        Decision { location, reason, ..Decision::new(rule.effect, &rule.id) }
    }
}

fn not_routable(kind: &str) -> Decision {
    let reason = format!("the address is {kind}, which a rule must name to allow it");
    Decision::built_in_denial(ADDRESS, &reason)
}

#[cfg(test)]
mod tests;
