//! How a change looks to a person: a unified diff of two texts.

use std::time::Duration;

use similar::TextDiff;

/// How long to look for the shortest one; what is found until then is right,
/// too, but longer.
const EFFORT: Duration = Duration::from_millis(300);
/// Lines around a change that diffs show unless told otherwise.
pub const CONTEXT: usize = 3;

/// The diff from `old` to `new`, under these names, with so many lines around
/// each change; empty when they are equal.
pub fn unified_diff(old: &str, new: &str, names: (&str, &str), context: usize) -> String {
    TextDiff::configure()
        .timeout(EFFORT)
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(context)
        .header(names.0, names.1)
        .to_string()
}
