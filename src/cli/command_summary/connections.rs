//! The connections of a command.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    app::connection_help::{Help, help},
    egress::{DeniedConnection, RuleKind},
    review::Traffic,
};

/// The connections of a command with one host.
#[derive(Default)]
pub(super) struct Connections {
    pub(super) number: u64,
    pub(super) traffic: Traffic,
}

/// Returns the id of the credential with which a connection was asked for.
pub(super) fn credential(facts: &BTreeMap<String, Value>) -> Option<String> {
    facts.get("credential").and_then(Value::as_str).map(str::to_owned)
}

/// Returns the request in the facts about a denied connection, and the help on the denial.
pub(super) fn connection(
    to: &str,
    rule: Option<&str>,
    facts: &BTreeMap<String, Value>,
) -> (Option<String>, Option<Help>) {
    let fact = |name: &str| facts.get(name).and_then(Value::as_str);
    let request = fact("requestPath").map(|path| {
        let method = fact("method").unwrap_or_default();
        format!("{method} {path}")
    });
    let read = facts.get("whenRead").and_then(Value::as_object);
    let read = read.map(|read| read.values().find_map(|read| read.get("path")?.as_str()));
    let kind = match read {
        Some(path) => RuleKind::WhenRead(path),
        None if facts.contains_key("question") => RuleKind::Ask,
        None => RuleKind::Deny,
    };
    let help = rule.map(|rule| {
        let (address, has_credential) = (fact("address"), facts.contains_key("credential"));
        let status = facts.get("status").and_then(|status| status.as_u64()?.try_into().ok());
        help(&DeniedConnection { to, address, rule, kind, has_credential, status })
    });
    (request, help)
}
