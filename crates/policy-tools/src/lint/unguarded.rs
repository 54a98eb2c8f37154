//! Rules that guard an operation and leave an equivalent one open.

use super::{finding::Finding, subject::Subject};
use crate::{
    entry_operation::{EntryOperation, EntryOperation as E, decide},
    examples::{agents, examples_in, locations},
    model::{AgentName, WorkspacePath},
    outline::{Statement, StatementKind},
    policy::Effect,
};

/// Operations, each with those that bypass a rule about it.
const BYPASSES: [(E, &[E]); 11] = [
    (E::Write, &[E::Remove, E::Rename]),
    (E::Edit, &[E::Write]),
    (E::Append, &[E::Write]),
    // A file can be written with permission to execute it.
    (E::SetAttributes, &[E::Write]),
    (E::Symlink, &[E::RenameTo]),
    (E::Mkdir, &[E::RenameTo]),
    (E::Rename, &[E::Remove]),
    (E::Remove, &[E::RenameTo]),
    (E::Grep, &[E::Read]),
    // A name that is not listed can be known.
    (E::List, &[E::Read, E::Write, E::Remove]),
    (E::Stat, &[E::List]),
];

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let locations = locations(subject.statements().map(|(_, statement)| statement));
    let agents = agents(subject.outline.iter());
    for statement in subject.of_file(file) {
        let verb = match statement.kind {
            StatementKind::Rule(Effect::Deny) => "denies",
            StatementKind::Rule(Effect::Ask) => "asks about",
            _ => continue,
        };
        let mut cases = statement
            .patterns
            .iter()
            .flat_map(|pattern| examples_in(pattern, "x", &locations))
            .flat_map(|path| agents.iter().map(move |agent| (agent, path.clone())));
        let hole = cases.find_map(|(agent, path)| {
            let (guarded, open) = open(subject, statement, agent, &path)?;
            Some((guarded, open, path))
        });
        let Some((guarded, open, path)) = hole else { continue };
        let words: Vec<_> = open.iter().map(|it| format!("`{}`", word(*it))).collect();
        // `remove` covers `rename`.
        let number = if guarded == E::Write { 1 } else { open.len() };
        let missing: Vec<_> =
            open.iter().take(number).map(|it| format!("\"{}\"", word(*it))).collect();
        let relation = if open.contains(&E::RenameTo) { "to" } else { "of" };
        found.push(Finding {
            id: "unguarded-operation",
            file,
            span: statement.span.clone(),
            message: format!(
                "`{}` {verb} `{}` of `{path}`, and leaves {} {relation} it open",
                statement.id,
                guarded.as_str(),
                words.join(", ")
            ),
            suggestion: format!("add {} to `operations`, unless that is meant", missing.join(", ")),
        });
    }
}

/// Returns the word of the operation in `operations`.
fn word(entry_operation: EntryOperation) -> &'static str {
    entry_operation.operation().as_str()
}

/// Returns the first operation on `path` that the statement decides and others bypass, with these.
fn open(
    subject: Subject<'_>,
    statement: &Statement,
    agent: &AgentName,
    path: &WorkspacePath,
) -> Option<(EntryOperation, Vec<EntryOperation>)> {
    let decision = |entry_operation| decide(subject.policy, agent, entry_operation, path, None);
    BYPASSES.into_iter().find_map(|(guarded, others)| {
        let is_guarded = statement.asks(agent, guarded.operation(), guarded.access())
            && decision(guarded).rule() == statement.id;
        let is_open = |other: &EntryOperation| decision(*other).enforced() == Effect::Allow;
        let open = others.iter().copied().filter(is_open);
        let open: Vec<_> = is_guarded.then_some(open).into_iter().flatten().collect();
        (!open.is_empty()).then_some((guarded, open))
    })
}
