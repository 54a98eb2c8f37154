//! Hosts that the operator gives one session besides its policy.
//!
//! The policy has precedence: its denials win, and where it has rules that allow or ask, only hosts
//! that they cover are allowed. So these hosts open something only where the policy has no such
//! rules.

use super::{Effect, HostPattern, Mode, Network, NetworkRule, Policy, SessionHosts};
use crate::model::AgentName;

impl Network {
    fn give(&mut self, hosts: SessionHosts) {
        let is_silent = !self.rules().any(NetworkRule::grants);
        if hosts.bound {
            self.mode = Mode::Enforce;
        }
        if hosts.bound && hosts.rules.is_empty() {
            // A layer without rules would bound nothing.
            for layer in &mut self.layers {
                layer.retain(|rule| rule.effect == Effect::Deny);
            }
        } else if hosts.bound || is_silent {
            self.layers.push(hosts.rules.clone());
        }
        self.session = hosts;
    }
}

impl Policy {
    /// Gives the hosts to the session that the policy is for. Call it once: the hosts stay.
    pub fn give_hosts(&mut self, hosts: SessionHosts) {
        self.network.give(hosts);
    }

    /// Returns the rules of hosts of a session that was given these hosts.
    #[must_use]
    pub fn network_with(&self, hosts: SessionHosts) -> Network {
        let mut network = self.network.clone();
        network.give(hosts);
        network
    }

    /// Takes the hosts over from the policy that was in force before.
    pub fn keep_hosts(&mut self, old: &Self) {
        self.give_hosts(old.network.session.clone());
    }

    /// Returns those of a session's hosts that the policy does not let `agent` reach, or not all of
    /// them.
    pub fn withheld_hosts<'h>(
        &self,
        hosts: &'h SessionHosts,
        agent: &AgentName,
    ) -> impl Iterator<Item = &'h NetworkRule> {
        hosts.rules.iter().filter(|given| {
            let ports = given.ports.iter().flatten();
            !ports
                .clone()
                .all(|port| given.hosts.iter().all(|hosts| self.lets_through(agent, hosts, *port)))
        })
    }

    /// True if every host of a pattern is allowed, at least by its name.
    fn lets_through(&self, agent: &AgentName, hosts: &HostPattern, port: u16) -> bool {
        let covers = |rule: &NetworkRule| {
            rule.is_about_port(agent, port) && rule.hosts.iter().any(|own| own.covers(hosts))
        };
        let is_denied = self
            .network
            .rules()
            .filter(|rule| rule.effect == Effect::Deny && rule.when_read.is_empty())
            .filter(|rule| rule.is_about_port(agent, port))
            .any(|rule| rule.hosts.iter().any(|own| own.covers(hosts) || hosts.covers(own)));
        !is_denied && self.network.grants().all(|mut rules| rules.any(covers))
    }
}
