//! `[[labels]]`: labels without a rule, and rules that close the host of the agent's model.

use std::ops::Range;

use toml::de::DeTable;

use super::{finding::Finding, subject::Subject};
use crate::{
    model::{Connect, Host},
    policy::{Effect, LabelIds, NetworkRule},
};

/// Hosts of models that agents need for each step.
pub(super) const MODELS: [&str; 12] = [
    "api.anthropic.com",
    "api.deepseek.com",
    "api.mistral.ai",
    "api.openai.com",
    "api.x.ai",
    "chatgpt.com",
    "cloudcode-pa.googleapis.com",
    "dashscope-intl.aliyuncs.com",
    "dashscope.aliyuncs.com",
    "generativelanguage.googleapis.com",
    "opencode.ai",
    "openrouter.ai",
];

pub(super) fn lint(subject: Subject<'_>, found: &mut Vec<Finding>) {
    for file in subject.linted() {
        let Some(text) = subject.outline.get(file).map(|file| file.text.as_str()) else { continue };
        let (root, _) = DeTable::parse_recoverable(text);
        let root = root.get_ref();
        unused(subject, file, &ids(root, "labels"), found);
        let network = root.get("network").and_then(|value| value.get_ref().as_table());
        let rules = network.map(|network| ids(network, "rules")).unwrap_or_default();
        for (id, span) in rules {
            let rule = subject.policy.network().rules().find(|rule| rule.id() == id);
            rule.into_iter().for_each(|rule| closes_model(subject, file, (rule, &span), found));
        }
    }
}

fn unused(
    subject: Subject<'_>,
    file: usize,
    labels: &[(String, Range<usize>)],
    found: &mut Vec<Finding>,
) {
    let is_used =
        |id: &String| subject.policy.network().rules().any(|rule| rule.when_read.contains(id));
    for (id, span) in labels.iter().filter(|(id, _)| !is_used(id)) {
        found.push(Finding {
            id: "unused-label",
            file,
            span: span.clone(),
            message: format!("no rule of hosts has `{id}` in its `whenRead`"),
            suggestion:
                "name it in a rule, or remove it; a session with several workspaces (`--add-dir`) \
                also uses it in the rules of their policies"
                    .to_owned(),
        });
    }
}

/// A rule that applies once something was read, and closes a model's host that is open before, or
/// asks about it.
fn closes_model(
    subject: Subject<'_>,
    file: usize,
    (rule, span): (&NetworkRule, &Range<usize>),
    found: &mut Vec<Finding>,
) {
    let Ok(agent) = "agent".parse() else { return };
    if rule.when_read.is_empty() {
        return;
    }
    for host in MODELS {
        let Ok(host) = Host::parse(host) else { continue };
        let connect = Connect { host, port: 443 };
        let decide = |read: &LabelIds| subject.policy.evaluate_connect(&agent, &connect, read);
        let (open, closed) = (decide(&LabelIds::new()), decide(&rule.when_read));
        let (is_open, does) = match rule.effect {
            Effect::Ask => (open.effect() == Effect::Allow, "asks about each connection to"),
            Effect::Deny | Effect::Allow => (!open.is_deny(), "closes"),
        };
        if is_open && closed.rule() == rule.id() {
            let host = &connect.host;
            found.push(Finding {
                id: "closes-model",
                file,
                span: span.clone(),
                message: format!(
                    "`{}` {does} `{host}`, by which an agent asks its model",
                    rule.id()
                ),
                suggestion: format!("add `except = [\"{host}\"]` if what was read may go there"),
            });
            return;
        }
    }
}

/// Returns the ids of a list of tables, with their places.
fn ids(table: &DeTable<'_>, key: &str) -> Vec<(String, Range<usize>)> {
    let list = table.get(key).and_then(|value| value.get_ref().as_array());
    let tables = list.into_iter().flat_map(|list| list.iter());
    let tables = tables.filter_map(|value| value.get_ref().as_table()?.get("id"));
    tables.filter_map(|id| Some((id.get_ref().as_str()?.to_owned(), id.span()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        outline::outline,
        policy::{PolicySource, compile},
    };

    #[test]
    fn labels_without_a_rule_and_rules_that_close_the_model_are_told() {
        let text = "schema = 1\n[[labels]]\nid = \"data\"\npaths = [\"data/**\"]\n\
            [[labels]]\nid = \"idle\"\npaths = [\"idle/**\"]\n\
            [[network.rules]]\nid = \"any\"\neffect = \"allow\"\nports = [443]\n\
            hosts = [\"api.openai.com\", \"site.example\"]\n\
            [[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nhosts = [\"*\"]\nwhenRead = [\"data\"]\n";
        let found = |text: &str| {
            let source = PolicySource::from_text("p", text);
            let (policy, outline) = (compile(&source).unwrap(), outline(&source));
            let mut found = Vec::new();
            lint(Subject::new(&policy, &outline), &mut found);
            found.iter().map(|finding| (finding.id, finding.span.start)).collect::<Vec<_>>()
        };
        let at = |id: &str| text.find(&format!("\"{id}\"")).unwrap();
        assert_eq!(found(text), [("unused-label", at("idle")), ("closes-model", at("closed"))]);
        let open = format!("{text}except = [\"*.openai.com\"]\n");
        assert_eq!(found(&open), [("unused-label", at("idle"))]);
        // One that asks about the model was not told of.
        let asking = |text: &str| text.replace("\"deny\"", "\"ask\"");
        let both = [("unused-label", at("idle")), ("closes-model", at("closed"))];
        assert_eq!(found(&asking(text)), both);
        assert_eq!(found(&asking(&open)), both[..1]);
        let asked_before = asking(text).replace("\"allow\"", "\"ask\"");
        assert_eq!(found(&asked_before), both[..1]);
    }
}
