//! A change as a unified diff in a Markdown fence.

use std::time::Duration;

use similar::TextDiff;

/// How long making a diff may look for the shortest one.
const EFFORT: Duration = Duration::from_millis(300);

/// The diff from `old` to `new`, in a fence that nothing in it closes.
pub(super) fn fenced(path: &str, old: &str, new: &str) -> String {
    let diff = TextDiff::configure().timeout(EFFORT).diff_lines(old, new);
    let diff = diff
        .unified_diff()
        .context_radius(4)
        .header(&format!("{path}\toriginal"), &format!("{path}\tmodified"))
        .to_string();
    let mut fence = "```".to_owned();
    while diff.contains(&fence) {
        fence.push('`');
    }
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
}
