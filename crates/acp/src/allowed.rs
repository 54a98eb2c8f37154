//! What the agent may say to the editor beyond replies and `fs/*`.
//!
//! Editors run commands that agents name, so this is a list of what passes and
//! not of what does not.

use std::collections::BTreeSet;

/// Passes always, as a request.
const REQUEST: &str = "session/request_permission";
/// Passes always, as a notification.
const NOTIFICATION: &str = "session/update";

/// The operator's exceptions, `--forward NAME`: a method (`terminal/create`,
/// `elicitation/create`, `_vendor/method`) or a key of `_meta` in the reply to
/// `initialize` (`terminal-auth`).
#[derive(Debug, Clone)]
pub(super) struct Allowed {
    names: BTreeSet<String>,
    /// True if the gateway can start commands for the agent.
    commands: bool,
    /// Names of the environment variables that the agent was given.
    variables: BTreeSet<String>,
}

/// A name that cannot be forwarded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// `fs/*` is never forwarded raw.
    #[error("`{0}` cannot be forwarded: the gate itself serves `fs/*`")]
    Served(String),
    /// It is empty.
    #[error("a method has a name")]
    Nameless,
}

/// Whether `name` may be forwarded at all.
///
/// # Errors
/// Why not.
pub fn check_forward(name: &str) -> Result<(), ForwardError> {
    match name {
        "" => Err(ForwardError::Nameless),
        _ if name.starts_with("fs/") => Err(ForwardError::Served(name.to_owned())),
        _ => Ok(()),
    }
}

/// Whether the editor may act for the agent by `name`, past the gate: run its
/// commands, change files, reach servers. Of what is not known that is taken
/// for granted.
pub fn acts(name: &str) -> bool {
    // A question to the user, and what passes anyway.
    !(name.starts_with("elicitation/") || name == REQUEST || name == NOTIFICATION)
}

impl Allowed {
    pub(super) fn new(names: &[String], commands: bool) -> Result<Self, ForwardError> {
        names.iter().try_for_each(|name| check_forward(name))?;
        let names = names.iter().cloned().collect();
        Ok(Self { names, commands, variables: BTreeSet::new() })
    }

    /// The same where the agent was given these environment variables.
    pub(super) fn with_variables(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { variables: names.into_iter().collect(), ..self }
    }

    /// Whether the agent was given the environment variable `name`.
    pub(super) fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether a request of the agent reaches the editor.
    pub(super) fn request(&self, method: &str) -> bool {
        method == REQUEST || self.named(method)
    }

    /// Whether a notification of the agent reaches the editor.
    pub(super) fn notification(&self, method: &str) -> bool {
        method == NOTIFICATION || self.named(method)
    }

    /// True if the operator named `name`.
    pub(super) fn named(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether the agent may have the editor run anything in a terminal.
    pub(super) fn any_terminal(&self) -> bool {
        self.names.iter().any(|name| name.starts_with("terminal/"))
    }

    /// True if the gateway itself serves the agent's terminals: not where the editor has some, too.
    pub(super) fn serves_terminals(&self) -> bool {
        self.commands && !self.any_terminal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listed_pass_and_only_in_their_form() {
        let allowed = Allowed::new(&["_zed/x".into()], false).unwrap();
        assert!(allowed.request("session/request_permission"));
        assert!(!allowed.notification("session/request_permission"));
        assert!(allowed.notification("session/update"));
        assert!(!allowed.request("session/update"));
        assert!(allowed.request("_zed/x"));
        for method in ["terminal/create", "_zed/y", "Session/update", "session/update ", ""] {
            assert!(!allowed.request(method) && !allowed.notification(method), "{method}");
        }
        assert!(!Allowed::new(&[], true).unwrap().request("terminal/create"));
        assert!(
            Allowed::new(&["terminal/create".into()], true).unwrap().request("terminal/create")
        );
        assert!(Allowed::new(&["fs/read_text_file".into()], false).is_err());
        assert!(Allowed::new(&[String::new()], false).is_err());
    }

    #[test]
    fn the_editor_acts_by_whatever_is_not_known_to_do_nothing() {
        for name in ["terminal/create", "terminal-auth", "nes/suggest", "mcp/connect", "_v/x"] {
            assert!(acts(name), "{name}");
        }
        for name in ["elicitation/create", "session/update", "session/request_permission"] {
            assert!(!acts(name), "{name}");
        }
    }
}
