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
    terminal: bool,
}

/// `fs/*` can never be forwarded raw.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot be forwarded: the gate itself serves `fs/*`")]
pub struct ForwardError(String);

impl Allowed {
    pub(super) fn new(names: &[String], terminal: bool) -> Result<Self, ForwardError> {
        match names.iter().find(|name| name.starts_with("fs/")) {
            Some(name) => Err(ForwardError(name.clone())),
            None => Ok(Self { names: names.iter().cloned().collect(), terminal }),
        }
    }

    /// Whether a request of the agent reaches the editor.
    pub(super) fn request(&self, method: &str) -> bool {
        method == REQUEST || self.named(method)
    }

    /// Whether a notification of the agent reaches the editor.
    pub(super) fn notification(&self, method: &str) -> bool {
        method == NOTIFICATION || self.named(method)
    }

    /// Whether the operator named `name`, or allowed terminals and it is one
    /// of theirs.
    pub(super) fn named(&self, name: &str) -> bool {
        self.names.contains(name) || (self.terminal && name.starts_with("terminal/"))
    }

    /// Whether the agent may have the editor run anything in a terminal.
    pub(super) fn any_terminal(&self) -> bool {
        self.terminal || self.names.iter().any(|name| name.starts_with("terminal/"))
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
        assert!(Allowed::new(&[], true).unwrap().request("terminal/create"));
        assert!(Allowed::new(&["fs/read_text_file".into()], false).is_err());
    }
}
