//! The hosts that presets gave to sessions, followed through a log.
//!
//! They are no part of a policy, and apply where it has no rules that allow or ask about hosts. The
//! record of the sandbox has them, or that of the start.

use std::{
    collections::{BTreeMap, HashMap},
    io,
};

use portcullis_audit::{Draft, Kind};
use serde_json::Value;

use crate::{
    policy::{HostPattern, Network, Policy, SessionHosts},
    review::{Filter, Log},
};

/// The rules of hosts of a policy, as they apply in each session of a log.
pub(crate) struct SessionNetworks<'p> {
    policy: &'p Policy,
    /// The rules with the hosts of a preset.
    with_hosts: BTreeMap<PresetHosts, Network>,
    /// The hosts of the sessions that have some, by the lifetime of their gateway.
    sessions: HashMap<String, PresetHosts>,
}

/// The hosts that a preset gave to a session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PresetHosts {
    /// Each as `HOST:PORT`, with the id of its rule.
    hosts: Vec<(String, String)>,
    /// True if the session reached no others.
    is_bound: bool,
}

impl<'p> SessionNetworks<'p> {
    pub(crate) fn new(policy: &'p Policy) -> Self {
        Self { policy, with_hosts: BTreeMap::new(), sessions: HashMap::new() }
    }

    /// Takes the next record of the log.
    pub(crate) fn follow(&mut self, record: &Draft) {
        let found = PresetHosts::of(record.facts.as_ref());
        let (Some(boot), Some(found)) = (&record.boot, found) else { return };
        if !self.with_hosts.contains_key(&found) {
            self.with_hosts.insert(found.clone(), self.policy.network_with(found.rules()));
        }
        self.sessions.insert(boot.clone(), found);
    }

    /// Returns the rules that apply in the session of a record.
    pub(crate) fn of(&self, boot: Option<&str>) -> &Network {
        let hosts = boot.and_then(|boot| self.sessions.get(boot));
        hosts.and_then(|hosts| self.with_hosts.get(hosts)).unwrap_or(self.policy.network())
    }
}

impl PresetHosts {
    /// Returns the hosts that the facts of a record name.
    fn of(facts: Option<&BTreeMap<String, Value>>) -> Option<Self> {
        let facts = facts?;
        let texts = |name| Some(facts.get(name)?.as_array()?.iter().filter_map(Value::as_str));
        let hosts = texts("presetHosts")?.zip(texts("presetRules")?);
        Some(Self {
            hosts: hosts.map(|(host, rule)| (host.to_owned(), rule.to_owned())).collect(),
            // Only a login has this fact, and reaches the hosts of its preset alone.
            is_bound: facts.contains_key("credentials"),
        })
    }

    fn rules(&self) -> SessionHosts {
        let mut rules = SessionHosts::new(self.is_bound);
        for (shown, rule) in &self.hosts {
            let Some((host, port)) = shown.rsplit_once(':') else { continue };
            let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let (Ok(pattern), Ok(port)) =
                (HostPattern::parse(inner.unwrap_or(host)), port.parse::<u16>())
            else {
                continue;
            };
            rules.add(rule.clone(), pattern, port);
        }
        rules
    }
}

/// Returns the hosts that a preset gave to the session `boot` of the log, if it did. Reads nothing
/// behind the record `seq` of the session, and nothing before the segment in which it starts.
///
/// # Errors
/// If the log cannot be read.
pub fn hosts_of_session(log: &Log, boot: &str, seq: u64) -> io::Result<Option<SessionHosts>> {
    let filter = Filter { records: Some(0..=seq), ..Filter::default() };
    let hosts = log.newest(&filter, |record| {
        let found = PresetHosts::of(record.facts.as_ref());
        let is_own = record.boot() == Some(boot);
        (is_own && (found.is_some() || record.kind == Kind::Start)).then_some(found)
    })?;
    Ok(hosts.flatten().map(|hosts| hosts.rules()))
}

/// True if the rule is of a preset's host, and no rule of a policy.
pub(crate) fn is_of_preset(rule: &str) -> bool {
    rule.starts_with("preset:")
}
