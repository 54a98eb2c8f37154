//! The ways past the cell that the operator opens: terminals of the editor, and
//! methods by which it acts for the agent.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    acp::{acts, check_forward},
    model::Escaped,
    sandbox::Enforcement,
};

/// Reads a method from the command line.
pub(super) fn parse(name: &str) -> Result<String, String> {
    check_forward(name).map(|()| name.to_owned()).map_err(|error| error.to_string())
}

/// What is open. Whatever the kernel enforces, the agent has a way round it.
pub(super) struct Ways<'a> {
    /// Whether the policy lets the agent use terminals.
    terminal: bool,
    forward: &'a [String],
}

impl<'a> Ways<'a> {
    pub(super) fn new(terminal: bool, forward: &'a [String]) -> Self {
        Self { terminal, forward }
    }

    fn acting(&self) -> impl Iterator<Item = &'a String> {
        self.forward.iter().filter(|name| acts(name))
    }

    /// Whether there is any.
    pub(super) fn any(&self) -> bool {
        self.terminal || self.acting().next().is_some()
    }

    pub(super) fn warn(&self) {
        if self.terminal {
            errln!(
                "portcullis: warning: the policy lets the agent run commands through the \
                 editor's terminal, which counts as not confined"
            );
        }
        for name in self.acting() {
            errln!(
                "portcullis: warning: with `--forward {}` the editor acts for the agent, past the \
                 gate, which counts as not confined",
                Escaped(name)
            );
        }
    }

    /// Why the agent is not offered the gate's MCP server.
    pub(super) fn why_alone(&self) -> String {
        match (self.terminal, self.acting().next()) {
            (false, Some(name)) => format!("not offered: `--forward {name}`"),
            _ => "not offered: the agent may use a terminal".to_owned(),
        }
    }

    /// Puts them on record.
    pub(super) fn note(&self, facts: &mut BTreeMap<String, Value>) {
        if self.any() {
            facts.insert("enforcement".to_owned(), Enforcement::None.as_str().into());
        }
        let is_terminal = |name: &String| name.starts_with("terminal/") || name == "terminal-auth";
        if self.terminal || self.forward.iter().any(is_terminal) {
            facts.insert("terminal".to_owned(), true.into());
        }
        if !self.forward.is_empty() {
            facts.insert("forward".to_owned(), self.forward.into());
        }
    }
}
