//! `policy learn`: the hosts that a policy would have to allow for what was asked for.
//!
//! Only what no rule was about is looked at, host by host: a name is never made wider, and an
//! address that is not globally routable never proposed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use portcullis_audit::Directory;

use super::history::{Connection, read_connections};
use crate::policy::{HostPattern, Policy};

/// A host and port to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHost {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How many connections were asked for.
    pub requests: u64,
    /// The record of the first of them.
    pub example: u64,
    /// The agent that asked.
    pub agents: BTreeSet<String>,
}

/// Learns from the log in `directory` which hosts `policy` would have to allow. Counts in `kept`
/// what stays denied, by the rule that denies it.
///
/// # Errors
/// When the log cannot be read.
pub fn learn_hosts(
    policy: &Policy,
    directory: &Directory,
    since: Option<&str>,
    kept: &mut BTreeMap<String, u64>,
) -> io::Result<Vec<NewHost>> {
    let mut found: BTreeMap<(u16, String), NewHost> = BTreeMap::new();
    read_connections(directory, since, |asked: &Connection| {
        if !asked.is_denied {
            return;
        }
        let decision = policy.evaluate_connect(&asked.agent, &asked.connect);
        if !decision.is_deny() {
            return;
        }
        let is_unroutable = HostPattern::parse(&asked.connect.host.to_string())
            .is_ok_and(|host| host.special().is_some());
        if !decision.is_default_deny()
            || is_unroutable
            || !policy.may_connect_above(&asked.agent, &asked.connect)
        {
            *kept.entry(decision.rule().to_owned()).or_default() += 1;
            return;
        }
        let (host, port) = (asked.connect.host.to_string(), asked.connect.port);
        let new = found.entry((port, host.clone())).or_insert_with(|| NewHost {
            host,
            port,
            requests: 0,
            example: asked.seq,
            agents: BTreeSet::new(),
        });
        new.requests += 1;
        new.agents.insert(asked.agent.to_string());
    })?;
    Ok(found.into_values().collect())
}
