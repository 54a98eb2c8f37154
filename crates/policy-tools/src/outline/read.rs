//! The reader of a file's statements.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{PathPattern, Statement, StatementKind};
use crate::{
    model::Access,
    policy::{
        Effect,
        parts::{ActionSet, Agents, Comparison},
    },
};

type Value<'i> = Spanned<DeValue<'i>>;

pub(super) fn statements(root: &DeTable<'_>) -> Vec<Statement> {
    let mut found = Vec::new();
    if let Some(section) = table(root, "allowedPaths") {
        for access in Access::ALL {
            if let Some((key, _)) = section.get_key_value(access.as_str()) {
                let mut statement =
                    blank(format!("allowedPaths.{access}"), StatementKind::AllowedPaths(access));
                statement.span = key.span();
                statement.actions = ActionSet::about(access);
                statement.patterns = patterns(section, access.as_str(), Comparison::Exact);
                found.push(statement);
            }
        }
    }
    if let Some(section) = table(root, "extensions") {
        let allow = table(section, "allow");
        for access in Access::ALL {
            let Some(allow) = allow else { break };
            if let Some((key, _)) = allow.get_key_value(access.as_str()) {
                let id = format!("extensions.allow.{access}");
                let mut statement = blank(id, StatementKind::AllowedExtensions(access));
                statement.span = key.span();
                statement.actions = ActionSet::about(access);
                statement.extensions = texts(allow, access.as_str()).collect();
                found.push(statement);
            }
        }
        if let Some((key, _)) = section.get_key_value("deny") {
            let mut statement =
                blank("extensions.deny".to_owned(), StatementKind::DeniedExtensions);
            statement.span = key.span();
            statement.extensions = texts(section, "deny").collect();
            if !statement.extensions.is_empty() {
                found.push(statement);
            }
        }
    }
    if let Some(section) = table(root, "secrets") {
        for (key, kind, comparison) in [
            ("names", StatementKind::SecretName, Comparison::Folded),
            ("except", StatementKind::SecretException, Comparison::Exact),
        ] {
            for (index, pattern) in patterns(section, key, comparison).into_iter().enumerate() {
                let mut statement = blank(format!("secrets.{key}[{index}]"), kind);
                statement.span = pattern.span.clone();
                statement.patterns = vec![pattern.at_any_depth()];
                found.push(statement);
            }
        }
    }
    for statement in &mut found {
        statement.actions =
            statement.actions().fold(ActionSet::NONE, |set, (operation, access)| {
                set | ActionSet::one(operation, access)
            });
    }
    found.extend(list(root, "rules").filter_map(|value| rule(value.get_ref().as_table()?)));
    if let Some(section) = table(root, "network") {
        let rules = list(section, "rules");
        found.extend(rules.filter_map(|value| network_rule(value.get_ref().as_table()?)));
    }
    found.extend(list(root, "labels").filter_map(|value| label(value.get_ref().as_table()?)));
    found.extend(table(root, "files").and_then(invisible_text));
    found
}

/// Returns the number of `[[tests]]`.
pub(super) fn number_of_tests(root: &DeTable<'_>) -> usize {
    list(root, "tests").count()
}

fn label(label: &DeTable<'_>) -> Option<Statement> {
    let id = label.get("id")?;
    let id_text = format!("labels.{}", id.get_ref().as_str()?);
    let patterns = patterns(label, "paths", Comparison::Folded);
    Some(Statement {
        span: id.span(),
        patterns: patterns.into_iter().map(PathPattern::and_beneath).collect(),
        actions: ActionSet::NONE,
        ..blank(id_text, StatementKind::Label)
    })
}

fn invisible_text(files: &DeTable<'_>) -> Option<Statement> {
    let (key, _) = files.get_key_value("invisible")?;
    let patterns = patterns(table(files, "invisible")?, "paths", Comparison::Folded);
    let patterns = patterns.into_iter().map(|pattern| pattern.at_any_depth().and_beneath());
    Some(Statement {
        span: key.span(),
        patterns: patterns.collect(),
        actions: ActionSet::NONE,
        ..blank("files.invisible".to_owned(), StatementKind::InvisibleText)
    })
}

fn network_rule(rule: &DeTable<'_>) -> Option<Statement> {
    let id = rule.get("id")?;
    let effect = effect(rule.get("effect")?.get_ref().as_str()?);
    let id_text = id.get_ref().as_str()?.to_owned();
    let kind = StatementKind::NetworkRule(effect);
    Some(Statement { span: id.span(), actions: ActionSet::NONE, ..blank(id_text, kind) })
}

fn effect(word: &str) -> Effect {
    match word {
        "allow" => Effect::Allow,
        "ask" => Effect::Ask,
        _ => Effect::Deny,
    }
}

fn rule(rule: &DeTable<'_>) -> Option<Statement> {
    let id = rule.get("id")?;
    let effect = effect(rule.get("effect")?.get_ref().as_str()?);
    let comparison = if effect == Effect::Allow { Comparison::Exact } else { Comparison::Folded };
    let mut statement = blank(id.get_ref().as_str()?.to_owned(), StatementKind::Rule(effect));
    statement.span = id.span();
    statement.patterns = patterns(rule, "paths", comparison);
    let scope = rule.get("scope").and_then(|value| value.get_ref().as_str());
    if effect != Effect::Allow && scope != Some("entry") {
        let written = std::mem::take(&mut statement.patterns);
        statement.patterns = written.into_iter().map(PathPattern::and_beneath).collect();
    }
    if rule.contains_key("operations") {
        statement.actions = texts(rule, "operations")
            .filter_map(|(word, _)| word.parse().ok())
            .fold(ActionSet::NONE, |set, word| set | ActionSet::of_word(word));
    }
    if rule.contains_key("agents") {
        statement.agent_names = texts(rule, "agents").map(|(text, _)| text).collect();
        let names = statement.agent_names.iter().map(String::as_str);
        statement.agents = Agents::named(names, comparison);
        if statement.agent_names.iter().any(|name| name == "*") {
            statement.agents = Agents::All;
            statement.agent_names.clear();
        }
    }
    // Accesses that an operation never needs are left out.
    statement.actions = statement
        .actions()
        .fold(ActionSet::NONE, |set, (operation, access)| set | ActionSet::one(operation, access));
    Some(statement)
}

fn blank(id: String, kind: StatementKind) -> Statement {
    Statement {
        id,
        kind,
        span: 0..0,
        patterns: Vec::new(),
        extensions: Vec::new(),
        agent_names: Vec::new(),
        agents: Agents::All,
        actions: ActionSet::all(),
    }
}

fn patterns(section: &DeTable<'_>, key: &str, comparison: Comparison) -> Vec<PathPattern> {
    texts(section, key)
        .filter_map(|(text, span)| PathPattern::new(&text, span, comparison).ok())
        .collect()
}

fn table<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    parent.get(key)?.get_ref().as_table()
}

fn list<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> impl Iterator<Item = &'a Value<'i>> {
    let list = parent.get(key).and_then(|value| value.get_ref().as_array());
    list.into_iter().flat_map(|list| list.iter())
}

fn texts(parent: &DeTable<'_>, key: &str) -> impl Iterator<Item = (String, Range<usize>)> {
    list(parent, key).filter_map(|value| Some((value.get_ref().as_str()?.to_owned(), value.span())))
}
