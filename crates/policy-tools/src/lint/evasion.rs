//! Rules for an extension that a name with one more ending evades.

use super::{finding::Finding, subject::Subject};
use crate::{
    examples::{agents, examples_in, locations},
    model::WorkspacePath,
    outline::StatementKind,
    policy::{Effect, Query, is_extension},
};

/// An ending that people and programs add to copies.
const ENDING: &str = ".bak";

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let locations = locations(subject.statements().map(|(_, statement)| statement));
    let agents = agents(subject.outline.iter());
    for statement in subject.of_file(file) {
        let verb = match statement.kind {
            StatementKind::SecretName | StatementKind::Rule(Effect::Deny) => "denies",
            StatementKind::Rule(Effect::Ask) => "asks about",
            _ => continue,
        };
        for pattern in &statement.patterns {
            let Some(extension) = extension(&pattern.text) else { continue };
            let evaded = examples_in(pattern, "x", &locations).into_iter().find_map(|path| {
                let other = WorkspacePath::parse(&format!("{}{ENDING}", path.as_str())).ok()?;
                let passes = agents.iter().any(|agent| {
                    statement.actions().any(|(operation, access)| {
                        let ask = |path: &WorkspacePath| {
                            let query = Query { agent, operation, access, path };
                            subject.policy.evaluate(&query)
                        };
                        ask(&path).rule() == statement.id && ask(&other).is_allow()
                    })
                });
                passes.then_some((path, other))
            });
            let Some((path, other)) = evaded else { continue };
            found.push(Finding {
                id: "evadable-extension",
                file,
                span: pattern.span.clone(),
                message: format!("`{}` {verb} `{path}`, but not `{other}`", pattern.text),
                suggestion: if statement.kind == StatementKind::Rule(Effect::Ask)
                    || !is_extension(extension)
                {
                    format!("add `{}.*`", pattern.text)
                } else {
                    format!(
                        "put `{extension}` into `extensions.deny`, where any part of a name \
                         counts, or add `{}.*`",
                        pattern.text
                    )
                },
            });
        }
    }
}

/// Returns the extension of a pattern about nothing else: `**/*.pem`, `{*.pem,*.key}`.
fn extension(pattern: &str) -> Option<&str> {
    let name = pattern.rsplit('/').next()?;
    let extension = name.trim_start_matches('{').strip_prefix("*.")?;
    let plain = |c: char| {
        c.is_alphanumeric() || matches!(c, '_' | '-' | '{' | '}' | ',' | '*' | '.' | '[' | ']')
    };
    (!extension.is_empty() && extension.chars().all(plain) && !extension.ends_with('*'))
        .then_some(extension)
}
