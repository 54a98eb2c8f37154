//! The end of a verification: expectations that were not met, and the report.

use super::{super::Report, Pruned, Run};
use crate::{DamageKind, Kind, NEWEST, Segment, Source, WarningKind};

impl<S: Source> Run<'_, S> {
    /// Reports receipts whose records were not found.
    fn left_heads(&mut self) {
        let name = Segment::of(self.expected).to_string();
        for (seq, heads) in std::mem::take(&mut self.heads) {
            if seq >= self.report.pruned {
                let detail = format!(
                    "the log ends after {} records, but a receipt proves record {seq}",
                    self.expected
                );
                self.damage(DamageKind::MissingHead, &name, Some((seq, 0)), detail);
            } else if heads.iter().any(|head| Some(head) != heads.first()) {
                let detail = format!("two receipts of record {seq} differ");
                let name = Segment::of(seq).to_string();
                self.damage(DamageKind::WrongHead, &name, Some((seq, 0)), detail);
            } else {
                self.warn(WarningKind::PrunedHead, Some(seq), || {
                    format!("record {seq} was pruned, so its receipt cannot be checked")
                });
            }
        }
    }

    /// Reports that no signature is valid although one is expected: a key was given, or a gateway
    /// that signs stopped in order.
    fn unsigned(&mut self) {
        let (given, checked) =
            (self.expectations.signed.given, self.expectations.signed.checkpoints);
        self.report.unsigned = checked == 0 && self.stopped;
        if checked > 0 || !(given || self.names_key) {
            return;
        }
        let detail = if given {
            "no checkpoint of the log is signed with a key that was given: nothing shows that its \
             owner wrote the log"
        } else if self.stopped {
            "records name a key for checkpoints, and a gateway that stopped in order left one, but no \
             valid checkpoint exists: they were removed, or none could be signed"
        } else {
            "records name a key for checkpoints, but no valid checkpoint exists: a gateway died \
             before its first one, or they were removed"
        };
        let is_damage = self.stopped || (given && self.expected > 0);
        if is_damage && self.report.is_valid() {
            self.damage(DamageKind::MissingCheckpoint, NEWEST, None, detail.to_owned());
        } else {
            self.warn(WarningKind::MissingCheckpoint, None, || detail.to_owned());
        }
    }

    pub(super) fn finish(mut self) -> Report {
        self.report.stopped = self.stopped();
        let counted = Kind::ALL.iter().zip(self.kinds).filter(|(_, count)| *count > 0);
        self.report.kinds = counted.map(|(kind, count)| (kind.as_str(), count)).collect();
        self.report.last = self.last_time.map(|t| t.as_str().to_owned());
        if let Some(Pruned { until, .. }) = self.pruned
            && !self.recorded_pruned
            && !self.report.stopped
        {
            let detail = format!(
                "{} segments from this one on are missing, and no record says that they were pruned",
                until.0
            );
            self.damage(DamageKind::MissingSegment, &Segment(0).to_string(), Some((0, 0)), detail);
        }
        if !self.report.stopped {
            self.left_heads();
            for size in self.expectations.finish(self.expected, self.report.pruned) {
                self.warn(WarningKind::PrunedHead, size.checked_sub(1), || {
                    format!(
                        "records before record {size} were pruned, so the checkpoint of them \
                         cannot be checked"
                    )
                });
            }
            self.take_faults();
            if !self.thorough && self.report.damages.len() > Report::MAX_DAMAGES {
                self.report.damages.truncate(Report::MAX_DAMAGES);
                self.report.stopped = true;
            }
        }
        self.unsigned();
        for (name, size) in std::mem::take(&mut self.expectations.wrong_witnesses) {
            self.warn(WarningKind::MissingWitness, size.checked_sub(1), || {
                format!("the signature of {name} on the checkpoint of {size} records is wrong")
            });
        }
        if self.report.complete {
            self.report.missing_outcomes = self.open.iter().copied().take(100).collect();
            if let Some(first) = self.open.first().copied() {
                self.warn(WarningKind::MissingOutcome, Some(first), || {
                    format!("the intent {first} has no outcome: it is under way or needs recovery")
                });
                if let Some(warning) = self.warnings.get_mut(&WarningKind::MissingOutcome) {
                    warning.count = self.open.len() as u64;
                }
            }
        } else {
            self.report.head = None;
        }
        self.report.roots = std::mem::take(&mut self.expectations.wrong_roots);
        self.report.signed = self.expectations.signed.clone();
        self.report.warnings = self.warnings.into_values().collect();
        self.report
    }
}
