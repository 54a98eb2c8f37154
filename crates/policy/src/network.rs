//! Which hosts an agent may connect to: `[network]`.
//!
//! A name is decided before it is looked up, and each address that it has afterwards. A
//! denial of any file wins; every file that has rules which allow or ask must have one that
//! covers the host; a question of any file is asked. An address that is not globally routable
//! is refused unless rules name it ([`special`]).

mod pattern;
mod session;
mod special;
mod stated;

use core::net::IpAddr;
use std::collections::BTreeSet;

pub use pattern::{HostPattern, HostPatternError};
pub(super) use stated::StatedNetwork;

use super::{
    Decision, Effect, LabelIds, Mode, Place, Policy, compiled::Layer, limits::Limit,
    statements::Agents,
};
use crate::model::{AgentName, Connect, Host};

/// The rule of an address that no rule has to name, or that a rule would have to name.
const ADDRESS: &str = "network.address";

/// `[network]` of all files of a policy.
#[derive(Debug, Clone, Default)]
pub struct Network {
    pub(super) mode: Mode,
    pub(super) layers: Vec<Vec<NetworkRule>>,
    pub(super) limits: NetworkLimits,
    pub(super) credentials: BTreeSet<String>,
    /// Hosts besides, which are rules of a layer where they count.
    pub(super) session: SessionHosts,
}

/// Hosts that the operator gives one session besides its policy.
#[derive(Debug, Clone, Default)]
pub struct SessionHosts {
    rules: Vec<NetworkRule>,
    /// Nothing else is allowed, also where the policy allows it.
    bound: bool,
}

/// Bounds on what one session sends and on how many connections it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkLimits {
    /// Bytes that one session sends to one host.
    pub bytes_out: Option<Limit>,
    /// Connections that one session has at once.
    pub connections: Option<Limit>,
}

/// One of `[[network.rules]]`.
#[derive(Debug, Clone)]
pub struct NetworkRule {
    pub(super) id: String,
    pub(super) layer: usize,
    pub(super) line: u64,
    /// What it does.
    pub effect: Effect,
    /// The hosts that it is about.
    pub hosts: Vec<HostPattern>,
    /// Hosts that it is not about, whatever `hosts` says.
    pub except: Vec<HostPattern>,
    /// The ports that it is about; all of them without.
    pub ports: Option<Vec<u16>>,
    /// The agents that it is about.
    pub agents: Agents,
    /// Labels: it holds once content of one of them was read, or always if there are none.
    pub when_read: LabelIds,
    /// Why it is there.
    pub reason: Option<String>,
}

impl SessionHosts {
    /// None yet, and with `bound` all that the session may reach.
    pub fn new(bound: bool) -> Self {
        Self { rules: Vec::new(), bound }
    }

    /// Adds the rule `id`, which lets connect to one port of hosts.
    pub fn add(&mut self, id: String, hosts: HostPattern, port: u16) {
        self.rules.push(NetworkRule {
            id,
            // No file of the policy has it.
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
    /// Whether any connection may be allowed: without, nothing needs to be offered to an agent.
    pub fn may_allow(&self) -> bool {
        self.mode == Mode::Observe || self.rules().any(NetworkRule::grants)
    }

    /// Whether a host that nothing allows or denies is denied, or only recorded.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Bounds on what one session does.
    pub fn limits(&self) -> &NetworkLimits {
        &self.limits
    }

    /// The ids of the operator's credentials that programs may use: those that every file names which
    /// names any.
    pub fn credentials(&self) -> &BTreeSet<String> {
        &self.credentials
    }

    /// The rules of all files, those of the policy's own first.
    pub fn rules(&self) -> impl Iterator<Item = &NetworkRule> {
        self.layers.iter().flatten()
    }

    /// How many files have rules that allow or ask, all of which must cover a host.
    pub fn bounding_files(&self) -> usize {
        self.grants().count()
    }

    /// The rules of each file that allow or ask, of the files that have any.
    fn grants(&self) -> impl Iterator<Item = impl Iterator<Item = &NetworkRule>> {
        self.layers
            .iter()
            .filter(|rules| rules.iter().any(NetworkRule::grants))
            .map(|rules| rules.iter().filter(|rule| rule.grants()))
    }
}

impl NetworkRule {
    /// The id, by which decisions name the rule.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the rule permits anything, if need be after a person agreed. A question that
    /// is asked once something was read permits nothing.
    pub fn grants(&self) -> bool {
        self.effect != Effect::Deny && self.when_read.is_empty()
    }

    /// Whether the rule is about this agent and connection, whatever its host's address is and
    /// whatever was read.
    pub fn is_about(&self, agent: &AgentName, connect: &Connect) -> bool {
        self.is_about_port(agent, connect.port)
            && !self.except.iter().any(|pattern| pattern.holds(&connect.host))
    }

    /// True if the rule is about this agent and port, whatever the host is.
    fn is_about_port(&self, agent: &AgentName, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port)) && self.agents.hold(agent)
    }

    /// True if the rule holds once content with the labels `read` was read.
    pub fn holds_after(&self, read: &LabelIds) -> bool {
        self.when_read.is_empty() || !self.when_read.is_disjoint(read)
    }

    /// Whether one of its hosts is `host`.
    pub fn holds_host(&self, host: &Host) -> bool {
        self.hosts.iter().any(|pattern| pattern.holds(host))
    }

    /// Whether one of its networks has the address.
    pub fn holds_address(&self, address: IpAddr) -> bool {
        let holds = |pattern: &HostPattern| pattern.holds_address(address);
        self.hosts.iter().any(holds) && !self.except.iter().any(holds)
    }

    /// Whether it names the address: a network that is no larger than one for private use.
    pub fn names_address(&self, address: IpAddr) -> bool {
        self.hosts.iter().any(|pattern| pattern.names_address(address))
    }
}

impl Policy {
    /// The rules of hosts.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Decides on a connection before the name is looked up, where content with the labels
    /// `read` was read. Where an address was asked for it is decided, too.
    pub fn evaluate_connect(
        &self,
        agent: &AgentName,
        connect: &Connect,
        read: &LabelIds,
    ) -> Decision {
        let about = |rule: &&NetworkRule| {
            rule.is_about(agent, connect)
                && rule.holds_after(read)
                && rule.holds_host(&connect.host)
        };
        let decision = self.decide_host(about, read);
        match connect.host {
            Host::Address(address) => {
                decision.and(self.evaluate_address(agent, connect, address, false, read))
            }
            Host::Name(_) => decision,
        }
    }

