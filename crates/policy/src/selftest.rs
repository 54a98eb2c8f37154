//! `[[tests]]`: an author's expectations compared with the policy's decisions.

use super::{
    Decision, Object, ObjectKind, Policy,
    diagnostics::{Diagnostics, Problem, Source},
    statements::{Statements, Test, TestSubject},
};
use crate::model::OperationKind;

/// Runs the tests of one file on the policy that this file makes.
pub(super) fn run(
    policy: &Policy,
    statements: &Statements,
    source: &Source,
    diagnostics: &mut Diagnostics,
) {
    for test in &statements.tests {
        let decision = decide(policy, test);
        // The enforced effect counts, so that an author can switch between observing and enforcing.
        if decision.enforced() == test.effect
            && test.rule.as_ref().is_none_or(|rule| *rule == decision.rule)
        {
            continue;
        }
        let problem = Problem::new(format!("test failed: {}", outcome(test, &decision)))
            .label(format!("expected {}", expectation(test)))
            .help("correct the policy or what the test expects");
        diagnostics.report(source, Some(test.span.clone()), problem);
    }
}

fn decide(policy: &Policy, test: &Test) -> Decision {
    match &test.subject {
        TestSubject::Path { operation, path, to } => {
            let object = assumed(*operation);
            policy.decide(&test.agent, *operation, path, to.as_ref(), Some(&object))
        }
        TestSubject::Connection { connect, address, read } => {
            let decision = policy.evaluate_connect(&test.agent, connect, read);
            match address {
                Some(address) => decision.and(policy.evaluate_address(
                    &test.agent,
                    connect,
                    *address,
                    false,
                    read,
                )),
                None => decision,
            }
        }
    }
}

/// Returns the object for a tested path. Tests do not access a disk: a path is taken for a plain
/// file, or for a directory where the operation is one of directories.
fn assumed(operation: OperationKind) -> Object {
    let kind = match operation {
        OperationKind::List | OperationKind::Mkdir => ObjectKind::Directory,
        _ => ObjectKind::File,
    };
    Object { kind, links: 1, through_symlink: false }
}

fn outcome(test: &Test, decision: &Decision) -> String {
    let what = match &test.subject {
        TestSubject::Path { operation, path, to: None } => format!("`{operation}` of `{path}`"),
        TestSubject::Path { operation, path, to: Some(to) } => {
            format!("`{operation}` of `{path}` to `{to}`")
        }
        TestSubject::Connection { connect, address: None, .. } => {
            format!("`connect` to `{connect}`")
        }
        TestSubject::Connection { connect, address: Some(address), .. } => {
            format!("`connect` to `{connect}` at `{address}`")
        }
    };
    let verb = decision.enforced().verb();
    let location =
        decision.location.as_ref().map(|location| format!(" ({location})")).unwrap_or_default();
    format!("{what} by agent `{}` is {verb} by `{}`{location}", test.agent, decision.rule)
}

fn expectation(test: &Test) -> String {
    match &test.rule {
        Some(rule) => format!("{} by `{rule}`", test.effect),
        None => test.effect.to_string(),
    }
}
