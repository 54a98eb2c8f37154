//! Patterns and rules that repeat others.

use super::{
    finding::Finding,
    index::{CoverIndex, Statements},
    subject::{Subject, is_about_everything, location, only_bound},
};
use crate::{
    examples::allows,
    model::WorkspacePath,
    outline::{PathPattern, Statement, StatementKind},
    policy::Effect,
};

pub(super) fn lint(
    subject: Subject<'_>,
    file: usize,
    all: &Statements<'_>,
    found: &mut Vec<Finding>,
) {
    let own = subject.of_file(file);
    for statement in own {
        patterns(file, &statement.patterns.iter().collect::<Vec<_>>(), found);
    }
    let names = own.iter().filter(|statement| statement.kind == StatementKind::SecretName);
    patterns(file, &names.flat_map(|statement| &statement.patterns).collect::<Vec<_>>(), found);
    for statement in own {
        match statement.kind {
            StatementKind::AllowedPaths(_) => allowed(subject, file, all, statement, found),
            StatementKind::Rule(_) if duplicate(subject, file, all, statement, found) => {}
            StatementKind::Rule(Effect::Allow) => allowing(subject, file, all, statement, found),
            StatementKind::Rule(_) => narrowing(subject, file, all, statement, found),
            _ => {}
        }
    }
}

/// Finds patterns of one list that another one of the list covers.
fn patterns(file: usize, list: &[&PathPattern], found: &mut Vec<Finding>) {
    let covers = CoverIndex::new(list.iter().copied().enumerate());
    for (index, pattern) in list.iter().enumerate() {
        let others = covers.candidates(pattern).into_iter();
        let mut others = others.filter(|other| *other != index);
        let cover = others.find_map(|other| {
            let cover = list.get(other).filter(|other| other.covers(pattern))?;
            Some((other, cover))
        });
        let Some((other, cover)) = cover else { continue };
        let both_ways = pattern.covers(cover);
        if both_ways && other > index {
            continue;
        }
        let (id, what) = if pattern.text == cover.text {
            ("duplicate-pattern", "stands in this list before")
        } else {
            ("covered-pattern", "is covered by another pattern of the list")
        };
        found.push(Finding {
            id,
            file,
            span: pattern.span.clone(),
            message: format!("`{}` {what}: `{}`", pattern.text, cover.text),
            suggestion: format!("remove `{}`", pattern.text),
        });
    }
}

/// True if an earlier rule says exactly the same.
fn duplicate(
    subject: Subject<'_>,
    file: usize,
    all: &Statements<'_>,
    rule: &Statement,
    found: &mut Vec<Finding>,
) -> bool {
    let Some(first) = rule.patterns.first() else { return false };
    // Statements of one file are in the order of its text.
    let before = all
        .covering(first)
        .filter(|(number, other)| *number == file && other.span.start < rule.span.start)
        .map(|(_, other)| other);
    let same = before.into_iter().filter(|other| other.kind == rule.kind).find(|other| {
        other.asks_all_of(rule)
            && rule.asks_all_of(other)
            && covered(&rule.patterns, &other.patterns)
            && covered(&other.patterns, &rule.patterns)
    });
    let Some(same) = same else { return false };
    found.push(Finding {
        id: "duplicate-rule",
        file,
        span: rule.span.clone(),
        message: format!(
            "the rule `{}` says what `{}` says ({})",
            rule.id,
            same.id,
            location(subject, file, &same.span)
        ),
        suggestion: format!("remove one of `{}` and `{}`", same.id, rule.id),
    });
    true
}

fn covered(inner: &[PathPattern], outer: &[PathPattern]) -> bool {
    inner.iter().all(|pattern| outer.iter().any(|other| other.covers(pattern)))
}

/// Finds a denial or a question that other statements make redundant: a denial by denials, a
/// question by denials and questions.
fn narrowing(
    subject: Subject<'_>,
    file: usize,
    all: &Statements<'_>,
    rule: &Statement,
    found: &mut Vec<Finding>,
) {
    let counts = |other: &Statement| {
        (other.kind == StatementKind::Rule(Effect::Deny) || other.kind == rule.kind)
            && other.id != rule.id
            && other.asks_all_of(rule)
            // Of two equal rules, the later one has been reported already.
            && !(other.kind == rule.kind
                && rule.asks_all_of(other)
                && covered(&other.patterns, &rule.patterns))
    };
    let mut covers = Vec::new();
    for pattern in &rule.patterns {
        let cover = all.covering(pattern).find(|(_, other)| counts(other));
        match cover {
            Some(cover) => covers.push(cover),
            None => return,
        }
    }
    let Some((number, cover)) = covers.first() else { return };
    let says = if rule.kind == StatementKind::Rule(Effect::Ask) { "asks about" } else { "denies" };
    let covered_by =
        if cover.kind == StatementKind::Rule(Effect::Ask) { "ask about" } else { "deny" };
    found.push(Finding {
        id: "shadowed-rule",
        file,
        span: rule.span.clone(),
        message: format!(
            "the rule `{}` {says} nothing that `{}` does not {covered_by} ({})",
            rule.id,
            cover.id,
            location(subject, *number, &cover.span)
        ),
        suggestion: format!("remove `{}`, or widen its `paths` or `operations`", rule.id),
    });
}

