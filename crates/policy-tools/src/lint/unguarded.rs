//! Rules that guard an operation and leave an equivalent one open.

use super::{finding::Finding, subject::Subject};
use crate::{
    entry_operation::{EntryOperation, decide},
    examples::{agents, examples_in, locations},
    model::{Access, AgentName, OperationKind, WorkspacePath},
    outline::{Statement, StatementKind},
    policy::Effect,
};

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
        let words: Vec<_> =
            open.iter().map(|entry_operation| format!("`{}`", entry_operation.as_str())).collect();
        let missing = open.first().map_or("", |entry_operation| entry_operation.as_str());
        found.push(Finding {
            id: "unguarded-operation",
            file,
            span: statement.span.clone(),
            message: format!(
                "`{}` {verb} `{}` of `{path}`, and leaves {} of it open",
                statement.id,
                guarded.as_str(),
                words.join(" and ")
            ),
            suggestion: format!("add \"{missing}\" to `operations`, unless that is meant"),
        });
    }
}

/// Returns the operation on `path` that the statement decides, and those that bypass it.
fn open(
    subject: Subject<'_>,
    statement: &Statement,
    agent: &AgentName,
    path: &WorkspacePath,
) -> Option<(EntryOperation, Vec<EntryOperation>)> {
    let asks = |operation, access| statement.asks(agent, operation, access);
    let (guarded, others): (_, &[_]) = if asks(OperationKind::Write, Access::Write) {
        (EntryOperation::Write, &[EntryOperation::Remove, EntryOperation::Rename])
    } else if asks(OperationKind::Edit, Access::Write) {
        (EntryOperation::Edit, &[EntryOperation::Write])
    } else if asks(OperationKind::Append, Access::Write) {
        (EntryOperation::Append, &[EntryOperation::Write])
    } else if asks(OperationKind::Rename, Access::Remove) {
        (EntryOperation::Rename, &[EntryOperation::Remove])
    } else {
        return None;
    };
    let decision = |entry_operation| decide(subject.policy, agent, entry_operation, path, None);
    if decision(guarded).rule() != statement.id {
        return None;
    }
    let open: Vec<_> = others
        .iter()
        .copied()
        .filter(|entry_operation| decision(*entry_operation).enforced() == Effect::Allow)
        .collect();
    (!open.is_empty()).then_some((guarded, open))
}
