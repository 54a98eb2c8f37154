//! `policy test`: an author's expectations compared with a policy's decisions, and the rules that
//! no test covers.
//!
//! Questions about names are put to the policy as its own load does. Tests that need content or
//! several steps are carried out by a real gateway in a directory that the caller provides and
//! deletes.

mod file;
mod scratch;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use cap_std::fs::Dir;

use self::{
    file::{ConnectionTest, Step, Test},
    scratch::Scratch,
};
use crate::{
    model::{AgentName, OperationKind},
    outline::OutlineFile,
    policy::{Decision, Object, ObjectKind, Policy, SourceLocation},
};

/// A text with tests.
#[derive(Debug, Clone, Copy)]
pub struct TestText<'a> {
    /// The name of the file, for messages.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// True if it is a policy, whose other keys are ignored.
    pub policy: bool,
}

/// The directory for tests that need a gateway.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    /// An empty directory.
    pub dir: &'a Dir,
    /// Its path.
    pub path: &'a Path,
}

/// The results of one policy's tests.
#[derive(Debug, Clone, Default)]
pub struct TestReport {
    /// Every test, in order.
    pub tests: Vec<TestOutcome>,
    /// Every rule of the files that are not embedded (for an embedded policy, its own rules) with
    /// the number of tests that it decided.
    pub coverage: Vec<Coverage>,
}

/// The result of one test.
#[derive(Debug, Clone)]
pub struct TestOutcome {
    /// Its place in the file.
    pub location: SourceLocation,
    /// Its name, or the question that it asks.
    pub name: String,
    /// The differences from the expectations; empty if it passed.
    pub problems: Vec<String>,
    /// The decision of its last step.
    pub actual: Option<ExpectedDecision>,
}

/// A decision, with the parts that tests compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedDecision {
    /// `allow`, `deny` or `ask`.
    pub effect: String,
    /// The rule that decided.
    pub rule: String,
    /// The place of that rule in its file.
    pub location: Option<SourceLocation>,
}

impl ExpectedDecision {
    fn of(decision: &Decision) -> Self {
        Self {
            effect: decision.effect().as_str().to_owned(),
            rule: decision.rule().to_owned(),
            location: decision.location().cloned(),
        }
    }
}

/// The number of tests that a rule decided.
#[derive(Debug, Clone)]
pub struct Coverage {
    /// The rule's id.
    pub rule: String,
    /// Its place in the file.
    pub location: SourceLocation,
    /// The number of tests.
    pub tests: usize,
}

impl TestReport {
    /// Returns the number of failed tests.
    pub fn failed(&self) -> usize {
        self.tests.iter().filter(|test| !test.problems.is_empty()).count()
    }

    /// Returns the number of rules that decided a test.
    pub fn covered(&self) -> usize {
        self.coverage.iter().filter(|rule| rule.tests > 0).count()
    }
}

