//! Intents with their outcomes, from a scan of the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use portcullis_audit::RecordView;

use super::{
    BlameError, Filter, Log, ScanOrder, Scanned,
    scan::{MAX_STORED_BYTES, OVERHEAD},
};
use crate::change::Change;

/// The part that one record contributes to a change.
enum ChangePart {
    Intent(Box<Change>),
    Outcome { of: u64, seq: u64, result: String },
}

impl Log {
    /// Returns the changes whose intents match `filter` and that are wanted, oldest first.
    ///
    /// # Errors
    /// If the log cannot be read, or has more of them than are held in memory: without the newest
    /// ones the others would describe a state that is outdated.
    pub(super) fn changes(
        &self,
        filter: &Filter,
        is_wanted: impl Fn(&Change) -> bool + Sync,
    ) -> Result<(Vec<Change>, Scanned), BlameError> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut changes = BTreeMap::new();
        let wanted = Filter { kinds: words(&["intent", "outcome", "recovered"]), ..filter.clone() };
        let (mut kept, mut cut) = (0, None);
        let pick = |record: &RecordView<'_>, line: &[u8]| {
            let piece = piece(record).filter(|piece| match piece {
                ChangePart::Intent(change) => is_wanted(change),
                ChangePart::Outcome { .. } => true,
            })?;
            Some((piece, line.len() + OVERHEAD))
        };
        let scanned = self.scan(&wanted, ScanOrder::Oldest, pick, |(piece, bytes)| {
            match piece {
                ChangePart::Intent(change) => {
                    kept += bytes;
                    if kept > MAX_STORED_BYTES {
                        cut = Some(change.seq);
                        return ControlFlow::Break(());
                    }
                    changes.insert(change.seq, *change);
                }
                ChangePart::Outcome { of, seq, result } => end(&mut changes, of, seq, result),
            }
            ControlFlow::Continue(())
        })?;
        if let Some(seq) = cut {
            return Err(BlameError::TooMany(seq));
        }
        // An outcome repeats little of its intent, so the filter may have excluded it.
        let missing = changes.values().filter(|change| change.outcome.is_none());
        let missing: BTreeSet<u64> = missing.map(|change| change.seq).collect();
        if let Some(from) = missing.first().copied() {
            let rest = Filter {
                kinds: words(&["outcome", "recovered"]),
                records: Some(from..=u64::MAX),
                ..Filter::default()
            };
            let mut left = missing.len();
            let pick = |record: &RecordView<'_>, _line: &[u8]| {
                record.of.filter(|of| missing.contains(of)).and_then(|_| piece(record))
            };
            self.scan(&rest, ScanOrder::Oldest, pick, |piece| {
                if let ChangePart::Outcome { of, seq, result } = piece {
                    end(&mut changes, of, seq, result);
                    left -= 1;
                }
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        Ok((changes.into_values().collect(), scanned))
    }
}

fn piece(record: &RecordView<'_>) -> Option<ChangePart> {
    match (record.kind_name(), record.of) {
        ("intent", _) => Change::of(record).map(Box::new).map(ChangePart::Intent),
        (_, Some(of)) => {
            let result = record.result().unwrap_or_default().to_owned();
            Some(ChangePart::Outcome { of, seq: record.seq, result })
        }
        _ => None,
    }
}

/// Adds an outcome, which follows its intent in the log.
fn end(changes: &mut BTreeMap<u64, Change>, of: u64, seq: u64, result: String) {
    if let Some(change) = changes.get_mut(&of) {
        (change.outcome, change.result) = (Some(seq), Some(result));
    }
}
