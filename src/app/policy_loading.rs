//! Loading the policy that the command line names, and what is said where it cannot be used.

use serde_json::{Value, json};

use super::{
    failure::{Exit, Failure},
    output::{colours_on_stderr, lines},
};
use crate::{
    config::{self, LoadedPolicy, Operator, PolicyTexts},
    policy::{Mode, Policy},
};

/// Loads the policy that the command line names, for its author; a failure has
/// what is wrong with it, with its source lines.
pub(crate) fn load(reference: &str) -> Result<Policy, Failure> {
    PolicyTexts::draft(reference)
        .and_then(|texts| texts.compile())
        .map_err(|error| unusable(reference, &error))
}

/// The same for a policy that is to be enforced.
pub(crate) fn load_trusted(reference: &str, operator: &Operator) -> Result<LoadedPolicy, Failure> {
    config::load_trusted(reference, operator).map_err(|error| unusable(reference, &error))
}

/// The failure when a policy does not load; for a program, its object says what
/// that of `policy check` does.
pub(crate) fn unusable(reference: &str, error: &config::Error) -> Failure {
    Failure::new(format_args!("the policy `{reference}` cannot be used"))
        .exit(Exit::Policy)
        .details(rendered(error), "policies", json!([error_json(reference, error)]))
}

/// Says so when the policy only observes.
pub(crate) fn warn_of_observing(policy: &Policy) {
    if policy.mode() == Mode::Observe {
        errln!(
            "portcullis: warning: the policy `{}` observes: what nothing allows passes and is \
             recorded as `wouldDeny`; denials, questions, types and content are enforced",
            policy.name()
        );
    }
}

/// What is said after the number of a policy's own tests.
pub(crate) fn extended_tests(policy: &Policy) -> String {
    match policy.tests().saturating_sub(policy.own_tests()) {
        0 => String::new(),
        more => format!(", and {more} of what it extends"),
    }
}

/// An error as a person reads it, in colours when stderr is a terminal.
pub(crate) fn rendered(error: &config::Error) -> String {
    match error {
        config::Error::Invalid { diagnostics, .. } => diagnostics.render(colours_on_stderr()),
        config::Error::Unreadable { .. } => format!(
            "error: {}\n  = help: `portcullis policy init -o FILE` drafts a policy, \
             `portcullis policy list` names those that come with the program\n",
            lines(&error.to_string())
        ),
        other => format!("error: {}\n", lines(&other.to_string())),
    }
}

/// What is wrong with a policy.
pub(crate) fn error_json(file: &str, error: &config::Error) -> Value {
    match error {
        config::Error::Invalid { diagnostics, .. } => json!({
            "file": file,
            "ok": false,
            "errors": diagnostics.iter().collect::<Vec<_>>(),
            "omitted": diagnostics.omitted(),
        }),
        other => json!({
            "file": file,
            "ok": false,
            "errors": [{ "file": file, "message": other.to_string() }],
            "omitted": 0,
        }),
    }
}
