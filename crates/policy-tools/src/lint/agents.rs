//! Rules for agents of particular names.

use super::subject::Subject;
use crate::{
    model::AgentName,
    outline::{Statement, StatementKind},
    policy::Effect,
};

/// Returns the rules that deny or ask and apply to none of `agents`. They are no findings: an
/// operator can give an agent any name.
pub fn for_others<'o>(subject: Subject<'o>, agents: &[AgentName]) -> Vec<&'o Statement> {
    let is_restricting = |statement: &&Statement| {
        matches!(statement.kind, StatementKind::Rule(Effect::Deny | Effect::Ask))
    };
    let is_for = |statement: &Statement, agent| {
        statement.actions().any(|(operation, access)| statement.asks(agent, operation, access))
    };
    let statements = subject.outline.iter().flat_map(|file| &file.statements);
    statements
        .filter(is_restricting)
        .filter(|statement| !agents.iter().any(|agent| is_for(statement, agent)))
        .collect()
}
