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
    let credentials: Vec<_> =
        credentials.iter().filter(is_used).map(|credential| &*credential.id).collect();
    if json {
        let mut report = report(policy, agent, &connect, (address, read), &decision, &rules);
        if let Some(fields) = report.as_object_mut() {
            let others =
                rules_for_other_ports_or_agents(policy, agent, &connect).map(NetworkRule::id);
            fields.insert("otherRules".to_owned(), json!(others.collect::<Vec<_>>()));
            fields.insert("credentials".to_owned(), json!(credentials));
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
    if !credentials.is_empty() {
        let ids = credentials.join("` or `");
        outln!("note: programs reach the host with the credential `{ids}` alone, not by the proxy");
    }
    if !read.is_empty() {
        outln!("\nread before: content labelled {}", listed(read));
    }
    if !rules.is_empty() {
        outln!("\nrules about it:");
    }
    for rule in rules {
        print_rule(policy, rule, read);
    }
    let others: Vec<_> = rules_for_other_ports_or_agents(policy, agent, &connect).collect();
    if !others.is_empty() {
        outln!("\nrules about the host, and another port or agent:");
    }
    for rule in others {
        print_rule(policy, rule, read);
    }
    Ok(ExitCode::SUCCESS)
}

/// Rules that name the host, and are not about the connection because of its port or agent.
fn rules_for_other_ports_or_agents<'p>(
    policy: &'p Policy,
    agent: &AgentName,
    connect: &Connect,
) -> impl Iterator<Item = &'p NetworkRule> {
    let is_excepted = |rule: &NetworkRule| rule.except.iter().any(|own| own.holds(&connect.host));
    policy.network().rules().filter(move |rule| {
        rule.holds_host(&connect.host) && !rule.is_about(agent, connect) && !is_excepted(rule)
    })
}

fn print_rule(policy: &Policy, rule: &NetworkRule, read: &LabelIds) {
    let location =
        policy.place_of(rule).map(|location| format!("  {location}")).unwrap_or_default();
    let condition = match (rule.when_read.is_empty(), rule.holds_after(read)) {
        (true, _) => String::new(),
        (false, applies) => {
            let verb = if applies { "applies" } else { "would apply" };
            format!("  {verb} once content labelled {} was read", listed(&rule.when_read))
        }
    };
    let (effect, id) = (rule.effect.as_str(), Escaped(rule.id()));
    let ports = rule.ports.iter().flatten().map(u16::to_string).collect::<Vec<_>>();
    let ports = match ports.as_slice() {
        [] => String::new(),
        ports => format!("  ports {}", ports.join(", ")),
    };
    outln!("  {effect:5} {id}{}{ports}{condition}", Escaped(&location));
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
            "applies": rule.holds_after(read),
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
