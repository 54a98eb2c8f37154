//! From a text with placeholders back to the file's own bytes.
//!
//! A careless way of doing this discloses secrets: a placeholder moved to where
//! no rule finds its secret would put it in the clear for the next reader. So a
//! line that holds one must be, byte for byte, a line of the view of the file
//! as it is, each at most as often as it stands there; and whoever calls this
//! must look whether each secret is found again in the result.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use super::{
    scanner::Hit,
    view::{Redacted, has_marker},
};

/// A content with its secrets put back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Restored {
    pub(super) bytes: Vec<u8>,
    /// Where secrets were put back, in order, with what was found in each.
    pub(super) secrets: Vec<(Range<usize>, Vec<Hit>)>,
}

/// Why a placeholder is not replaced: the line of the text, from 1, and words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misused {
    pub(super) line: u64,
    pub(super) why: &'static str,
}

const UNKNOWN: &str = "it holds a placeholder that is none of this file as it is now; placeholders \
                       cannot be made up, changed or copied from another file. Read the file again";
const MOVED: &str = "it holds a placeholder that was moved out of its line, or its line was \
                     changed; a line with a placeholder must stay exactly as it was read";
const TWICE: &str = "its placeholder is used more often than it stands in the file";
const AMBIGUOUS: &str = "its placeholder cannot be told from other text of the file";

/// A line of the view that holds a placeholder, or text like one.
struct Line<'v> {
    text: &'v [u8],
    /// Its bytes in the original; a secret of several lines is one line here.
    original: Range<usize>,
    view: Range<usize>,
}

/// Puts the secrets of `original`, whose view is `view`, back into `text`.
pub(super) fn restore(text: &[u8], view: &Redacted, original: &[u8]) -> Result<Restored, Misused> {
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
        let misused = |why| Misused { line: number, why };
        let same = known.get_mut(line).ok_or_else(|| misused(reason(line, view)))?;
        if ambiguous.contains(line) {
            return Err(misused(AMBIGUOUS));
        }
        let from = same.pop().ok_or_else(|| misused(TWICE))?;
        let start = restored.bytes.len();
        restored.bytes.extend_from_slice(bytes(from));
        restored.bytes.extend_from_slice(piece.get(line.len()..).unwrap_or_default());
        let place = |range: &Range<usize>| {
            start + (range.start - from.original.start)..start + (range.end - from.original.start)
        };
        let first = view.spans.partition_point(|span| span.view.start < from.view.start);
        let spans = view.spans.iter().skip(first);
        for span in spans.take_while(|span| span.view.end <= from.view.end) {
            let hits = span.hits.iter();
            let hits = hits.map(|hit| Hit { rule: hit.rule, range: place(&hit.range) });
            restored.secrets.push((place(&span.original), hits.collect()));
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
