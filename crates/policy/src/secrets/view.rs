//! Views of content for readers, with placeholders for secrets.

use std::ops::Range;

use super::{key::SecretKey, scanner::Hit};

/// A text that every placeholder contains, in any case. Text with it that is not a placeholder of
/// the file is never stored.
const MARKER: &str = "portcullis-secret:";

/// A content with its secrets replaced by placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redacted {
    pub(super) bytes: Vec<u8>,
    pub(super) spans: Vec<Span>,
}

/// One placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    /// Its range in the view.
    pub(super) view: Range<usize>,
    /// The range in the original that it replaces.
    pub(super) original: Range<usize>,
    /// The hits in that range.
    pub(super) hits: Vec<Hit>,
}

/// Replaces `hits`, which are in order, by placeholders. Overlapping ones become one. `id` returns
/// the ID of a rule.
pub(super) fn redact<'i>(
    content: &[u8],
    hits: &[Hit],
    key: &SecretKey,
    path: &str,
    id: impl Fn(usize) -> &'i str,
) -> Redacted {
    let mut groups: Vec<(Range<usize>, Vec<Hit>)> = Vec::new();
    for hit in hits {
        match groups.last_mut() {
            Some((range, hits)) if hit.range.start < range.end => {
                range.end = range.end.max(hit.range.end);
                hits.push(hit.clone());
            }
            _ => groups.push((hit.range.clone(), vec![hit.clone()])),
        }
    }
    let mut redacted = Redacted { bytes: Vec::with_capacity(content.len()), spans: Vec::new() };
    let mut done = 0;
    for (original, hits) in groups {
        let value = content.get(original.clone()).unwrap_or_default();
        // The name is that of the rule with the longest hit.
        let rule =
            hits.iter().rev().max_by_key(|hit| hit.range.len()).map_or("", |hit| id(hit.rule));
        redacted.bytes.extend_from_slice(content.get(done..original.start).unwrap_or_default());
        let start = redacted.bytes.len();
        redacted.bytes.extend_from_slice(placeholder(key, path, rule, value).as_bytes());
        done = original.end;
        redacted.spans.push(Span { view: start..redacted.bytes.len(), original, hits });
    }
    redacted.bytes.extend_from_slice(content.get(done..).unwrap_or_default());
    redacted
}

/// Makes a placeholder. It discloses nothing about the value except equality with other values of
/// the same file, and forging it is as hard as guessing the key.
fn placeholder(key: &SecretKey, path: &str, rule: &str, value: &[u8]) -> String {
    let tag = key.tag("placeholder", &[path.as_bytes(), rule.as_bytes(), value]);
    format!("[{MARKER}{rule}:{tag}]")
}

/// True if `text` contains something that could be taken for a placeholder.
pub(super) fn has_marker(text: &[u8]) -> bool {
    let colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.map(|(at, _)| text.get(..=at).unwrap_or_default()).any(|start| {
        start
            .last_chunk::<{ MARKER.len() }>()
            .is_some_and(|end| end.eq_ignore_ascii_case(MARKER.as_bytes()))
    })
}

impl Redacted {
    /// Returns the offset in the original of `offset` in the view, which is in no placeholder.
    pub(super) fn original_offset(&self, offset: usize) -> usize {
        let before = self.spans.partition_point(|span| span.view.end <= offset);
        match before.checked_sub(1).and_then(|at| self.spans.get(at)) {
            Some(span) => span.original.end + (offset - span.view.end),
            None => offset,
        }
    }
}
