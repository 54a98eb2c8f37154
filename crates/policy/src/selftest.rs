//! `[[tests]]`: what an author says the policy does, held against what it does.

use super::{
    Decision, Object, ObjectKind, Policy,
    diagnostics::{Diagnostics, Problem, Source},
    statements::{Statements, Test},
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
        let decision = policy.decide(
            &test.agent,
            test.operation,
            &test.path,
            test.to.as_ref(),
            Some(&assumed(test)),
        );
        // What the policy does when it is enforced, so that an author can go
        // from observing to enforcing and back.
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

/// Tests look at no disk: a path is taken for a plain file, or for a directory
/// where the operation is one of directories.
fn assumed(test: &Test) -> Object {
    let kind = match test.operation {
        OperationKind::List | OperationKind::Mkdir => ObjectKind::Directory,
        _ => ObjectKind::File,
    };
    Object { kind, links: 1, through_symlink: false }
}

fn outcome(test: &Test, decision: &Decision) -> String {
    let to = test.to.as_ref().map(|to| format!(" to `{to}`")).unwrap_or_default();
    let verb = decision.enforced().verb();
    let place = decision.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
    format!(
        "`{}` of `{}`{to} by agent `{}` is {verb} by `{}`{place}",
        test.operation, test.path, test.agent, decision.rule,
    )
}

fn expectation(test: &Test) -> String {
    match &test.rule {
        Some(rule) => format!("{} by `{rule}`", test.effect),
        None => test.effect.to_string(),
    }
}
