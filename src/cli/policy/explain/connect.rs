//! The gateway's decision on a connection, and the rules about it.

use std::{net::IpAddr, process::ExitCode};

use serde_json::{Value, json};

use super::answer::{decision_json, sentence};
use crate::{
    app::failure::{Exit, Failure},
    config::credentials::Credential,
    model::{AgentName, Connect, Escaped},
    policy::{Decision, LabelIds, NetworkRule, Policy},
};

/// Explains a connection to `target`, and to an address that its host may have, where content
/// with the labels `read` was read before.
pub(super) fn run(
    (policy, credentials): (&Policy, &[Credential]),
    agent: &AgentName,
    target: &str,
    (address, read): (Option<IpAddr>, &LabelIds),
    json: bool,
) -> Result<ExitCode, Failure> {
    let connect = Connect::parse(target).map_err(|why| {
        Failure::new(format_args!("bad host and port `{}`: {why}", Escaped(target)))
            .exit(Exit::Usage)
            .help("write a name or an address and a port, such as `example.com:443`")
    })?;
    let name = policy.evaluate_connect(agent, &connect, read);
    let of_address =
        address.map(|address| policy.evaluate_address(agent, &connect, address, false, read));
    let decision = match &of_address {
        Some(of_address) => name.clone().and(of_address.clone()),
        None => name.clone(),
    };
    let is_about = |rule: &&NetworkRule| {
        rule.is_about(agent, &connect)
            && (rule.holds_host(&connect.host)
                || address.is_some_and(|address| rule.holds_address(address)))
    };
    let rules: Vec<_> = policy.network().rules().filter(is_about).collect();
    let is_used = |one: &&Credential| {
        one.to.host == connect.host && policy.network().credentials().contains(&one.id)
    };
    let credential = credentials.iter().find(is_used).map(|credential| &*credential.id);
    if json {
        let mut report = report(policy, agent, &connect, (address, read), &decision, &rules);
        if let Some(fields) = report.as_object_mut() {
            fields.insert("credential".to_owned(), json!(credential));
        }
        outjson!(report);
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{}", sentence(&decision));
    outln!("policy `{}` version {}, agent `{agent}`", policy.name(), policy.version());
    outln!("\nconnect: {connect}\n  {}", sentence(&name));
    if let (Some(address), Some(decision)) = (address, &of_address) {
        outln!("\naddress: {address}\n  {}", sentence(decision));
    } else if connect.host.name().is_some() {
        outln!("note: each address that the name has is decided, too: `--address ADDRESS`");
    }
    if let Some(id) = credential {
        outln!("note: programs reach the host with the credential `{id}` alone, not by the proxy");
    }
    if !read.is_empty() {
        outln!("\nread before: content labelled {}", listed(read));
    }
    if !rules.is_empty() {
        outln!("\nrules about it:");
    }
    for rule in rules {
        let location =
            policy.place_of(rule).map(|location| format!("  {location}")).unwrap_or_default();
        let condition = match (rule.when_read.is_empty(), rule.holds_after(read)) {
            (true, _) => String::new(),
            (false, holds) => {
                let holds = if holds { "holds" } else { "would hold" };
                format!("  {holds} once content labelled {} was read", listed(&rule.when_read))
            }
        };
        let (effect, id) = (rule.effect.as_str(), Escaped(rule.id()));
        outln!("  {effect:5} {id}{}{condition}", Escaped(&location));
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(labels: &LabelIds) -> String {
    labels.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ")
}

fn report(
    policy: &Policy,
    agent: &AgentName,
    connect: &Connect,
    (address, read): (Option<IpAddr>, &LabelIds),
    decision: &Decision,
    rules: &[&NetworkRule],
) -> Value {
    let rule = |rule: &&NetworkRule| {
        let location = policy.place_of(rule);
        json!({
            "effect": rule.effect.as_str(),
            "rule": rule.id(),
            "file": location.as_ref().map(|location| &location.file),
            "line": location.as_ref().map(|location| location.line),
            "reason": rule.reason,
            "whenRead": rule.when_read,
            "holds": rule.holds_after(read),
        })
    };
    json!({
        "operation": "connect",
        "agent": agent.as_str(),
        "policy": {
            "name": policy.name(),
            "version": policy.version(),
            "sha256": policy.sha256(),
        },
        "host": connect.host.to_string(),
        "port": connect.port,
        "address": address.map(|address| address.to_string()),
        "read": read,
        "decision": decision_json(decision),
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    })
}
