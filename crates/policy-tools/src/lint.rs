//! `policy lint`: statements of a policy that its author can hardly have meant.
//!
//! One file for each kind of lint. Lints report only certain findings, by asking the policy or by
//! comparing patterns; none changes a decision.

#[cfg(test)]
mod advice_tests;
mod agents;
mod allow;
mod delayed;
mod evasion;
mod finding;
mod forms;
mod git_history;
mod hosts;
mod index;
mod labels;
mod look_alike;
mod mount;
mod overlap;
mod regexes;
mod subject;
mod unguarded;
mod unused;
mod wildcards;
mod words;

pub use agents::for_others;
pub use finding::{Finding, LINTS, Lint};
pub use git_history::{hidden, named, shows_git_objects};
pub use mount::not_in_mount;
pub use subject::Subject;

/// Runs every lint in [`LINTS`], in the order of the files. Comments in them may leave lints out.
pub fn lint(subject: Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let statements = index::Statements::of(subject);
    if let Some((file, span)) = statements.left_out() {
        found.push(Finding {
            id: "not-compared",
            file,
            span,
            message: format!(
                "more than {} patterns have no plain name: whether this one and those after it \
                 cover others was not looked at",
                index::MAX_UNNAMED
            ),
            suggestion: "name a directory in the patterns, or put some into another policy"
                .to_owned(),
        });
    }
    for number in subject.linted() {
        overlap::lint(subject, number, &statements, &mut found);
        unused::lint(subject, number, &mut found);
        evasion::lint(subject, number, &mut found);
        regexes::lint(subject, number, &mut found);
        forms::lint(subject, number, &mut found);
        unguarded::lint(subject, number, &mut found);
        wildcards::lint(subject, number, &mut found);
        words::lint(subject, number, &mut found);
        mount::lint(subject, number, &mut found);
        git_history::lint(subject, number, &mut found);
        if let Some(file) = subject.outline.get(number) {
            allow::lint(number, file, &mut found);
        }
    }
    delayed::lint(subject, &mut found);
    hosts::lint(subject, &mut found);
    labels::lint(subject, &mut found);
    found.retain(|finding| {
        !subject.outline.get(finding.file).is_some_and(|file| allow::is_allowed(finding, file))
    });
    found.sort_by(|a, b| (a.file, a.span.start, a.id).cmp(&(b.file, b.span.start, b.id)));
    found.dedup();
    found
}
