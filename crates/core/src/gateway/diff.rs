//! Unified diffs of two texts, for people.

use std::{
    collections::HashMap,
    fmt::Write as _,
    ops::Range,
    time::{Duration, Instant},
};

use similar::{
    DiffOp, DiffTag,
    algorithms::{Capture, Compact, Replace, myers},
    group_diff_ops,
};

use crate::model::Escaped;

/// Timeout of the search for the shortest diff; the result is correct after it, too, but longer.
const DIFF_TIMEOUT: Duration = Duration::from_millis(300);
/// Default number of lines of context around a change.
pub const CONTEXT: usize = 3;

/// Returns the diff from `old` to `new`, under these names, with `context` lines around each
/// change; empty when they are equal. The caller escapes names so that no two look alike; a line
/// break in one, which could forge a line of the diff, is escaped here, too.
pub fn unified_diff(old: &str, new: &str, names: (&str, &str), context: usize) -> String {
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let mut text = String::new();
    for hunk in group_diff_ops(differences(&old, &new), context) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let before = first.old_range().start..last.old_range().end;
        let after = first.new_range().start..last.new_range().end;
        if text.is_empty() {
            let _ = writeln!(text, "--- {}\n+++ {}", name(names.0), name(names.1));
        }
        let _ = writeln!(text, "@@ -{} +{} @@", place(before), place(after));
        for piece in hunk {
            let (tag, before, after) = piece.as_tag_tuple();
            if tag == DiffTag::Equal {
                put(&mut text, ' ', old.get(before));
                continue;
            }
            put(&mut text, '-', old.get(before));
            put(&mut text, '+', new.get(after));
        }
    }
    text
}

/// Returns a name in one line. A tab ends the name.
fn name(text: &str) -> String {
    let pieces: Vec<_> = text.split('\t').map(|piece| Escaped(piece).to_string()).collect();
    pieces.join("\t")
}

/// Returns the range of a hunk's header: the first line, and the number of lines unless it is one;
/// of an empty range, the line before.
fn place(lines: Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        many => format!("{},{many}", lines.start + 1),
    }
}

/// Returns the operations that turn `old` into `new`. Uses the algorithm itself over numbers:
/// `TextDiff`, against which tests compare this, supports six algorithms for every kind of text,
/// was a fifteenth of the program and takes seconds to build.
fn differences(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let mut known = HashMap::new();
    let (old, new) = (numbers(&mut known, old), numbers(&mut known, new));
    let (old, new) = (old.as_slice(), new.as_slice());
    let mut hook = Compact::new(Replace::new(Capture::new()), old, new);
    let deadline = Some(Instant::now() + DIFF_TIMEOUT);
    let Ok(()) = myers::diff_deadline(&mut hook, old, 0..old.len(), new, 0..new.len(), deadline);
    hook.into_inner().into_inner().into_ops()
}

/// Returns a number for each line, the same for equal lines.
fn numbers<'t>(known: &mut HashMap<&'t str, usize>, lines: &[&'t str]) -> Vec<usize> {
    let mut number = |line| {
        let next = known.len();
        *known.entry(line).or_insert(next)
    };
    lines.iter().map(|line| number(*line)).collect()
}

/// Adds lines of a hunk, each after its sign.
fn put(text: &mut String, sign: char, lines: Option<&[&str]>) {
    for line in lines.unwrap_or_default() {
        text.push(sign);
        text.push_str(line);
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use similar::TextDiff;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_diff_that_the_library_prints(
            old in "([a-d]\n){0,40}[a-d]?",
            new in "([a-d]\n){0,40}[a-d]?",
            context in 0_usize..4,
        ) {
            let expected = TextDiff::from_lines(&old, &new)
                .unified_diff()
                .context_radius(context)
                .header("a", "b")
                .to_string();
            prop_assert_eq!(unified_diff(&old, &new, ("a", "b"), context), expected);
        }
    }
}