    /// Decides on an address of the host. Says nothing about its name: both
    /// [`evaluate_connect`](Self::evaluate_connect) and this must allow. `is_own`: the machine
    /// that the gateway is on has the address.
    pub fn evaluate_address(
        &self,
        agent: &AgentName,
        connect: &Connect,
        address: IpAddr,
        is_own: bool,
        read: &LabelIds,
    ) -> Decision {
        if let Host::Address(asked) = connect.host
            && asked != address
        {
            return Decision::built_in_denial(ADDRESS, "another address was asked for");
        }
        let about = |rule: &&NetworkRule| rule.is_about(agent, connect) && rule.holds_after(read);
        let holds = |rule: &&NetworkRule| about(rule) && rule.holds_address(address);
        if let Some(rule) = self.first(Effect::Deny, holds) {
            return self.decision(rule, read);
        }
        let kind = special::kind(address).or(is_own.then_some("an address of this machine"));
        let mut named = None;
        if let Some(kind) = kind {
            let names = |rule: &&NetworkRule| about(rule) && rule.names_address(address);
            let mut files = self.network.grants().map(|mut rules| rules.find(names)).peekable();
            let Some(Some(first)) = files.peek() else { return not_routable(kind) };
            named = Some(*first);
            if files.any(|rule| rule.is_none()) {
                return not_routable(kind);
            }
        }
        match self.first(Effect::Ask, holds).or(named) {
            Some(rule) => self.decision(rule, read),
            None => Decision {
                effect: Effect::Allow,
                rule: ADDRESS.to_owned(),
                place: None,
                reason: None,
                would_deny: false,
            },
        }
    }

    /// Decides by the rules that are about a connection.
    fn decide_host(&self, about: impl Fn(&&NetworkRule) -> bool, read: &LabelIds) -> Decision {
        if let Some(rule) = self.first(Effect::Deny, &about) {
            return self.decision(rule, read);
        }
        let mut files = self.network.grants().map(|mut rules| rules.find(&about)).peekable();
        let is_granted = files.peek().is_some() && files.all(|rule| rule.is_some());
        let question = self.first(Effect::Ask, &about);
        let would_deny = !is_granted && self.network.mode == Mode::Observe;
        match question.or_else(|| self.first(Effect::Allow, &about)) {
            Some(rule) if is_granted => self.decision(rule, read),
            Some(rule) if would_deny && rule.effect == Effect::Ask => {
                Decision { would_deny, ..self.decision(rule, read) }
            }
            _ => Decision {
                effect: if would_deny { Effect::Allow } else { Effect::Deny },
                rule: "default".to_owned(),
                place: None,
                reason: Some("no rule of `[network]` allows this host and port".to_owned()),
                would_deny,
            },
        }
    }

    fn first(&self, effect: Effect, about: impl Fn(&&NetworkRule) -> bool) -> Option<&NetworkRule> {
        self.network.rules().find(|rule| rule.effect == effect && about(rule))
    }

    /// Whether the files that the policy extends let its own file allow the host.
    pub fn may_connect_above(&self, agent: &AgentName, connect: &Connect) -> bool {
        let covers = |rule: &NetworkRule| {
            rule.grants() && rule.is_about(agent, connect) && rule.holds_host(&connect.host)
        };
        let above = self.network.layers.iter().skip(1);
        let mut bounding = above.filter(|rules| rules.iter().any(NetworkRule::grants));
        bounding.all(|rules| rules.iter().any(covers))
    }

    /// The place of a rule in a policy file.
    pub fn place_of(&self, rule: &NetworkRule) -> Option<Place> {
        let file = self.layers.get(rule.layer).map(Layer::file)?.to_owned();
        Some(Place { file, line: rule.line })
    }

    /// The rule that decided, if it is one of hosts.
    pub fn network_rule(&self, decision: &Decision) -> Option<&NetworkRule> {
        self.network.rules().find(|rule| rule.id == decision.rule)
    }

    fn decision(&self, rule: &NetworkRule, read: &LabelIds) -> Decision {
        let was_read = || {
            let labels = rule.when_read.intersection(read).map(|label| format!("`{label}`"));
            let labels: Vec<_> = labels.collect();
            format!("content labelled {} was read", labels.join(", "))
        };
        let reason = || (!rule.when_read.is_empty()).then(was_read);
        Decision {
            effect: rule.effect,
            rule: rule.id.clone(),
            place: self.place_of(rule),
            reason: rule.reason.clone().or_else(reason),
            would_deny: false,
        }
    }
}

fn not_routable(kind: &str) -> Decision {
    let reason = format!("the address is {kind}, which a rule must name to allow it");
    Decision::built_in_denial(ADDRESS, &reason)
}

#[cfg(test)]
mod tests;
