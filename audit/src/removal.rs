//! Records that say which segments of a log were removed.

use crate::{Hash, Kind, RecordView, Segment};

/// The statement of a `pruned` record, or of a `recovered` one in its place, that segments were
/// removed from the beginning of the log (FORMAT.md, section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// The number of removed segments, counted from the very first.
    pub segments: u64,
    /// The leaf hash of the last record in them.
    pub head: Option<Hash>,
}

impl Removal {
    /// Returns the statement of a record, if it makes one.
    pub fn of(record: &RecordView<'_>) -> Option<Self> {
        if !matches!(record.kind, Kind::Pruned | Kind::Recovered) {
            return None;
        }
        let segments = record.facts.as_ref()?.get("segments")?.as_u64()?;
        Some(Self { segments, head: record.fact("head").and_then(|head| head.parse().ok()) })
    }

    /// Returns true if it explains that the log begins with the segment `first`, whose first record
    /// has `prev`. If a prune was interrupted, fewer segments are gone than its record says.
    pub fn explains(&self, first: Segment, prev: Option<Hash>) -> bool {
        self.segments > first.0 || (self.segments == first.0 && self.head == prev)
    }
}
