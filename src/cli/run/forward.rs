//! The bypasses of the sandbox that the operator opens: methods by which the editor acts for
//! the agent.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    acp::{acts, check_forward},
    model::Escaped,
    sandbox::Enforcement,
};

/// Parses a method on the command line.
pub(super) fn parse(name: &str) -> Result<String, String> {
    check_forward(name).map(|()| name.to_owned()).map_err(|error| error.to_string())
}

/// The open bypasses. With one, the agent can evade all enforcement by the kernel.
pub(super) struct Bypasses<'a> {
    forward: &'a [String],
}

impl<'a> Bypasses<'a> {
    pub(super) fn new(forward: &'a [String]) -> Self {
        Self { forward }
    }

    fn acting(&self) -> impl Iterator<Item = &'a String> {
        self.forward.iter().filter(|name| acts(name))
    }

    /// Returns true if there is one.
    pub(super) fn any(&self) -> bool {
        self.acting().next().is_some()
    }

    /// Returns true if the agent has the editor's terminals.
    pub(super) fn has_terminals(&self) -> bool {
        self.forward.iter().any(|name| name.starts_with("terminal/"))
    }

    pub(super) fn warn(&self) {
        for name in self.acting() {
            errln!(
                "portcullis: warning: with `--forward {}` the editor acts for the agent, past the \
                 gateway, which counts as not confined",
                Escaped(name)
            );
        }
    }

    /// Returns the reason why the agent is not offered the gateway's MCP server.
    pub(super) fn why_alone(&self) -> String {
        let named = self.acting().next().map(String::as_str).unwrap_or_default();
        format!("not offered: `--forward {named}`")
    }

    /// Adds them to the facts of the `start` record.
    pub(super) fn note(&self, facts: &mut BTreeMap<String, Value>) {
        if self.any() {
            facts.insert("enforcement".to_owned(), Enforcement::None.as_str().into());
        }
        let is_terminal = |name: &String| name.starts_with("terminal/") || name == "terminal-auth";
        if self.forward.iter().any(is_terminal) {
            facts.insert("terminal".to_owned(), true.into());
        }
        if !self.forward.is_empty() {
            facts.insert("forward".to_owned(), self.forward.into());
        }
    }
}
