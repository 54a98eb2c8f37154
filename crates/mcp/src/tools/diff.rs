//! A change as a unified diff in a Markdown fence.

use crate::{gateway::unified_diff, model::distinct, question::fence};

/// Lines of context, as many as the reference server shows.
const CONTEXT: usize = 4;

/// Returns the diff from `old` to `new`, in a fence that nothing in it closes.
pub(super) fn fenced(path: &str, old: &str, new: &str) -> String {
    let path = distinct(path, &[]);
    let names = (format!("{path}\toriginal"), format!("{path}\tmodified"));
    let diff = unified_diff(old, new, (&names.0, &names.1), CONTEXT);
    let fence = fence(&diff);
    let head = format!("Index: {path}\n{}\n", "=".repeat(67));
    let end = if diff.ends_with('\n') || diff.is_empty() { "" } else { "\n" };
    format!("{fence}diff\n{head}{diff}{end}{fence}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_says_what_changes_and_stays_in_its_fence() {
        let diff = fenced("a.md", "one\n```\n", "two\n```\n");
        assert!(diff.starts_with("````diff\nIndex: a.md\n"), "{diff}");
        assert!(diff.contains("\n-one\n+two\n") && diff.ends_with("\n````\n\n"), "{diff}");
    }

    #[test]
    fn a_name_makes_no_line_of_the_diff() {
        let diff = fenced("a\n+forged", "one\n", "two\n");
        assert!(diff.contains("Index: a\\n+forged\n=") && !diff.contains("\n+forged"), "{diff}");
    }

    #[test]
    fn a_line_of_nothing_but_backticks_takes_one_look() {
        // A search for each length of the fence would take minutes.
        let line = "`".repeat(2 << 20);
        let diff = fenced("a.md", "", &line);
        assert!(diff.ends_with(&format!("\n`{line}\n\n")));
    }
}
