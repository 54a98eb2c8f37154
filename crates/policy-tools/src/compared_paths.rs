//! Differences between two policies in their text, and the example paths for them.

use std::collections::BTreeSet;

use super::{
    bounds::{opening_allowed_extensions, opening_denied_extensions, opening_patterns},
    examples::{allows, examples_in, locations},
};
use crate::{
    compare::SettingChange,
    model::WorkspacePath,
    outline::{OutlineFile, PathPattern, Statement, StatementKind},
    policy::Effect,
};

/// Maximum number of example paths that are made from patterns.
const MAX_EXAMPLES: usize = 50_000;

/// Returns a path for every pattern, with every extension that is distinguished, and true if there
/// were more. A pattern that only one side denies or excepts at any depth gets an example wherever
/// either side allows anything.
pub(super) fn examples(
    old: &[OutlineFile],
    new: &[OutlineFile],
) -> (BTreeSet<WorkspacePath>, bool) {
    let told = CommonStatements::by(old, new);
    let statements = || old.iter().chain(new).flat_map(|file| &file.statements);
    let mut names: BTreeSet<String> = BTreeSet::from(["x".to_owned()]);
    for statement in statements() {
        names.extend(statement.extensions.iter().map(|(extension, _)| format!("x.{extension}")));
    }
    let mut examples = BTreeSet::new();
    let locations = locations(statements());
    for statement in statements() {
        // Extensions matter only in statements that allow.
        for name in names.iter().take(if allows(statement) { usize::MAX } else { 1 }) {
            examples.extend(statement.patterns.iter().flat_map(|pattern| pattern.examples(name)));
        }
    }
    let secrets = secret_names(statements());
    for statement in statements() {
        let anys = match statement.kind {
            StatementKind::SecretName | StatementKind::Rule(Effect::Deny | Effect::Ask) => {
                BTreeSet::from(["x".to_owned()])
            }
            // An exception opens only paths that have the name of a secret.
            StatementKind::SecretException => secrets.clone(),
            _ => continue,
        };
        for pattern in statement.patterns.iter().filter(|pattern| told.apart(statement, pattern)) {
            for any in &anys {
                if examples.len() <= MAX_EXAMPLES {
                    let named = examples_in(pattern, any, &locations);
                    if pattern.is_about_trees() {
                        examples.extend(named.iter().filter_map(|path| path.join("x").ok()));
                    }
                    examples.extend(named);
                }
            }
        }
    }
    let cut = examples.len() > MAX_EXAMPLES;
    (examples.into_iter().take(MAX_EXAMPLES).collect(), cut)
}

/// Returns further paths for each pattern on which the sides differ, and true if there were more.
pub(super) fn variants(
    old: &[OutlineFile],
    new: &[OutlineFile],
    letters: &[char],
) -> (BTreeSet<WorkspacePath>, bool) {
    let told = CommonStatements::by(old, new);
    let mut variants = BTreeSet::new();
    for statement in old.iter().chain(new).flat_map(|file| &file.statements) {
        for pattern in statement.patterns.iter().filter(|pattern| told.apart(statement, pattern)) {
            variants.extend(pattern.variants("x", letters));
        }
    }
    let cut = variants.len() > MAX_EXAMPLES;
    (variants.into_iter().take(MAX_EXAMPLES).collect(), cut)
}

/// Returns the patterns and extensions that may open although no example shows it: a denial that is
/// removed or changed and not certainly covered by others, an exception or allowance that was not
/// certainly one before, and a change of extensions.
pub(super) fn unproven(old: &[OutlineFile], new: &[OutlineFile]) -> Vec<SettingChange> {
    let told = CommonStatements::by(old, new);
    let said = |files| -> Vec<(&Statement, &PathPattern)> { all(files).collect() };
    let (before, after) = (said(old), said(new));
    let is = |kind| move |(statement, _): &&(&Statement, &PathPattern)| statement.kind == kind;
    let exceptions: Vec<_> = after.iter().filter(is(StatementKind::SecretException)).collect();
    let allowed = |pattern: &PathPattern| {
        let mut allowing = after.iter().filter(|(statement, _)| allows(statement));
        allowing.any(|(_, other)| other.may_meet(pattern))
    };
    let mut changes = Vec::new();
    let mut change = |key, what: &str, old: &str, new: &str| {
        let [old, new] = [old, new].map(|word| format!("`{what}` {word}"));
        changes.push(SettingChange { key, old, new, opens: true, decides: true });
    };
    for (statement, pattern) in &before {
        let severity = severity(statement.kind);
        if severity == 0 || !told.apart(statement, pattern) || !allowed(pattern) {
            continue;
        }
        let closes = |(other, cover): &(&Statement, &PathPattern)| {
            let excepted = statement.kind != StatementKind::SecretName
                && other.kind == StatementKind::SecretName
                && exceptions.iter().any(|(_, exception)| exception.may_meet(pattern));
            self::severity(other.kind) >= severity && !excepted && cover.covers(pattern)
        };
        if !covered_by_all(statement, after.iter().copied().filter(closes)) {
            change("denials", &pattern.text, "closed", "not certain to be closed");
        }
    }
    for (statement, pattern) in &after {
        if statement.kind != StatementKind::SecretException || !told.apart(statement, pattern) {
            continue;
        }
        let mut names = before.iter().filter(is(StatementKind::SecretName));
        let meets = names.any(|(_, name)| name.may_meet(pattern)) && allowed(pattern);
        let same = |(other, cover): &(&Statement, &PathPattern)| {
            other.kind == statement.kind && cover.covers(pattern)
        };
        if meets && !covered_by_all(statement, before.iter().copied().filter(same)) {
            change("exceptions", &pattern.text, "not certain to be open", "open");
        }
    }
    for pattern in opening_patterns(old, new) {
        change("allowances", &pattern.text, "not certain to be open", "open");
    }
    if after.iter().any(|(statement, _)| allows(statement)) {
        for extension in opening_denied_extensions(old, new) {
            change("denials", &extension, "closed", "not certain to be closed");
        }
        for extension in opening_allowed_extensions(old, new) {
            change("allowances", &extension, "not certain to be open", "open");
        }
    }
    changes
}

