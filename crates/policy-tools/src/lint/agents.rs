//! Rules for agents of particular names.

use super::{
    forms::{MisreadPattern, class},
    subject::Subject,
};
use crate::{
    model::{AgentName, Transport},
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

/// Endings of programs, which `run` leaves out of the agent's name.
const ENDINGS: [&str; 15] = [
    "bash", "bat", "bin", "cjs", "cmd", "exe", "jar", "js", "mjs", "php", "pl", "py", "rb", "sh",
    "ts",
];

/// Finds a pattern that matches no agent's name, unless an operator gives an agent that name: it is
/// in the syntax of another language, or the name of a command, transport or program.
pub(super) fn misread(text: &str, default_agents: &[(&str, &str)]) -> Option<MisreadPattern> {
    const ID: &str = "agent-name";
    const OF_RUN: &str = "write the name of the preset or of the program";
    if let Some((id, message, _)) = class(text) {
        let suggestion = "write each name as a string of its own, without brackets";
        return Some((id, message, suggestion.to_owned()));
    }
    let folded = text.to_ascii_lowercase();
    let is_default = |name: &str| default_agents.iter().any(|(_, agent)| *agent == name);
    if let Some(before) = folded.strip_suffix(".*")
        && is_default(before)
    {
        return Some((
            "regex-as-pattern",
            format!("`.*` in `{text}` stands for text after a dot, and not for all text"),
            format!("write `{}*`", text.trim_end_matches(".*")),
        ));
    }
    if is_default(&folded) {
        return None;
    }
    if let Some((command, agent)) = default_agents.iter().find(|(command, _)| *command == folded) {
        let (name, suggestion) = match *command {
            "run" => ("that of its preset or program".to_owned(), OF_RUN.to_owned()),
            _ => (format!("`{agent}`"), format!("write `{agent}`")),
        };
        let message = format!("`{text}` is a command: by default, its agent's name is {name}");
        return Some((ID, message, suggestion));
    }
    if Transport::ALL.iter().any(|transport| transport.as_str() == folded) {
        let message = format!("`{text}` is a transport: by default, no agent has that name");
        return Some((ID, message, OF_RUN.to_owned()));
    }
    let (name, ending) = text.rsplit_once('.')?;
    ENDINGS.contains(&&*ending.to_ascii_lowercase()).then(|| {
        let message = format!("`{text}` is a program: by default, its agent's name has no ending");
        (ID, message, format!("write `{name}`"))
    })
}
