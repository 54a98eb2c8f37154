//! The messages that the agent may send to the editor besides replies and `fs/*`.
//!
//! Editors run commands that agents name, so this is an allow list.

use std::collections::BTreeSet;

/// The request that always passes.
const REQUEST: &str = "session/request_permission";
/// The notification that always passes.
const NOTIFICATION: &str = "session/update";

/// The operator's exceptions, `--forward NAME`: a method (`terminal/create`, `elicitation/create`,
/// `_vendor/method`) or a key of `_meta` in the reply to `initialize` (`terminal-auth`).
#[derive(Debug, Clone)]
pub(super) struct Allowed {
    names: BTreeSet<String>,
    /// True if the gateway can start commands for the agent.
    commands: bool,
    /// Names of the environment variables that the agent has.
    variables: BTreeSet<String>,
}

/// Reasons why a name cannot be forwarded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// `fs/*` is never forwarded.
    #[error("`{0}` cannot be forwarded: the gateway itself serves `fs/*`")]
    Served(String),
    /// It is empty.
    #[error("a method has a name")]
    Nameless,
}

/// Checks that `name` may be forwarded.
///
/// # Errors
/// The reason why it may not.
pub fn check_forward(name: &str) -> Result<(), ForwardError> {
    match name {
        "" => Err(ForwardError::Nameless),
        _ if name.starts_with("fs/") => Err(ForwardError::Served(name.to_owned())),
        _ => Ok(()),
    }
}

/// True if the editor may act for the agent by `name` without the gateway: run its commands, change
/// files, reach servers. Unknown names count as such.
pub fn acts(name: &str) -> bool {
    // These are a question to the user, and the messages that always pass.
    !(name.starts_with("elicitation/") || name == REQUEST || name == NOTIFICATION)
}

impl Allowed {
    pub(super) fn new(names: &[String], commands: bool) -> Result<Self, ForwardError> {
        names.iter().try_for_each(|name| check_forward(name))?;
        let names = names.iter().cloned().collect();
        Ok(Self { names, commands, variables: BTreeSet::new() })
    }

    /// Adds the environment variables that the agent has.
    pub(super) fn with_variables(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { variables: names.into_iter().collect(), ..self }
    }

    /// True if the agent has the environment variable `name`.
    pub(super) fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// True if a request of the agent reaches the editor.
    pub(super) fn request(&self, method: &str) -> bool {
        method == REQUEST || self.named(method)
    }

    /// True if a notification of the agent reaches the editor.
    pub(super) fn notification(&self, method: &str) -> bool {
        method == NOTIFICATION || self.named(method)
    }

    /// True if the operator forwards `name`.
    pub(super) fn named(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// True if the agent may have the editor run anything in a terminal.
    pub(super) fn any_terminal(&self) -> bool {
        self.names.iter().any(|name| name.starts_with("terminal/"))
    }

    /// True if the gateway itself serves the agent's terminals, which it does not if the editor
    /// does.
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