fn all(files: &[OutlineFile]) -> impl Iterator<Item = (&Statement, &PathPattern)> {
    files
        .iter()
        .flat_map(|file| &file.statements)
        .flat_map(|statement| statement.patterns.iter().map(move |pattern| (statement, pattern)))
}

/// Returns a rank of how much a statement restricts.
fn severity(kind: StatementKind) -> u8 {
    match kind {
        StatementKind::SecretName | StatementKind::Rule(Effect::Deny) => 2,
        StatementKind::Rule(Effect::Ask) => 1,
        _ => 0,
    }
}

/// True if others together apply, for all its agents, to every action that `statement` applies to.
fn covered_by_all<'a>(
    statement: &Statement,
    others: impl Iterator<Item = (&'a Statement, &'a PathPattern)>,
) -> bool {
    let others = others.filter(|(other, _)| other.asks_all_agents_of(statement));
    let said: Vec<_> = others.flat_map(|(other, _)| other.actions()).collect();
    statement.actions().all(|action| said.contains(&action))
}

/// Returns names that secrets have, and one that need not be a secret's.
fn secret_names<'a>(statements: impl Iterator<Item = &'a Statement>) -> BTreeSet<String> {
    let names = statements
        .filter(|statement| statement.kind == StatementKind::SecretName)
        .flat_map(|statement| &statement.patterns)
        .flat_map(|pattern| pattern.examples("x").collect::<Vec<_>>());
    let names = names.filter_map(|path| path.file_name().map(str::to_owned));
    names.chain(["x".to_owned()]).collect()
}

/// The statements that both sides make.
struct CommonStatements {
    both: BTreeSet<String>,
    /// True if the same names and exceptions stand together in one file on both sides.
    same_secrets: bool,
    /// True if the same holds for statements that allow, or if neither side has several files of
    /// them.
    same_allowed: bool,
}

impl CommonStatements {
    fn by(old: &[OutlineFile], new: &[OutlineFile]) -> Self {
        let told = |files: &[OutlineFile]| -> BTreeSet<String> {
            files.iter().flat_map(|file| &file.statements).flat_map(words).collect()
        };
        let same = |about: fn(&Statement) -> bool| {
            statement_sets(old, about) == statement_sets(new, about)
        };
        Self {
            both: told(old).intersection(&told(new)).cloned().collect(),
            same_secrets: same(about_secrets),
            same_allowed: same(allows)
                || [old, new].iter().all(|files| statement_sets(files, allows).len() < 2),
        }
    }

    /// True if the sides differ on a pattern. An exception limits the names of its own file only,
    /// and every file that bounds must allow: the effect of both depends on the other statements of
    /// the file.
    fn apart(&self, statement: &Statement, pattern: &PathPattern) -> bool {
        let moved = match statement.kind {
            StatementKind::SecretException => !self.same_secrets,
            _ if allows(statement) => !self.same_allowed,
            _ => false,
        };
        moved || !self.both.contains(&word(statement, pattern))
    }
}

fn about_secrets(statement: &Statement) -> bool {
    matches!(statement.kind, StatementKind::SecretName | StatementKind::SecretException)
}

/// Returns for each file the statements that are `about` something, irrespective of the file's
/// name.
fn statement_sets(files: &[OutlineFile], about: fn(&Statement) -> bool) -> BTreeSet<Vec<String>> {
    let set = |file: &OutlineFile| {
        let statements = file.statements.iter().filter(|statement| about(statement));
        let mut words: Vec<_> = statements
            .flat_map(|statement| {
                [format!("{:?}", statement.kind)].into_iter().chain(words(statement))
            })
            .collect();
        words.sort_unstable();
        words.dedup();
        words
    };
    files.iter().map(set).filter(|words| !words.is_empty()).collect()
}

fn words(statement: &Statement) -> Vec<String> {
    statement.patterns.iter().map(|pattern| word(statement, pattern)).collect()
}

/// Returns a key of a statement's meaning with one of its patterns.
pub(super) fn word(statement: &Statement, pattern: &PathPattern) -> String {
    let about: Vec<_> = statement.actions().collect();
    let trees = pattern.is_about_trees();
    format!("{:?} {:?} {trees} {:?} {about:?}", statement.kind, pattern.text, statement.agent_names)
}
