//! Restoration of a file's own bytes from a text with placeholders.
//!
//! A careless implementation discloses secrets: a placeholder that is moved to a place where no
//! rule finds its secret would show the secret to the next reader. So a line with a placeholder
//! must be, byte for byte, a line of the current view of the file, and must not occur more often
//! than there. The caller must check that each secret is found again in the result.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use super::{
    scanner::Hit,
    view::{Redacted, has_marker},
};

/// A content with its secrets restored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Restored {
    pub(super) bytes: Vec<u8>,
    /// The ranges of restored secrets, in order, with the hits in each.
    pub(super) secrets: Vec<(Range<usize>, Vec<Hit>)>,
}

/// The reason why a placeholder is not replaced: the line of the text, from 1, and a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MisusedPlaceholder {
    pub(super) line: u64,
    pub(super) reason: &'static str,
}

const UNKNOWN: &str = "it holds a placeholder that is none of this file as it is now; placeholders \
                       cannot be made up, changed or copied from another file. Read the file again";
const MOVED: &str = "it holds a placeholder that was moved out of its line, or its line was \
                     changed; a line with a placeholder must stay exactly as it was read";
const TWICE: &str = "its placeholder is used more often than it stands in the file";
const AMBIGUOUS: &str = "its placeholder cannot be distinguished from other text of the file";

/// A line of the view that contains a placeholder, or similar text.
struct Line<'v> {
    text: &'v [u8],
    /// Its byte range in the original; a secret of several lines is one line here.
    original: Range<usize>,
    view: Range<usize>,
}

/// Restores the secrets of `original`, whose view is `view`, in `text`.
pub(super) fn restore(
    text: &[u8],
    view: &Redacted,
    original: &[u8],
) -> Result<Restored, MisusedPlaceholder> {
    let lines = marked_lines(view);
    let mut known: HashMap<&[u8], Vec<&Line<'_>>> = HashMap::new();
    for line in lines.iter().rev() {
        known.entry(line.text).or_default().push(line);
    }
    let bytes = |line: &Line<'_>| original.get(line.original.clone()).unwrap_or_default();
    let differ = |same: &[&Line<'_>]| {
        same.windows(2).any(|two| matches!(two, [one, other] if bytes(one) != bytes(other)))
    };
    let ambiguous: HashSet<&[u8]> =
        known.iter().filter(|(_, same)| differ(same)).map(|(text, _)| *text).collect();
    let mut restored = Restored::default();
    for (number, piece) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
        let line = piece.strip_suffix(b"\n").unwrap_or(piece);
        if !has_marker(line) {
            restored.bytes.extend_from_slice(piece);
            continue;
        }
        let misused = |reason| MisusedPlaceholder { line: number, reason };
        let same = known.get_mut(line).ok_or_else(|| misused(reason(line, view)))?;
        if ambiguous.contains(line) {
            return Err(misused(AMBIGUOUS));
        }
        let from = same.pop().ok_or_else(|| misused(TWICE))?;
        let start = restored.bytes.len();
        restored.bytes.extend_from_slice(bytes(from));
        restored.bytes.extend_from_slice(piece.get(line.len()..).unwrap_or_default());
        let location = |range: &Range<usize>| {
            start + (range.start - from.original.start)..start + (range.end - from.original.start)
        };
        let first = view.spans.partition_point(|span| span.view.start < from.view.start);
        let spans = view.spans.iter().skip(first);
        for span in spans.take_while(|span| span.view.end <= from.view.end) {
            let hits = span.hits.iter();
            let hits = hits.map(|hit| Hit { rule: hit.rule, range: location(&hit.range) });
            restored.secrets.push((location(&span.original), hits.collect()));
        }
    }
    Ok(restored)
}

fn marked_lines(view: &Redacted) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut start = 0;
    for piece in view.bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = piece.strip_suffix(b"\n").unwrap_or(piece);
        let end = start + text.len();
        if has_marker(text) {
            let original = view.original_offset(start)..view.original_offset(end);
            lines.push(Line { text, original, view: start..end });
        }
        start += piece.len();
    }
    lines
}

fn reason(line: &[u8], view: &Redacted) -> &'static str {
    let spans = view.spans.iter();
    let placeholders: HashSet<&[u8]> =
        spans.filter_map(|span| view.bytes.get(span.view.clone())).collect();
    // A placeholder has one bracket at its beginning and one at its end.
    let mut bracketed = line.split_inclusive(|byte| *byte == b']').filter_map(|piece| {
        let from = piece.iter().rposition(|byte| *byte == b'[')?;
        piece.get(from..)
    });
    if bracketed.any(|part| placeholders.contains(part)) { MOVED } else { UNKNOWN }
}
