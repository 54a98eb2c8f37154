//! `policy learn`: the hosts that recorded connections need.
//!
//! Only connections that no rule is about are considered, host by host: a name is never widened,
//! and an address that is not globally routable is never proposed, nor a name that led to one. The
//! hosts of a preset apply only as long as a policy has no rules that allow or ask about hosts. So
//! those that were used are proposed with the first such rule, whatever addresses they had: the
//! preset allowed their names, and the addresses are decided on as before.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    carried_labels::CarriedOn,
    history::{Connection, FollowedPolicy, read_connections},
    learn::Learned,
    session_hosts::is_of_preset,
};
use crate::{
    model::Connect,
    policy::{Decision, HostPattern, LabelIds, Labels, Policy},
    review::Log,
};

/// The rule of addresses that no rule names.
const ADDRESS: &str = "network.address";
/// The rule of hosts that the operator's credentials alone reach.
const CREDENTIALS: &str = "network.credentials";

/// Hosts and ports that a log shows to be needed.
#[derive(Debug, Clone, Default)]
pub struct LearnedHosts {
    /// Hosts to allow.
    pub hosts: Vec<NewHost>,
    /// Hosts that stay closed because of an address that they had, each with the rule.
    pub refused: Vec<(NewHost, String)>,
}

/// A host and port to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHost {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Number of connections that were requested.
    pub requests: u64,
    /// The index of the first record.
    pub example: u64,
    /// The agents that requested them.
    pub agents: BTreeSet<String>,
    /// True if a preset allows the host as long as the policy has no rules of hosts.
    pub is_of_preset: bool,
}

/// Proposes the hosts that `policy` needs for the connections of the log. Adds to
/// `learned` the numbers of connections that were requested, that the policy allows now, and that
/// stay denied.
///
/// # Errors
/// If the log cannot be read.
pub fn learn_hosts(
    policy: &Policy,
    log: &Log,
    since: Option<&str>,
    learned: &mut Learned,
) -> io::Result<LearnedHosts> {
    let mut found: BTreeMap<(u16, String), NewHost> = BTreeMap::new();
    let mut refused: BTreeMap<(u16, String), String> = BTreeMap::new();
    // Labels deny nothing here.
    let labels = Labels::default();
    let mut followed = [FollowedPolicy::new(policy, &labels)];
    read_connections(log, since, &mut followed, |asked, [followed]| {
        let Connect { host, port } = &asked.connect;
        let key = (*port, host.to_string());
        // A connection whose address was decided on was counted when its name was.
        if asked.address.is_some() {
            if let Some(decision) = refused_address(policy, asked) {
                refused.insert(key, decision.rule().to_owned());
            }
            return;
        }
        learned.count.requests += 1;
        let decision = followed.decide(asked, CarriedOn::Nowhere);
        let is_of_preset = decision.is_allow() && is_of_preset(decision.rule());
        if asked.is_denied() {
            if asked.rule == CREDENTIALS {
                *learned.kept.entry(asked.rule.clone()).or_default() += 1;
                return;
            }
            if !decision.is_deny() {
                learned.allowed += u64::from(asked.is_by_name && decision.is_allow());
            }
        }
        if !is_of_preset {
            if !asked.is_denied() || !decision.is_deny() {
                return;
            }
            let pattern = HostPattern::parse(&key.1);
            let is_unroutable = pattern.is_ok_and(|host| host.special().is_some());
            if !decision.is_default_deny()
                || is_unroutable
                || !policy.may_connect_above(&asked.agent, &asked.connect)
            {
                *learned.kept.entry(decision.rule().to_owned()).or_default() += 1;
                return;
            }
        }
        let (port, host) = key.clone();
        let new = found.entry(key).or_insert_with(|| NewHost {
            host,
            port,
            requests: 0,
            example: asked.seq,
            agents: BTreeSet::new(),
            is_of_preset: true,
        });
        new.is_of_preset &= is_of_preset;
        new.requests += 1;
        new.agents.insert(asked.agent.to_string());
    })?;
    let mut hosts = LearnedHosts::default();
    for (key, new) in found {
        match refused.remove(&key) {
            Some(rule) if !new.is_of_preset => {
                *learned.kept.entry(rule.clone()).or_default() += new.requests;
                hosts.refused.push((new, rule));
            }
            _ => hosts.hosts.push(new),
        }
    }
    if hosts.hosts.iter().all(|new| new.is_of_preset) {
        hosts.hosts.clear();
    }
    Ok(hosts)
}

/// Returns the denial of the address of a connection, if it was denied and is denied still.
fn refused_address(policy: &Policy, asked: &Connection) -> Option<Decision> {
    let address = asked.address.filter(|_| asked.is_denied())?;
    // Of the routable addresses, only those of the gateway's machine have this rule.
    let is_own = asked.rule == ADDRESS;
    let (agent, connect) = (&asked.agent, &asked.connect);
    let decision = policy.evaluate_address(agent, connect, address, is_own, &LabelIds::new());
    decision.is_deny().then_some(decision)
}
