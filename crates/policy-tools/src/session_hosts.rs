//! The hosts that presets gave to sessions, followed through a log.
//!
//! They are no part of a policy, and apply where it has no rules that allow or ask about hosts. A
//! start's record has them.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::ControlFlow,
};

use portcullis_audit::{Draft, RecordView};
use serde_json::Value;

use crate::{
    policy::{HostPattern, Network, Policy, SessionHosts},
    review::{Filter, Log, ScanOrder},
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
    /// Returns the hosts that the facts of a start's record name.
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

/// Returns the hosts that a preset gave to the session `boot` of the log, if it did.
///
/// # Errors
/// If the log cannot be read.
pub fn hosts_of_session(log: &Log, boot: &str) -> io::Result<Option<SessionHosts>> {
    let mut rules = None;
    let hosts = |record: &RecordView<'_>, _line: &[u8]| {
        (record.boot() == Some(boot)).then(|| PresetHosts::of(record.facts.as_ref())).flatten()
    };
    log.scan(&Filter::default(), ScanOrder::Oldest, hosts, |hosts| {
        rules = Some(hosts.rules());
        ControlFlow::Break(())
    })?;
    Ok(rules)
}

/// True if the rule is of a preset's host, and no rule of a policy.
pub(crate) fn is_of_preset(rule: &str) -> bool {
    rule.starts_with("preset:")
}
