//! Files that other programs execute later and that the policy lets an agent write, taken from the
//! embedded `baseline`.

use std::collections::BTreeMap;

use super::{finding::Finding, subject::Subject};
use crate::{
    entry_operation::{EntryOperation, decide},
    examples::{agents, allows, examples_in, locations},
    model::{Access, WorkspacePath},
    outline::{Statement, StatementKind, outline},
    policy::{Decision, Effect, PolicySource},
};

pub(super) fn lint(subject: Subject<'_>, found: &mut Vec<Finding>) {
    let Some(baseline) = PolicySource::embedded("baseline") else { return };
    let outline = outline(&baseline);
    let writes =
        |statement: &&Statement| statement.actions().any(|(_, access)| access == Access::Write);
    let locations = locations(subject.statements().map(|(_, statement)| statement).filter(writes));
    let agents = agents(subject.outline.iter());
    // Most are denied by one rule each, so few remain.
    let mut open: BTreeMap<(String, u64), Vec<WorkspacePath>> = BTreeMap::new();
    let denials = outline
        .iter()
        .flat_map(|file| &file.statements)
        .filter(|statement| statement.kind == StatementKind::Rule(Effect::Deny));
    for pattern in denials.flat_map(|statement| &statement.patterns) {
        for path in examples_in(pattern, "x", &locations) {
            let allowed = agents
                .iter()
                .map(|agent| decide(subject.policy, agent, EntryOperation::Write, &path, None))
                .find(|decision| decision.is_allow());
            if let Some(location) = allowed.as_ref().and_then(Decision::location) {
                open.entry((location.file.clone(), location.line)).or_default().push(path);
            }
        }
    }
    for ((file, line), paths) in open {
        let Some((number, outline)) =
            subject.outline.iter().enumerate().find(|(_, outline)| outline.name == file)
        else {
            continue;
        };
        let statements = outline.statements.iter().filter(|statement| allows(statement));
        let spans = statements.flat_map(|statement| {
            let patterns = statement.patterns.iter().map(|pattern| pattern.span.clone());
            patterns.chain(std::iter::once(statement.span.clone()))
        });
        let here: Vec<_> = spans.filter(|span| outline.line(span.start) == line).collect();
        let shown: Vec<_> = paths.iter().take(3).map(|path| format!("`{path}`")).collect();
        let more = paths.len().saturating_sub(shown.len());
        let more = match more {
            0 => String::new(),
            1..10 => format!(" and {more} more"),
            _ => " and many more".to_owned(),
        };
        found.push(Finding {
            id: "delayed-execution",
            file: number,
            span: here.first().cloned().unwrap_or(0..0),
            message: format!(
                "an agent may write what something else executes later: {}{more}",
                shown.join(", ")
            ),
            suggestion: "add `extends = [\"baseline\"]`, which denies them".to_owned(),
        });
    }
}
