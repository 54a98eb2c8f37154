//! Advice that claims to change nothing: it is followed, and the decisions stay the same.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Finding, Subject, lint};
use crate::{
    model::WorkspacePath,
    outline::{OutlineFile, outline},
    policy::{Policy, compile},
    random_policies::{budget, decisions, extending, paths, policy_files, read},
};

/// Lints whose advice is to remove what they point at, because it changes nothing.
const PATTERNS: [&str; 4] =
    ["covered-pattern", "duplicate-pattern", "redundant-except", "unreachable-pattern"];
const RULES: [&str; 4] = ["duplicate-rule", "shadowed-rule", "unreachable-rule", "unused-label"];
/// The number of random policies, unless `PORTCULLIS_TEST_BUDGET` multiplies it.
const CASES: u32 = 60;

fn findings(policy: &Policy, outline: &[OutlineFile]) -> Vec<Finding> {
    lint(Subject::new(policy, outline))
}

/// Returns the file's text after its advice is followed.
fn followed(text: &str, finding: &Finding) -> Option<String> {
    let (start, end) = (finding.span.start, finding.span.end);
    let (before, after) = (text.get(..start).unwrap(), text.get(end..).unwrap());
    if finding.suggestion.starts_with("change one of the two") {
        return None;
    }
    let range = if PATTERNS.contains(&finding.id) {
        start..end + after.find(' ').unwrap()
    } else if RULES.contains(&finding.id) {
        before.rfind("[[").unwrap()..end + after.find("\n\n").unwrap()
    } else {
        return None;
    };
    let mut text = text.to_owned();
    text.replace_range(range, "");
    Some(text)
}

/// Returns the decisions of the first file, those of one that extends it, and whether a preset
/// applies.
fn all_decisions(
    files: &[String],
    policy: &Policy,
    paths: &BTreeSet<WorkspacePath>,
) -> Vec<String> {
    let told = |policy: &Policy, whose: &str| -> Vec<String> {
        let all = decisions(policy, paths).into_iter();
        all.map(|(asked, effect)| format!("{whose}{asked}: {effect}")).collect()
    };
    let mut lines = told(policy, "");
    lines.extend(told(&extending(files), "extending: "));
    lines.push(format!("preset: {}", policy.network().bounding_files() == 0));
    lines
}

/// Follows each advice by itself, and compares. Returns the number of those that were followed.
fn check(files: &[String]) -> usize {
    let source = read(files);
    let policy = compile(&source).unwrap();
    let mut number = 0;
    let outline = outline(&source);
    let paths = paths(&outline);
    let before = all_decisions(files, &policy, &paths);
    for finding in findings(&policy, &outline) {
        let Some(text) = followed(&files[finding.file], &finding) else { continue };
        number += 1;
        let mut after = files.to_vec();
        after[finding.file] = text;
        let changed = compile(&read(&after));
        let changed = changed.unwrap_or_else(|error| panic!("{finding:?}: {error:?}\n{after:?}"));
        let differing: Vec<_> = before
            .iter()
            .zip(all_decisions(&after, &changed, &paths))
            .filter(|(before, after)| *before != after)
            .collect();
        assert!(differing.is_empty(), "{finding:?}\n{}\n{differing:?}", files.join("\n---\n"));
    }
    number
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES * budget()))]
    #[test]
    fn following_advice_that_changes_nothing_changes_no_decision(
        files in policy_files(),
    ) {
        prop_assume!(compile(&read(&files)).is_ok());
        check(&files);
    }
}

fn single(text: &str) -> usize {
    check(&[format!("schema = 1\n{text}")])
}

#[test]
fn advice_is_followed() {
    assert!(single("[allowedPaths]\nread = [ 'a/**', 'a/b', ]\n\n") > 0);
}

/// Each was said to be redundant or unreachable, and its removal closed or opened something.
#[test]
fn advice_that_was_wrong() {
    let secrets = |names: &str, except: &str, read: &str| {
        single(&format!(
            "[allowedPaths]\nread = [ {read}]\n[secrets]\nnames = [ {names}]\nexcept = [ {except}]\n\n"
        ));
    };
    for (names, except) in [
        ("'?x', ", "'ßx', "),
        ("'x', ", "'x?', "),
        ("'e*', ", "'e\u{301}', "),
        ("'x', ", "'x.', "),
        ("'?s', ", "'ﬁs', "),
    ] {
        secrets(names, except, "'**', ");
    }
    secrets("'?*', ", "", "'.', 'a', ");
    secrets("'*x', ", "'?x', ", "'ßx', ");
    // `*` opens no address that is not globally routable.
    single(
        "[[network.rules]]\nid = 'one'\neffect = 'allow'\nports = [443]\nhosts = [ '192.0.2.0/24', ]\n\n\
         [[network.rules]]\nid = 'all'\neffect = 'ask'\nports = [443]\nhosts = [ '*', ]\n\n",
    );
    // The only rule of a file that allows closes all else, also the hosts of a preset, and in files
    // that extend it.
    single(
        "[[network.rules]]\nid = 'old'\neffect = 'allow'\nports = [443]\nhosts = [ 'a.example', ]\n\n\
         [[network.rules]]\nid = 'no-old'\neffect = 'deny'\nhosts = [ 'a.example', ]\n\n",
    );
    single(
        "[[rules]]\nid = 'x'\neffect = 'allow'\noperations = ['write']\npaths = [ 'x/**', ]\n\n\
         [[rules]]\nid = 'no-x'\neffect = 'deny'\npaths = [ 'x', 'x/**', ]\n\n",
    );
}
