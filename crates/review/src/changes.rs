//! Intents with their outcomes, from a scan of the log.

use std::{collections::HashMap, ops::ControlFlow};

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
    /// Returns the changes whose intents match `filter`, oldest first.
    ///
    /// # Errors
    /// If the log cannot be read, or has more of them than are held in memory: without the newest
    /// ones the others would describe a state that is outdated.
    pub(super) fn changes(&self, filter: &Filter) -> Result<(Vec<Change>, Scanned), BlameError> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (mut changes, mut outcomes) = (Vec::new(), HashMap::new());
        let wanted = Filter { kinds: words(&["intent", "outcome", "recovered"]), ..filter.clone() };
        let (mut kept, mut cut) = (0, None);
        let pick = |record: &RecordView<'_>, line: &[u8]| {
            Some((piece(record)?, record.seq, line.len() + OVERHEAD))
        };
        let scanned = self.scan(&wanted, ScanOrder::Oldest, pick, |(piece, seq, bytes)| {
            kept += bytes;
            if kept > MAX_STORED_BYTES {
                cut = Some(seq);
                return ControlFlow::Break(());
            }
            match piece {
                ChangePart::Intent(change) => changes.push(*change),
                ChangePart::Outcome { of, seq, result } => {
                    outcomes.insert(of, (seq, result));
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(seq) = cut {
            return Err(BlameError::TooMany(seq));
        }
        add_outcomes(&mut changes, &mut outcomes);
        // An outcome repeats little of its intent, so the filter may have excluded it.
        if let Some(first) = changes.iter().find(|change| change.outcome.is_none()) {
            let from = first.seq;
            let missing: std::collections::HashSet<u64> =
                changes.iter().filter(|c| c.outcome.is_none()).map(|c| c.seq).collect();
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
                    outcomes.insert(of, (seq, result));
                    left -= 1;
                }
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            add_outcomes(&mut changes, &mut outcomes);
        }
        Ok((changes, scanned))
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

fn add_outcomes(changes: &mut [Change], outcomes: &mut HashMap<u64, (u64, String)>) {
    for change in changes {
        if let Some((seq, result)) = outcomes.remove(&change.seq) {
            change.outcome = Some(seq);
            change.result = Some(result);
        }
    }
}
