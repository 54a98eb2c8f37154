//! Differences between two policies in their text, and the example paths for them.

use std::{borrow::Cow, collections::BTreeSet};

use super::{
    bounds::{opening_allowed_extensions, opening_denied_extensions, opening_patterns},
    examples::{allows, examples_in, locations},
};
use crate::{
    compare::SettingChange,
    model::{Access, OperationKind, WorkspacePath},
    outline::{OutlineFile, PathPattern, Statement, StatementKind},
    policy::Effect,
};

/// Maximum number of example paths that are made from patterns.
const MAX_EXAMPLES: usize = 50_000;
/// The certain effect, before and now, of a pattern that may open what it closed.
const CLOSED: [&str; 2] = ["closed", "not certain to be closed"];
/// The certain effect, before and now, of a pattern that may open what it is about.
const OPEN: [&str; 2] = ["not certain to be open", "open"];

/// Returns a path for every pattern, with every extension that is distinguished, and true if there
/// were more. A pattern that only one side denies or excepts at any depth gets an example wherever
/// either side allows anything.
pub(super) fn examples(
    old: &[OutlineFile],
    new: &[OutlineFile],
) -> (BTreeSet<WorkspacePath>, bool) {
    let told = CommonStatements::by(old, new);
    let statements = || about_paths(old, new);
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
    for statement in about_paths(old, new) {
        for pattern in statement.patterns.iter().filter(|pattern| told.apart(statement, pattern)) {
            variants.extend(pattern.variants("x", letters));
        }
    }
    let cut = variants.len() > MAX_EXAMPLES;
    (variants.into_iter().take(MAX_EXAMPLES).collect(), cut)
}

/// Returns the statements of both sides that are about paths.
fn about_paths<'a>(
    old: &'a [OutlineFile],
    new: &'a [OutlineFile],
) -> impl Iterator<Item = &'a Statement> {
    let statements = old.iter().chain(new).flat_map(|file| &file.statements);
    statements.filter(|statement| !statement.kind.is_of_content())
}

/// Returns the patterns and extensions that may open although no example shows it: a denial that is
/// removed or changed and not certainly covered by others, an exception or allowance that was not
/// certainly one before, and a change of extensions.
pub(super) fn unproven(old: &[OutlineFile], new: &[OutlineFile]) -> Vec<SettingChange> {
    let after = stated(new);
    let allowing = || after.iter().filter(|stated| allows(stated.statement));
    let meets = |closed: &Stated<'_>| {
        // A directory that may not be listed keeps all beneath it out of searches and the mount.
        let is_listing = closed.statement.actions().any(|(_, access)| access == Access::List);
        let beneath = closed.pattern.clone().and_beneath();
        let reach = if is_listing { &beneath } else { &*closed.reach };
        allowing().any(|stated| stated.reach.may_meet(reach))
    };
    let mut changes = unproven_denials(old, new, meets, allowing().next().is_some());
    for pattern in opening_patterns(old, new) {
        changes.push(opening("allowances", &pattern.text, OPEN));
    }
    changes
}

/// Returns the same for policies that extend the new one: what no file of it bounds, they can allow.
pub(super) fn unproven_for_extending(
    old: &[OutlineFile],
    new: &[OutlineFile],
) -> Vec<SettingChange> {
    let is_free = |(operation, access)| !new.iter().any(|file| file.bounds(operation, access));
    let is_free_of = |closed: &Stated<'_>| closed.statement.actions().any(is_free);
    let accesses = OperationKind::ALL
        .into_iter()
        .flat_map(|operation| operation.accesses().iter().map(move |access| (operation, *access)));
    unproven_denials(old, new, is_free_of, accesses.into_iter().any(is_free))
}

/// Returns the denials, exceptions and extensions that may open what may be allowed; `any` is true if
/// anything may be.
fn unproven_denials(
    old: &[OutlineFile],
    new: &[OutlineFile],
    allowed: impl Fn(&Stated<'_>) -> bool,
    any: bool,
) -> Vec<SettingChange> {
    let told = CommonStatements::by(old, new);
    let (before, after) = (stated(old), stated(new));
    let mut changes = Vec::new();
    for closed in &before {
        let severity = severity(closed.statement.kind);
        let is_secret = closed.statement.kind == StatementKind::SecretName;
        let is_apart = match is_secret {
            // The exceptions of its file count, too.
            true => !told.same_secret_files.contains(&closed.file),
            false => told.apart(closed.statement, closed.pattern),
        };
        if severity == 0 || !is_apart || !allowed(closed) {
            continue;
        }
        let excepted = |name: &Stated<'_>| {
            let mut exceptions = opening_exceptions(closed, name, &before, &after);
            exceptions.retain(|exception| allowed(exception));
            exceptions
        };
        let closes = |other: &&Stated<'_>| {
            self::severity(other.statement.kind) >= severity
                && other.reach.covers(&closed.reach)
                && (other.statement.kind != StatementKind::SecretName
                    // No secret's name closes the root.
                    || !closed.reach.matches(&WorkspacePath::root()) && excepted(other).is_empty())
        };
        if covered_by_all(closed.statement, after.iter().filter(closes)) {
            continue;
        }
        let same = names(&after).filter(|name| is_secret && name.reach.covers(&closed.reach));
        match same.map(excepted).min_by_key(Vec::len) {
            Some(excepted) => {
                let texts = excepted.iter().map(|exception| &exception.pattern.text);
                changes.extend(texts.map(|text| opening("exceptions", text, OPEN)));
            }
            None => changes.push(opening("denials", &closed.pattern.text, CLOSED)),
        }
    }
    if any {
        let (denied, listed) =
            (opening_denied_extensions(old, new), opening_allowed_extensions(old, new));
        changes.extend(denied.iter().map(|extension| opening("denials", extension, CLOSED)));
        changes.extend(listed.iter().map(|extension| opening("allowances", extension, OPEN)));
    }
    // Several names may have the same exception.
    let mut told = BTreeSet::new();
    changes.retain(|change| told.insert((change.key, change.new.clone())));
    changes
}

