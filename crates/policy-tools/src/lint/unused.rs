//! Patterns that match nothing in the tree, exceptions without effect, and rules that decide no
//! test.

use std::collections::HashMap;

use super::{
    finding::Finding,
    index::Entries,
    subject::{Subject, is_about_everything},
};
use crate::{model::Access, outline::StatementKind, policy::ObjectKind};

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    unmatched(subject, file, found);
    directories(subject, file, found);
    everything(subject, file, found);
    exceptions(subject, file, found);
    untested(subject, file, found);
}

/// Finds patterns without a match. Secret names are left out: they are for files yet to come.
fn unmatched(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let Some(tree) = subject.tree else { return };
    let statements = subject
        .of_file(file)
        .iter()
        .filter(|statement| statement.kind != StatementKind::SecretName);
    let patterns = statements.flat_map(|statement| &statement.patterns);
    let entries = Entries::new(tree, patterns.clone());
    for pattern in patterns {
        if entries.any(pattern) {
            continue;
        }
        found.push(Finding {
            id: "unmatched-glob",
            file,
            span: pattern.span.clone(),
            message: format!("`{}` matches nothing in this workspace", pattern.text),
            suggestion: "check the spelling, or remove the pattern; keep it when the files are \
                yet to come"
                .to_owned(),
        });
    }
}

/// Finds names of directories in the lists of readable and writable paths: a directory has no
/// content, and the paths beneath it are not covered.
fn directories(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let Some(tree) = subject.tree else { return };
    let is_directory = |name: &str| {
        let entry = tree.entries.iter().find(|entry| entry.path.as_str() == name);
        entry.is_some_and(|entry| entry.object.kind == ObjectKind::Directory)
    };
    for statement in subject.of_file(file) {
        let StatementKind::AllowedPaths(Access::Read | Access::Write) = statement.kind else {
            continue;
        };
        for pattern in &statement.patterns {
            let name = &pattern.text;
            // An entry may have the name of a wildcard, which covers more than that entry.
            if name.contains(['*', '?', '[', ']', '{', '}', '\\']) {
                continue;
            }
            let beneath = format!("{name}/");
            if statement.patterns.iter().any(|other| other.text.starts_with(&beneath))
                || !is_directory(name)
            {
                continue;
            }
            found.push(Finding {
                id: "entry-without-content",
                file,
                span: pattern.span.clone(),
                message: format!("`{name}` is a directory, and what is beneath it stays closed"),
                suggestion: format!("write `{name}/**` for what is beneath it"),
            });
        }
    }
}

/// Finds a secret name that every entry has.
fn everything(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let names = subject.of_file(file).iter();
    let names = names.filter(|statement| statement.kind == StatementKind::SecretName);
    for pattern in names.flat_map(|statement| &statement.patterns) {
        if is_about_everything(pattern) {
            found.push(Finding {
                id: "secret-everything",
                file,
                span: pattern.span.clone(),
                message: format!("`{}` makes every entry of the workspace secret", pattern.text),
                suggestion: "name the entries that hold secrets; what no rule allows is denied \
                    anyway"
                    .to_owned(),
            });
        }
    }
}

fn exceptions(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let own = || subject.of_file(file).iter();
    let names = || {
        own()
            .filter(|statement| statement.kind == StatementKind::SecretName)
            .flat_map(|statement| &statement.patterns)
    };
    for except in own().filter(|statement| statement.kind == StatementKind::SecretException) {
        for pattern in &except.patterns {
            let disabled: Vec<_> = names()
                .filter(|name| pattern.excepts_an_alternative_of(name))
                .map(|name| format!("`{}`", name.text))
                .collect();
            let what = match &*disabled {
                _ if is_about_everything(pattern) && names().next().is_some() => {
                    Some("every secret name of this file".to_owned())
                }
                [] => None,
                [name] => Some(format!("all that the secret name {name} matches")),
                names => Some(format!("all that the secret names {} match", names.join(", "))),
            };
            if let Some(what) = what {
                found.push(Finding {
                    id: "except-everything",
                    file,
                    span: pattern.span.clone(),
                    message: format!("`{}` excepts {what}", pattern.text),
                    suggestion: "name the entries that only look like secrets".to_owned(),
                });
            } else if !names().any(|name| name.may_meet(pattern)) {
                found.push(Finding {
                    id: "redundant-except",
                    file,
                    span: pattern.span.clone(),
                    message: format!(
                        "no pattern in `secrets.names` of this file matches `{}` itself",
                        pattern.text
                    ),
                    suggestion: "remove it; an exception cuts names of its own file only, and \
                        must match the very entry that would be secret"
                        .to_owned(),
                });
            }
        }
    }
}

fn untested(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let (Some(tests), Some(outline)) = (subject.tests, subject.outline.get(file)) else { return };
    if tests.tests.is_empty() {
        if file == 0 {
            found.push(Finding {
                id: "no-tests",
                file,
                span: 0..0,
                message: "the policy has no tests".to_owned(),
                suggestion: "add `[[tests]]` for what must stay allowed and what must stay denied"
                    .to_owned(),
            });
        }
        return;
    }
    let decide = outline.statements.iter().filter(|statement| statement.kind.decides());
    let statements: HashMap<_, _> = decide.map(|statement| (&statement.id, statement)).collect();
    for rule in
        tests.coverage.iter().filter(|rule| rule.tests == 0 && rule.location.file == outline.name)
    {
        let Some(statement) = statements.get(&rule.rule) else { continue };
        found.push(Finding {
            id: "untested-rule",
            file,
            span: statement.span.clone(),
            message: format!("`{}` decides no test", rule.rule),
            suggestion: format!("add a test with `expect = {{ …, rule = \"{}\" }}`", rule.rule),
        });
    }
}
