//! Comments that leave lints out: `# lint: allow ID, ID` on a line of its own. It applies to the
//! lines below it, up to the next empty one.

use std::ops::Range;

use super::finding::{Finding, LINTS};
use crate::outline::OutlineFile;

const MARK: &str = "# lint: allow ";

/// Returns true if a comment leaves the finding out.
pub(super) fn is_allowed(finding: &Finding, file: &OutlineFile) -> bool {
    let before = file.text.get(..finding.span.start).unwrap_or_default();
    let above = before.rfind('\n').and_then(|end| before.get(..end)).unwrap_or_default();
    above
        .rsplit('\n')
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix(MARK))
        .any(|ids| ids.split(',').any(|id| id.trim() == finding.id))
}

/// Finds comments that name no lint.
pub(super) fn lint(number: usize, file: &OutlineFile, found: &mut Vec<Finding>) {
    for (span, id) in named(&file.text) {
        if !LINTS.iter().any(|lint| lint.id == id) {
            found.push(Finding {
                id: "unknown-lint",
                file: number,
                span,
                message: format!("there is no lint `{id}`"),
                suggestion: "write the id in brackets of the warning".to_owned(),
            });
        }
    }
}

/// Returns the ids in comments, with their byte ranges.
fn named(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    let place = |part: &str| part.as_ptr().addr() - text.as_ptr().addr();
    let ids = text.lines().filter_map(|line| line.trim().strip_prefix(MARK));
    ids.flat_map(|ids| ids.split(',')).map(move |id| {
        let id = id.trim();
        (place(id)..place(id) + id.len(), id)
    })
}
