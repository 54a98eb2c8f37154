//! `policy learn`: the hosts that recorded connections need.
//!
//! Only connections that no rule is about are considered, host by host: a name is never widened,
//! and an address that is not globally routable is never proposed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use portcullis_audit::Directory;

use super::{
    carried_labels::Carriers,
    history::{Connection, read_connections},
};
use crate::policy::{HostPattern, LabelIds, Labels, Policy};

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
}

/// Proposes the hosts that `policy` needs for the connections of the log in `directory`. Counts in
/// `kept` the connections that stay denied, by the rule that denies them.
///
/// # Errors
/// If the log cannot be read.
pub fn learn_hosts(
    policy: &Policy,
    directory: &Directory,
    since: Option<&str>,
    kept: &mut BTreeMap<String, u64>,
) -> io::Result<Vec<NewHost>> {
    let mut found: BTreeMap<(u16, String), NewHost> = BTreeMap::new();
    // Labels deny nothing here.
    let labels = Labels::default();
    read_connections(directory, since, &mut Carriers::new(&labels), |asked: &Connection, _| {
        if !asked.is_denied() {
            return;
        }
        let decision = policy.evaluate_connect(&asked.agent, &asked.connect, &LabelIds::new());
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
