//! `policy lint`: what a policy says that its author can hardly have meant.
//!
//! One file for each kind of lint. All of them tell only what they are sure of,
//! by asking the policy or by comparing patterns; none changes what is decided.

mod delayed;
mod evasion;
mod forms;
mod index;
mod overlap;
mod regexes;
mod unguarded;
mod unused;
mod wildcards;

use std::ops::Range;

use super::{tree::Tree, trial::TestReport};
use crate::policy::{OutlineFile, Policy};

/// Every lint: its stable id and why it matters.
pub const LINTS: &[(&str, &str)] = &[
    ("class-as-name", "a pattern about names of one character does not hold for the name meant"),
    (
        "covered-pattern",
        "a pattern that another one of the list covers is only noise to a reviewer",
    ),
    (
        "delayed-execution",
        "whoever writes such a file has something else run it later, outside the gate",
    ),
    (
        "duplicate-pattern",
        "a pattern that stands twice hides which of the two somebody will change",
    ),
    ("duplicate-rule", "two rules that say the same drift apart when one of them is changed"),
    (
        "evadable-extension",
        "an agent that may name files gives one another ending and passes the rule by",
    ),
    (
        "mixed-scripts",
        "a letter that only looks like another one makes a name that nothing has, and so nothing \
         is protected",
    ),
    ("no-tests", "without tests nobody notices when a change of the policy opens something"),
    ("redundant-except", "an exception that cuts no secret name suggests that something is open"),
    (
        "regex-as-pattern",
        "a glob that was meant as a regular expression protects or permits something else",
    ),
    (
        "regex-huge-repetition",
        "a large counted repetition makes the expression slow and heavy to compile",
    ),
    (
        "regex-without-keywords",
        "without a keyword the expression is tried on every content, which is slow",
    ),
    (
        "shadowed-rule",
        "a rule that changes nothing suggests a protection or a permission that is not there",
    ),
    (
        "unguarded-operation",
        "what a rule guards can be lost or changed by another operation on the same path",
    ),
    (
        "unmatched-glob",
        "a pattern that matches nothing is often misspelt, and then protects or permits nothing",
    ),
    ("unreachable-pattern", "what it allows is denied elsewhere, so it permits nothing"),
    ("unreachable-rule", "what it allows is denied elsewhere, so the rule permits nothing"),
    ("untested-rule", "nobody notices when a change of the policy makes the rule do nothing"),
    (
        "wildcard-in-test",
        "nothing is expanded in a test, so it says nothing of what the pattern is about",
    ),
];

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Its files; the embedded ones are not linted unless it is one itself.
    pub outline: &'a [OutlineFile],
    /// The workspace, to find patterns that match nothing.
    pub tree: Option<&'a Tree>,
    /// What its tests came to, to find rules without one.
    pub tests: Option<&'a TestReport>,
}

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The lint's stable id, one of [`LINTS`].
    pub id: &'static str,
    /// The file: an index of the outline.
    pub file: usize,
    /// The place in its text, in bytes.
    pub span: Range<usize>,
    /// What is there.
    pub message: String,
    /// What to do.
    pub suggestion: String,
}

impl Finding {
    /// Why it matters.
    pub fn why(&self) -> &'static str {
        LINTS.iter().find(|(id, _)| *id == self.id).map_or("", |(_, why)| why)
    }
}

/// Looks for everything in [`LINTS`], in the order of the files.
pub fn lint(subject: Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let statements = index::Statements::of(subject);
    for number in subject.linted() {
        overlap::lint(subject, number, &statements, &mut found);
        unused::lint(subject, number, &mut found);
        evasion::lint(subject, number, &mut found);
        regexes::lint(subject, number, &mut found);
        forms::lint(subject, number, &mut found);
        unguarded::lint(subject, number, &mut found);
        wildcards::lint(subject, number, &mut found);
    }
    delayed::lint(subject, &mut found);
    found.sort_by(|a, b| (a.file, a.span.start, a.id).cmp(&(b.file, b.span.start, b.id)));
    found.dedup();
    found
}

impl<'a> Subject<'a> {
    /// The files that are the author's to change.
    fn linted(self) -> impl Iterator<Item = usize> + 'a {
        let outline = self.outline;
        (0..outline.len()).filter(|number| {
            *number == 0 || outline.get(*number).is_some_and(|file| !file.embedded)
        })
    }

    /// All statements with the numbers of their files.
    fn statements(self) -> impl Iterator<Item = (usize, &'a crate::policy::Statement)> + Clone {
        self.outline
            .iter()
            .enumerate()
            .flat_map(|(number, file)| file.statements.iter().map(move |found| (number, found)))
    }

    /// The statements of one file.
    fn of_file(self, number: usize) -> &'a [crate::policy::Statement] {
        self.outline.get(number).map_or(&[], |file| &file.statements)
    }
}

/// `a.toml:12`, to point to another place in a message.
fn place(subject: Subject<'_>, file: usize, span: &Range<usize>) -> String {
    match subject.outline.get(file) {
        Some(file) => format!("{}:{}", file.name, file.line(span.start)),
        None => String::new(),
    }
}