/// Finds an exception that is denied or allowed anyway.
fn allowing(
    subject: Subject<'_>,
    file: usize,
    all: &Statements<'_>,
    rule: &Statement,
    found: &mut Vec<Finding>,
) {
    if let Some((number, denial)) = denied(subject, all, rule, &rule.patterns) {
        found.push(Finding {
            id: "unreachable-rule",
            file,
            span: rule.span.clone(),
            message: format!(
                "all that the rule `{}` allows is denied by `{}` ({})",
                rule.id,
                denial.id,
                location(subject, number, &denial.span)
            ),
            suggestion: if is_only_bound(subject, file, rule) {
                only_bound(&rule.id)
            } else {
                format!("remove `{}`; no `allow` rule overrides a denial", rule.id)
            },
        });
        return;
    }
    let own = subject.of_file(file);
    let listed =
        |access| own.iter().find(|statement| statement.kind == StatementKind::AllowedPaths(access));
    let accesses: std::collections::BTreeSet<_> =
        rule.actions().map(|(_, access)| access).collect();
    let bounded_above = |access| {
        subject.statements().any(|(number, statement)| {
            number != file && statement.kind == StatementKind::AllowedPaths(access)
        })
    };
    // An `allow` rule also opens what `extensions.allow` of its file closes.
    let by_extension =
        own.iter().any(|statement| matches!(statement.kind, StatementKind::AllowedExtensions(_)));
    if file == 0
        && !by_extension
        && !accesses.is_empty()
        && accesses.iter().all(|access| listed(*access).is_none() && bounded_above(*access))
    {
        found.push(Finding {
            id: "unreachable-rule",
            file,
            span: rule.span.clone(),
            message: format!(
                "the rule `{}` opens nothing: a policy that this one extends says what is allowed",
                rule.id
            ),
            suggestion: "extending only narrows; copy the extended policy and change it there"
                .to_owned(),
        });
        return;
    }
    let anyhow = accesses
        .iter()
        .all(|access| listed(*access).is_some_and(|list| covered(&rule.patterns, &list.patterns)));
    if anyhow && !by_extension && !accesses.is_empty() {
        found.push(Finding {
            id: "shadowed-rule",
            file,
            span: rule.span.clone(),
            message: format!(
                "the rule `{}` allows nothing that `allowedPaths` does not allow anyhow",
                rule.id
            ),
            suggestion: format!("remove `{}`, or narrow `allowedPaths`", rule.id),
        });
    }
}

/// True if the file allows nothing of some action but by this rule: without the rule, the file would
/// no longer close the rest, in files that it extends or that extend it.
fn is_only_bound(subject: Subject<'_>, file: usize, rule: &Statement) -> bool {
    let own = subject.of_file(file).iter();
    let others = own.filter(|statement| allows(statement) && statement.id != rule.id);
    let allowed: Vec<_> = others.flat_map(Statement::actions).collect();
    !rule.actions().all(|action| allowed.contains(&action))
}

/// Finds patterns of `[allowedPaths]` that are denied anyway.
fn allowed(
    subject: Subject<'_>,
    file: usize,
    all: &Statements<'_>,
    list: &Statement,
    found: &mut Vec<Finding>,
) {
    for pattern in &list.patterns {
        if let Some((number, denial)) = denied(subject, all, list, std::slice::from_ref(pattern)) {
            found.push(Finding {
                id: "unreachable-pattern",
                file,
                span: pattern.span.clone(),
                message: format!(
                    "all that `{}` allows is denied by `{}` ({})",
                    pattern.text,
                    denial.id,
                    location(subject, number, &denial.span)
                ),
                suggestion: format!("remove `{}`", pattern.text),
            });
        }
    }
}

/// Returns the denial that certainly covers the first of `patterns`, if every pattern has one.
fn denied<'a>(
    subject: Subject<'a>,
    all: &Statements<'a>,
    asked: &Statement,
    patterns: &[PathPattern],
) -> Option<(usize, &'a Statement)> {
    let denies = |statement: &Statement| {
        let denies =
            matches!(statement.kind, StatementKind::SecretName | StatementKind::Rule(Effect::Deny));
        denies && statement.asks_all_of(asked)
    };
    // That everything is secret is a finding of its own. A secret name never closes the workspace
    // root, and an exception may open paths that it covers.
    let is_everything = |name: &Statement| name.patterns.iter().any(is_about_everything);
    let is_of_root = |pattern: &PathPattern| pattern.matches(&WorkspacePath::root());
    let excepted = |pattern: &PathPattern| {
        subject.statements().any(|(_, statement)| {
            statement.kind == StatementKind::SecretException
                && statement.patterns.iter().any(|except| except.may_meet(pattern))
        })
    };
    let mut first = None;
    for pattern in patterns {
        let cover = all.covering(pattern).find(|(_, denial)| {
            denies(denial)
                && (denial.kind != StatementKind::SecretName
                    || !(is_everything(denial) || is_of_root(pattern) || excepted(pattern)))
        })?;
        first = first.or(Some(cover));
    }
    first
}
