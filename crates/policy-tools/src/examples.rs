//! Example paths of patterns, which show the decisions on files that do not exist yet.

use std::collections::BTreeSet;

use crate::{
    model::{AgentName, WorkspacePath},
    outline::{OutlineFile, PathPattern, Statement, StatementKind},
    policy::Effect,
};

/// Maximum number of characters that are tried in place of one character of a pattern.
const MAX_LETTERS: usize = 32;

/// Returns the directories in which statements allow anything, the root first.
pub(super) fn locations<'a>(
    statements: impl Iterator<Item = &'a Statement>,
) -> BTreeSet<WorkspacePath> {
    let examples = statements
        .filter(|statement| allows(statement))
        .flat_map(|statement| &statement.patterns)
        .flat_map(|pattern| pattern.examples("x").collect::<Vec<_>>());
    std::iter::once(WorkspacePath::root())
        .chain(examples.filter_map(|path| path.parent()))
        .collect()
}

/// True if a statement allows paths.
pub(super) fn allows(statement: &Statement) -> bool {
    matches!(statement.kind, StatementKind::AllowedPaths(_) | StatementKind::Rule(Effect::Allow))
}

/// Returns the examples of a pattern, with `any` in place of every wildcard name. For a pattern
/// that applies at any depth, examples in each of `locations` are added.
pub(super) fn examples_in(
    pattern: &PathPattern,
    any: &str,
    locations: &BTreeSet<WorkspacePath>,
) -> Vec<WorkspacePath> {
    let mut examples: Vec<_> = pattern.examples(any).collect();
    if pattern.any_depth() {
        for location in locations.iter().filter(|location| !location.is_root()) {
            examples.extend(pattern.examples(any).filter_map(|path| {
                WorkspacePath::parse(&format!("{}/{}", location.as_str(), path.as_str())).ok()
            }));
        }
    }
    examples
}

/// Returns characters that distinguish the character classes in patterns of paths and agents.
pub(super) fn letters<'a>(files: impl Iterator<Item = &'a OutlineFile>) -> Vec<char> {
    let mut letters = BTreeSet::new();
    for statement in files.flat_map(|file| &file.statements) {
        letters.extend(statement.patterns.iter().flat_map(PathPattern::class_letters));
        letters.extend(
            agent_patterns(statement)
                .flat_map(|pattern| pattern.class_letters().collect::<Vec<_>>()),
        );
    }
    letters.into_iter().take(MAX_LETTERS).collect()
}

fn agent_patterns(statement: &Statement) -> impl Iterator<Item = PathPattern> {
    statement.agent_names.iter().filter_map(|text| PathPattern::allowing(text).ok())
}

/// Returns further agents that patterns of agents match.
pub(super) fn agent_variants<'a>(
    files: impl Iterator<Item = &'a OutlineFile>,
    letters: &[char],
) -> BTreeSet<AgentName> {
    let patterns = files.flat_map(|file| &file.statements).flat_map(agent_patterns);
    let names = patterns.flat_map(|pattern| pattern.variants("x", letters).collect::<Vec<_>>());
    let names = names.map(|name| name.as_str().to_owned());
    // Agents that no pattern matches are compared, too.
    let names = names.chain(letters.iter().map(char::to_string));
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Returns the agents that the files distinguish, and one that they do not name.
pub(super) fn agents<'a>(files: impl Iterator<Item = &'a OutlineFile>) -> BTreeSet<AgentName> {
    let named = files
        .flat_map(|file| &file.statements)
        .flat_map(agent_patterns)
        .flat_map(|pattern| pattern.examples("x").collect::<Vec<_>>())
        .filter_map(|name| name.as_str().parse().ok());
    named.chain("agent".parse()).collect()
}
