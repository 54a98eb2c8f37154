//! Paths made from patterns: what a policy says of them is what it says of
//! files that are not there yet.

use std::collections::BTreeSet;

use crate::{
    model::{AgentName, WorkspacePath},
    policy::{Effect, OutlineFile, PathPattern, Statement, StatementKind},
};

/// The directories in which statements allow anything, the root first.
pub(super) fn places<'a>(
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

/// Whether a statement allows paths.
pub(super) fn allows(statement: &Statement) -> bool {
    matches!(statement.kind, StatementKind::AllowedPaths(_) | StatementKind::Rule(Effect::Allow))
}

/// The examples of a pattern; of one that holds at any depth also in each of
/// `places`.
pub(super) fn examples_in(
    pattern: &PathPattern,
    places: &BTreeSet<WorkspacePath>,
) -> Vec<WorkspacePath> {
    let mut examples: Vec<_> = pattern.examples("x").collect();
    if pattern.any_depth() {
        for place in places.iter().filter(|place| !place.is_root()) {
            examples.extend(pattern.examples("x").filter_map(|path| {
                WorkspacePath::parse(&format!("{}/{}", place.as_str(), path.as_str())).ok()
            }));
        }
    }
    examples
}

/// The agents that the files tell apart, and one that they do not.
pub(super) fn agents<'a>(files: impl Iterator<Item = &'a OutlineFile>) -> BTreeSet<AgentName> {
    let named = files
        .flat_map(|file| &file.statements)
        .flat_map(|statement| &statement.agent_names)
        .filter_map(|text| PathPattern::allowing(text).ok())
        .flat_map(|pattern| pattern.examples("x").collect::<Vec<_>>())
        .filter_map(|name| name.as_str().parse().ok());
    named.chain("agent".parse()).collect()
}
