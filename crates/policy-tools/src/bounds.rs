//! Allowances of policies that consist of several files.
//!
//! Every file that bounds an action must allow it, so one file alone opens nothing: a policy
//! allows the intersection of its bounds. A path that the new policy allows was certainly allowed
//! before if each bound of the old policy covers one of the new.

use std::collections::{BTreeMap, BTreeSet};

use super::{compared_paths::word, examples::allows};
use crate::{
    model::{Access, OperationKind},
    outline::{OutlineFile, PathPattern, Statement, StatementKind},
    policy::Effect,
};

type Allowance<'a> = (&'a Statement, &'a PathPattern);

/// Returns the patterns of the new policy that are not certain to have been open before.
pub(super) fn opening_patterns<'a>(
    old: &'a [OutlineFile],
    new: &'a [OutlineFile],
) -> Vec<&'a PathPattern> {
    let mut found = BTreeMap::new();
    for operation in OperationKind::ALL {
        for access in Access::ALL {
            let (before, after) = (bounds(old, operation, access), bounds(new, operation, access));
            // Without a bound nothing is allowed.
            if after.is_empty() {
                continue;
            }
            if before.is_empty() {
                found.extend(after.iter().flatten().map(|(_, pattern)| (&pattern.text, *pattern)));
            }
            for bound in &before {
                let uncovered = after.iter().map(|file| uncovered(file, bound));
                let least = uncovered.min_by_key(Vec::len).unwrap_or_default();
                found.extend(least.into_iter().map(|pattern| (&pattern.text, pattern)));
            }
        }
    }
    found.into_values().collect()
}

/// Returns for each file that bounds the action the patterns that the file allows.
fn bounds(
    files: &[OutlineFile],
    operation: OperationKind,
    access: Access,
) -> Vec<Vec<Allowance<'_>>> {
    let bounding = files.iter().filter(|file| file.bounds(operation, access));
    let allowances = bounding.map(|file| {
        let asked = |statement: &&Statement| {
            allows(statement) && statement.actions().any(|asked| asked == (operation, access))
        };
        let statements = file.statements.iter().filter(asked);
        statements
            .flat_map(|statement| {
                statement.patterns.iter().map(move |pattern| (statement, pattern))
            })
            .collect()
    });
    allowances.collect()
}

/// Returns the patterns of `file` that `bound` is not certain to cover for the same action.
fn uncovered<'a>(file: &[Allowance<'a>], bound: &[Allowance<'_>]) -> Vec<&'a PathPattern> {
    let words: BTreeSet<String> =
        bound.iter().map(|(statement, pattern)| word(statement, pattern)).collect();
    let covered = |(statement, pattern): &&Allowance<'_>| {
        words.contains(&word(statement, pattern))
            || bound
                .iter()
                .any(|(other, cover)| other.asks_all_agents_of(statement) && cover.covers(pattern))
    };
    file.iter().filter(|allowance| !covered(allowance)).map(|(_, pattern)| *pattern).collect()
}

/// Describes the extensions that are not certain to stay denied.
pub(super) fn opening_denied_extensions(old: &[OutlineFile], new: &[OutlineFile]) -> Vec<String> {
    let denied = |files: &[OutlineFile]| -> BTreeSet<String> {
        let statements = files.iter().flat_map(|file| &file.statements);
        let denied =
            statements.filter(|statement| statement.kind == StatementKind::DeniedExtensions);
        denied.flat_map(extensions).map(|extension| extension.to_lowercase()).collect()
    };
    let (before, after) = (denied(old), denied(new));
    before.difference(&after).map(|extension| format!("extensions.deny {extension}")).collect()
}

/// Describes the lists of extensions that may allow more than before. For each old list a new one
/// must exist that allows no more.
pub(super) fn opening_allowed_extensions(old: &[OutlineFile], new: &[OutlineFile]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for access in Access::ALL {
        let lists = |files| -> Vec<(&OutlineFile, BTreeSet<&str>)> { lists(files, access) };
        let after = lists(new);
        for (bounding, bound) in lists(old) {
            let rules = rules(bounding, access);
            let more = after.iter().map(|(file, list)| {
                let extensions = list.difference(&bound).map(|extension| (*extension).to_owned());
                // A rule of the same file allows paths of every extension.
                let rules = uncovered(&self::rules(file, access), &rules);
                extensions.chain(rules.into_iter().map(|rule| rule.text.clone())).collect()
            });
            let least = more.min_by_key(Vec::len).unwrap_or_else(|| vec!["all".to_owned()]);
            found.extend(least.iter().map(|more| format!("extensions.allow.{access} {more}")));
        }
    }
    found.into_iter().collect()
}

/// Returns each file with a list of extensions for `access`, and the list.
fn lists(files: &[OutlineFile], access: Access) -> Vec<(&OutlineFile, BTreeSet<&str>)> {
    let kind = StatementKind::AllowedExtensions(access);
    let is = |statement: &&Statement| statement.kind == kind;
    let stated = files.iter().filter_map(|file| Some((file, file.statements.iter().find(is)?)));
    stated.map(|(file, statement)| (file, extensions(statement).collect())).collect()
}

fn extensions(statement: &Statement) -> impl Iterator<Item = &str> {
    statement.extensions.iter().map(|(extension, _)| extension.as_str())
}

/// Returns the patterns of a file's `allow` rules about `access`.
fn rules(file: &OutlineFile, access: Access) -> Vec<Allowance<'_>> {
    let asked = |statement: &&Statement| {
        statement.kind == StatementKind::Rule(Effect::Allow)
            && statement.actions().any(|(_, asked)| asked == access)
    };
    let rules = file.statements.iter().filter(asked);
    rules.flat_map(|rule| rule.patterns.iter().map(move |pattern| (rule, pattern))).collect()
}
