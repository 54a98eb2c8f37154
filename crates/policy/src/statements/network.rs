//! `[network]`.

use std::{collections::HashSet, ops::Range};

use toml::de::DeTable;

use super::{
    labels::{WHEN_READ, when_read},
    reader::{Reader, Value, elements, sub},
    rules::{MAX_RULES, effect, empty},
};
use crate::{
    Effect, Mode, check,
    check::shortened,
    diagnostics::Problem,
    model::{Connect, Host, OperationKind},
    network::{HostPattern, NetworkRule, StatedNetwork},
    pattern::Comparison,
    statements::rules::TestSubject,
};

/// One of `[[network.rules]]`.
#[derive(Debug, Clone)]
pub(crate) struct StatedNetworkRule {
    /// The rule, not yet in a layer.
    pub(crate) rule: NetworkRule,
    /// Place of the id.
    pub(crate) span: Range<usize>,
}

impl Reader<'_, '_> {
    pub(super) fn network(&mut self, root: &DeTable<'_>) -> StatedNetwork {
        let Some(table) = sub(root, "network") else { return StatedNetwork::default() };
        let modes = [("enforce", Mode::Enforce), ("observe", Mode::Observe)];
        let limits = sub(table, "limits");
        StatedNetwork {
            is_stated: true,
            mode: self.word(table, "mode", &modes).map(|layered| layered.value),
            bytes_out: limits
                .and_then(|limits| limits.get("bytesOut"))
                .and_then(|value| self.size(value)),
            connections: limits.and_then(|limits| self.number(limits, "connections")),
            credentials: table.contains_key("credentials").then(|| {
                let ids = elements(table, "credentials");
                ids.filter_map(|value| self.identifier(value, "credential id")).collect()
            }),
        }
    }

    pub(super) fn network_rules(&mut self, root: &DeTable<'_>) -> Vec<StatedNetworkRule> {
        let Some(table) = sub(root, "network") else { return Vec::new() };
        let mut seen: HashSet<String> = HashSet::new();
        let mut rules = Vec::new();
        for (number, value) in elements(table, "rules").enumerate() {
            if number == MAX_RULES {
                let problem = format!("the file has more than {MAX_RULES} rules of hosts");
                self.report(value.span(), Problem::new(problem).label("one too many"));
                break;
            }
            let Some(table) = value.get_ref().as_table() else { continue };
            let Some(stated) = self.network_rule(table) else { continue };
            if !seen.insert(stated.rule.id.clone()) {
                self.report(stated.span.clone(), super::rules::used_twice(&stated.rule.id));
            }
            rules.push(stated);
        }
        rules
    }

    fn network_rule(&mut self, table: &DeTable<'_>) -> Option<StatedNetworkRule> {
        // Everything is read before anything is given up, so that all errors are reported.
        let id = table.get("id").and_then(|value| Some((self.rule_id(value)?, value.span())));
        let effect = table.get("effect").and_then(|value| effect(value.get_ref().as_str()?));
        let hosts = elements(table, "hosts").filter_map(|value| self.hosts(value)).collect();
        let except = elements(table, "except").filter_map(|value| self.hosts(value)).collect();
        let when_read = when_read(table);
        for key in ["hosts", "ports", "except", WHEN_READ] {
            if let Some(value) = table.get(key)
                && value.get_ref().as_array().is_some_and(|list| list.is_empty())
            {
                self.report(value.span(), empty(key));
            }
        }
        let port = |value: &Value<'_>| check::integer(value.get_ref())?.try_into().ok();
        let ports = table
            .contains_key("ports")
            .then(|| elements(table, "ports").filter_map(port).collect());
        self.conditions(table, effect);
        // A question that is asked once something was read lets nobody connect who may not.
        let lets_connect =
            matches!(effect, Some(Effect::Allow | Effect::Ask)) && !table.contains_key(WHEN_READ);
        if let (true, None) = (lets_connect, &ports)
            && let Some((key, _)) = table.get_key_value("effect")
        {
            let problem = Problem::new("a rule that lets an agent connect must name its `ports`");
            self.report(key.span(), problem.help("add `ports = [443]`, for instance"));
        }
        let comparison =
            if effect == Some(Effect::Allow) { Comparison::Exact } else { Comparison::Folded };
        let agents = self.agents(table, comparison);
        let reason = table.get("reason").and_then(|value| self.plain_text(value, 500));
        let (id, span) = id?;
        let line = self.line(&span);
        let (layer, effect) = (0, effect?);
        let rule = NetworkRule {
            id,
            layer,
            line,
            effect,
            hosts,
            except,
            ports,
            agents,
            when_read,
            reason,
        };
        Some(StatedNetworkRule { rule, span })
    }

    /// Reports `whenRead` and `except` where they mean nothing.
    fn conditions(&mut self, table: &DeTable<'_>, effect: Option<Effect>) {
        let named = |key| table.get_key_value(key).map(|(key, _)| key.span());
        match (named(WHEN_READ), named("except")) {
            (Some(span), _) if effect == Some(Effect::Allow) => {
                let problem = Problem::new(format!("an `allow` rule has no `{WHEN_READ}`"))
                    .label("for rules that deny or ask")
                    .help("what was read opens no host; `except` of such a rule leaves hosts open");
                self.report(span, problem);
            }
            (None, Some(span)) => {
                let problem = Problem::new(format!("`except` is for rules with `{WHEN_READ}`"))
                    .help("leave the host out of `hosts`, or deny it in a rule of its own");
                self.report(span, problem);
            }
            _ => {}
        }
    }

    fn hosts(&mut self, value: &Value<'_>) -> Option<HostPattern> {
        let text = value.get_ref().as_str()?;
        HostPattern::parse(text)
            .map_err(|error| {
                let problem = Problem::new(format!("bad host \"{}\"", shortened(text)));
                self.report(
                    value.span(),
                    problem.label(error.to_string()).help(
                        "write a name, `*.` and a name, an address, or a network such as \"10.0.0.0/8\"",
                    ),
                );
            })
            .ok()
    }

    /// Returns the connection of a test, and the address of its host.
    pub(super) fn tested_connection(&mut self, table: &DeTable<'_>) -> Option<TestSubject> {
        for key in ["path", "to"] {
            if let Some((key, _)) = table.get_key_value(key) {
                let problem = Problem::new(format!("`{}` is for tests of paths", key.get_ref()));
                self.report(key.span(), problem.label("`connect` has a `host` and a `port`"));
            }
        }
        let host = table.get("host").and_then(|value| self.host(value));
        let address = match table.get("address").map(|value| (value, self.host(value))) {
            Some((_, Some(Host::Address(address)))) => Some(address),
            Some((value, Some(Host::Name(_)))) => {
                let problem = Problem::new("`address` cannot be a name");
                self.report(value.span(), problem.label("expected an address that the host has"));
                return None;
            }
            Some((_, None)) => return None,
            None => None,
        };
        let port = table.get("port").and_then(|value| check::integer(value.get_ref()));
        let operation = table.get("operation")?;
        for key in ["host", "port"].into_iter().filter(|key| !table.contains_key(*key)) {
            let problem =
                Problem::new(format!("a test of `{}` needs a `{key}`", OperationKind::Connect));
            self.report(operation.span(), problem.help(format!("add `{key} = …`")));
        }
        let connect = Connect { host: host?, port: port?.try_into().ok()? };
        let read = when_read(table);
        Some(TestSubject::Connection { connect, address, read })
    }

    fn host(&mut self, value: &Value<'_>) -> Option<Host> {
        self.parsed(value, "host", Host::parse)
    }
}
