//! The loading of the policy that the command line names, and messages about unusable ones.

use serde_json::{Value, json};

use super::{
    failure::{Exit, Failure},
    output::{colours_on_stderr, lines},
};
use crate::{
    config::{self, LoadedPolicy, Operator, PolicyTexts},
    policy::{Mode, Policy},
};

/// Loads the policy that the command line names, for its author; a failure contains the
/// diagnostics with source lines.
pub(crate) fn load(reference: &str) -> Result<Policy, Failure> {
    PolicyTexts::draft(reference)
        .and_then(|texts| texts.compile())
        .map_err(|error| unusable(reference, &error))
}

/// Loads a policy that is to be enforced.
pub(crate) fn load_trusted(reference: &str, operator: &Operator) -> Result<LoadedPolicy, Failure> {
    config::load_trusted(reference, operator).map_err(|error| unusable(reference, &error))
}

/// Returns the failure of a policy that does not load; its object has the fields of `policy
/// check`.
pub(crate) fn unusable(reference: &str, error: &config::Error) -> Failure {
    Failure::new(format_args!("the policy `{reference}` cannot be used"))
        .exit(Exit::Policy)
        .details(rendered(error), "policies", json!([error_json(reference, error)]))
}

/// Returns the problem of a configuration with keys of which no policy needs a signature.
pub(crate) fn unused_keys(operator: &Operator) -> Option<&'static str> {
    let is_problem = !operator.require_signature && !operator.policy_keys.is_empty();
    is_problem.then_some(
        "policies need no signature: `policyKeys` is of use to `policy verify` alone without \
         `requireSignature = true`",
    )
}

/// Warns of such keys.
pub(crate) fn warn_of_unused_keys(operator: &Operator) {
    if let Some(problem) = unused_keys(operator) {
        errln!("portcullis: warning: {problem}");
    }
}

/// Warns if the policy is in observe mode.
pub(crate) fn warn_of_observing(policy: &Policy) {
    if policy.mode() == Mode::Observe {
        let connections = match policy.network().mode() {
            Mode::Observe => "",
            Mode::Enforce => {
                "; rules of hosts are enforced, too, unless `[network]` has `mode = \"observe\"`"
            }
        };
        errln!(
            "portcullis: warning: the policy `{}` observes: what nothing allows passes and is \
             recorded as `wouldDeny`; denials, questions, types and content are enforced{connections}",
            policy.name()
        );
    }
}

/// Warns if the policy only observes connections.
pub(crate) fn warn_of_observed_connections(policy: &Policy) {
    if policy.network().mode() == Mode::Observe {
        errln!(
            "portcullis: warning: the policy `{}` only observes connections: programs reach every \
             host that no rule denies",
            policy.name()
        );
    }
}

/// Describes the tests of extended policies, after the number of a policy's own tests.
pub(crate) fn extended_tests(policy: &Policy) -> String {
    match policy.tests().saturating_sub(policy.own_tests()) {
        0 => String::new(),
        more => format!(", and {more} of what it extends"),
    }
}

/// Renders an error for people, in colours if stderr gets them.
pub(crate) fn rendered(error: &config::Error) -> String {
    match error {
        config::Error::Invalid { diagnostics, .. } => diagnostics.render(colours_on_stderr()),
        config::Error::Unreadable { reason, .. } if reason == config::NO_SUCH_FILE => format!(
            "error: {}\n  = help: `portcullis policy init -o FILE` drafts a policy, \
             `portcullis policy list` names those that come with the program\n",
            lines(&error.to_string())
        ),
        config::Error::Untrusted(error) => {
            format!("error: {}\n  = help: {}\n", lines(&error.to_string()), error.help())
        }
        other => format!("error: {}\n", lines(&other.to_string())),
    }
}

/// Returns the errors of a policy as JSON.
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