/// Runs the tests of `texts` on `policy`, whose files are `outline`.
///
/// # Errors
/// If a text cannot be read; with the place and the problem.
pub fn run_tests(
    policy: &Arc<Policy>,
    outline: &[OutlineFile],
    texts: &[TestText<'_>],
    stage: Stage<'_>,
) -> Result<TestReport, (SourceLocation, String)> {
    let mut report = TestReport::default();
    let mut decided: BTreeMap<(String, String), usize> = BTreeMap::new();
    for text in texts {
        let newlines: Vec<usize> = text.text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |position: usize| newlines.partition_point(|at| *at < position) as u64 + 1;
        let tests = if text.policy { file::of_policy(text.text) } else { file::of_file(text.text) };
        let tests = tests.map_err(|problem| {
            let line = problem.span.map_or(1, |span| line(span.start));
            (SourceLocation { file: text.name.to_owned(), line }, problem.message)
        })?;
        for test in tests {
            let location =
                SourceLocation { file: text.name.to_owned(), line: line(test.span.start) };
            let number = report.tests.len();
            let (problems, decisions) = if let Some(connection) = &test.connection {
                connected(policy, connection)
            } else if !test.needs_gateway {
                names_only(policy, &test)
            } else if text.policy {
                let words = "content, files and steps are for `*.test.toml` files: \
                    a policy is loaded without touching a disk";
                (vec![words.to_owned()], Vec::new())
            } else {
                mediated(policy, &test, stage, &format!("{number}"))
            };
            // A failed test does not cover the rule that decided it.
            let mut seen: Vec<_> =
                decisions.iter().filter(|_| problems.is_empty()).filter_map(covered_key).collect();
            seen.sort();
            seen.dedup();
            for key in seen {
                *decided.entry(key).or_default() += 1;
            }
            let asked = || match &test.connection {
                Some(connection) => connection_question(connection),
                None => question(test.steps.first()),
            };
            let name = test.name.clone().unwrap_or_else(asked);
            let actual = decisions.into_iter().next_back();
            report.tests.push(TestOutcome { location, name, problems, actual });
        }
    }
    report.coverage = coverage(outline, &decided);
    Ok(report)
}

fn covered_key(actual: &ExpectedDecision) -> Option<(String, String)> {
    Some((actual.location.as_ref()?.file.clone(), actual.rule.clone()))
}

fn coverage(outline: &[OutlineFile], decided: &BTreeMap<(String, String), usize>) -> Vec<Coverage> {
    let own = outline.iter().enumerate().filter(|(number, file)| *number == 0 || !file.embedded);
    own.flat_map(|(_, file)| {
        file.statements.iter().filter(|statement| statement.kind.decides()).map(|statement| {
            Coverage {
                rule: statement.id.clone(),
                location: SourceLocation {
                    file: file.name.clone(),
                    line: file.line(statement.span.start),
                },
                tests: decided
                    .get(&(file.name.clone(), statement.id.clone()))
                    .copied()
                    .unwrap_or(0),
            }
        })
    })
    .collect()
}

/// Decides a test as the policy's own load does: by names, with a path taken for a plain file, or
/// for a directory where the operation is one of directories.
fn names_only(policy: &Policy, test: &Test) -> (Vec<String>, Vec<ExpectedDecision>) {
    let Some(step) = test.steps.first() else { return (Vec::new(), Vec::new()) };
    let kind = match step.operation {
        OperationKind::List | OperationKind::Mkdir => ObjectKind::Directory,
        _ => ObjectKind::File,
    };
    let object = Object { kind, links: 1, through_symlink: false };
    let decision =
        policy.decide(&step.agent, step.operation, &step.path, step.to.as_ref(), Some(&object));
    let actual = ExpectedDecision::of(&decision);
    (compare(step, &actual, "").into_iter().collect(), vec![actual])
}

fn connected(policy: &Policy, test: &ConnectionTest) -> (Vec<String>, Vec<ExpectedDecision>) {
    let ConnectionTest { connect, address, read, agent, effect, rule } = test;
    if let Some(id) = read.iter().find(|id| !policy.labels().paths().contains_key(*id)) {
        return (vec![format!("the policy has no label `{id}`")], Vec::new());
    }
    let name = policy.evaluate_connect(agent, connect, read);
    let decision = match address {
        Some(address) => name.and(policy.evaluate_address(agent, connect, *address, false, read)),
        None => name,
    };
    let (actual, asked) = (ExpectedDecision::of(&decision), connection_question(test));
    (misjudged(&asked, effect, rule.as_deref(), &actual).into_iter().collect(), vec![actual])
}

fn mediated(
    policy: &Arc<Policy>,
    test: &Test,
    stage: Stage<'_>,
    name: &str,
) -> (Vec<String>, Vec<ExpectedDecision>) {
    let mut scratch = match Scratch::new(stage.dir, stage.path, name, policy, test) {
        Ok(scratch) => scratch,
        Err(problem) => return (vec![problem], Vec::new()),
    };
    let (mut problems, mut decisions) = (Vec::new(), Vec::new());
    for (number, step) in test.steps.iter().enumerate() {
        let which =
            if test.steps.len() > 1 { format!("step {}: ", number + 1) } else { String::new() };
        for round in 1..=step.repeat {
            let done = match scratch.run(step) {
                Ok(done) => done,
                Err(problem) => {
                    problems.push(format!("{which}{problem}"));
                    return (problems, decisions);
                }
            };
            let wrong = compare(step, &done.actual, &which).or_else(|| {
                let failed =
                    done.failed.map(|reason| format!("{which}allowed, but not done: {reason}"));
                failed.or_else(|| {
                    let expected = step.disclosed.as_ref()?;
                    (done.disclosed.as_deref() != Some(expected.as_bytes()))
                        .then(|| format!("{which}another content is disclosed than expected"))
                })
            });
            decisions.push(done.actual);
            if let Some(problem) = wrong {
                let round =
                    if step.repeat > 1 { format!(" (round {round})") } else { String::new() };
                problems.push(format!("{problem}{round}"));
                // Later steps assume that this one succeeded.
                return (problems, decisions);
            }
        }
    }
    (problems, decisions)
}

/// Returns the difference of a decision on a step from the expectation.
fn compare(step: &Step, actual: &ExpectedDecision, which: &str) -> Option<String> {
    let wrong = misjudged(&question(Some(step)), &step.effect, step.rule.as_deref(), actual)?;
    Some(format!("{which}{wrong}"))
}

/// Returns the difference of a decision on `asked` from the expectation.
fn misjudged(
    asked: &str,
    effect: &str,
    rule: Option<&str>,
    actual: &ExpectedDecision,
) -> Option<String> {
    let expected = match rule {
        Some(rule) => format!("{effect} by `{rule}`"),
        None => effect.to_owned(),
    };
    if actual.effect != effect || rule.is_some_and(|rule| *rule != actual.rule) {
        let location =
            actual.location.as_ref().map(|location| format!(" ({location})")).unwrap_or_default();
        return Some(format!(
            "{asked} is {} by `{}`{location}, expected {expected}",
            match actual.effect.as_str() {
                "allow" => "allowed",
                "deny" => "denied",
                _ => "asked about",
            },
            actual.rule,
        ));
    }
    if actual.rule == "default" && rule.is_none() {
        return Some(format!(
            "no rule decided {asked}; if that is meant, expect `rule = \"default\"`"
        ));
    }
    None
}

fn connection_question(test: &ConnectionTest) -> String {
    let at = test.address.map(|address| format!(" at `{address}`")).unwrap_or_default();
    let read: Vec<_> = test.read.iter().map(|id| format!("`{id}`")).collect();
    let after = match read.is_empty() {
        true => String::new(),
        false => format!(" after reading {}", read.join(", ")),
    };
    format!("connect `{}`{at}{after}{}", test.connect, by(&test.agent))
}

fn by(agent: &AgentName) -> String {
    match agent.as_str() {
        "agent" => String::new(),
        name => format!(" by agent `{name}`"),
    }
}

fn question(step: Option<&Step>) -> String {
    let Some(step) = step else { return String::new() };
    if let Some(connect) = &step.connect {
        return format!("{} `{connect}`{}", step.operation, by(&step.agent));
    }
    let to = step.to.as_ref().map(|to| format!(" to `{to}`")).unwrap_or_default();
    format!("{} `{}`{to}{}", step.operation, step.path, by(&step.agent))
}