/// Returns the exceptions of the file of a secret name that may open what `closed` closed before,
/// although the name covers it.
fn opening_exceptions<'s, 'a>(
    closed: &Stated<'a>,
    name: &Stated<'_>,
    before: &[Stated<'a>],
    after: &'s [Stated<'a>],
) -> Vec<&'s Stated<'a>> {
    // An exception must match the very entry that would be secret. Where the name matches no other
    // entry than before, it opens nothing that was an exception before.
    let is_same_entry =
        closed.statement.kind == StatementKind::SecretName && name.pattern.covers(closed.pattern);
    let was_excepted = |exception: &Stated<'_>| {
        let mut own = exceptions(before).filter(|own| own.file == closed.file);
        own.any(|own| own.pattern.covers(exception.pattern))
    };
    let own = exceptions(after).filter(|exception| exception.file == name.file);
    let opening = own.filter(|exception| match is_same_entry {
        true => exception.pattern.may_meet(closed.pattern) && !was_excepted(exception),
        false => exception.reach.may_meet(&closed.reach),
    });
    opening.collect()
}

fn opening(key: &'static str, what: &str, [old, new]: [&str; 2]) -> SettingChange {
    let [old, new] = [old, new].map(|word| format!("`{what}` {word}"));
    SettingChange { key, old, new, opens: true, decides: true }
}

/// A pattern of a statement.
struct Stated<'a> {
    /// The index of its file.
    file: usize,
    statement: &'a Statement,
    pattern: &'a PathPattern,
    /// All that the statement closes or opens by the pattern: a secret name and an exception also
    /// what is beneath the entries that they match.
    reach: Cow<'a, PathPattern>,
}

fn stated(files: &[OutlineFile]) -> Vec<Stated<'_>> {
    let statements = files
        .iter()
        .enumerate()
        .flat_map(|(number, file)| file.statements.iter().map(move |stated| (number, stated)));
    let patterns = statements.flat_map(|(file, statement)| {
        statement.patterns.iter().map(move |pattern| {
            let reach = if about_secrets(statement) {
                Cow::Owned(pattern.clone().and_beneath())
            } else {
                Cow::Borrowed(pattern)
            };
            Stated { file, statement, pattern, reach }
        })
    });
    patterns.collect()
}

fn names<'s, 'a>(stated: &'s [Stated<'a>]) -> impl Iterator<Item = &'s Stated<'a>> {
    stated.iter().filter(|stated| stated.statement.kind == StatementKind::SecretName)
}

fn exceptions<'s, 'a>(stated: &'s [Stated<'a>]) -> impl Iterator<Item = &'s Stated<'a>> {
    stated.iter().filter(|stated| stated.statement.kind == StatementKind::SecretException)
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
fn covered_by_all<'a>(statement: &Statement, others: impl Iterator<Item = &'a Stated<'a>>) -> bool {
    let others = others.map(|other| other.statement);
    let others = others.filter(|other| other.asks_all_agents_of(statement));
    let actions: Vec<_> = others.flat_map(Statement::actions).collect();
    statement.actions().all(|action| actions.contains(&action))
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
    /// The files of the first side of which the other side has the same names and exceptions in one
    /// file.
    same_secret_files: BTreeSet<usize>,
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
            same_secret_files: {
                let theirs = statement_sets(new, about_secrets);
                let files = old.iter().map(|file| statement_set(file, about_secrets)).enumerate();
                files.filter(|(_, set)| theirs.contains(set)).map(|(number, _)| number).collect()
            },
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
    let sets = files.iter().map(|file| statement_set(file, about));
    sets.filter(|words| !words.is_empty()).collect()
}

fn statement_set(file: &OutlineFile, about: fn(&Statement) -> bool) -> Vec<String> {
    let statements = file.statements.iter().filter(|statement| about(statement));
    let mut words: Vec<_> = statements
        .flat_map(|statement| [format!("{:?}", statement.kind)].into_iter().chain(words(statement)))
        .collect();
    words.sort_unstable();
    words.dedup();
    words
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
