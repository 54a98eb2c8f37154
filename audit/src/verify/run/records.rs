//! Records in order: their numbers, their links, and their references to others.

use std::io;

use super::{
    super::{
        Position, Report,
        digest::{Digest, Digests, Notice, State},
    },
    Run,
};
use crate::{DamageKind, Hash, Kind, LineError, Receipt, Source, WarningKind};

impl<S: Source> Run<'_, S> {
    pub(super) fn lines(&mut self, mut digests: Digests) -> io::Result<()> {
        self.policies(&mut digests);
        for (number, digest) in digests.lines.iter_mut().enumerate() {
            if digest.state == State::Long {
                self.long(digest.length);
                continue;
            }
            if !self.line(digest.length) {
                continue;
            }
            if digest.state == State::Bad {
                let error = digests.errors.remove(&number);
                let kind = match error {
                    Some(LineError::DuplicateKey { .. }) => DamageKind::DuplicateKey,
                    Some(LineError::Version { .. }) => DamageKind::UnsupportedVersion,
                    _ => DamageKind::MalformedRecord,
                };
                self.broken(kind, error.map(|error| error.to_string()).unwrap_or_default());
                self.skip(Some(digest.leaf));
                continue;
            }
            if number == 0 {
                digest.linked = self.prev == digests.first_prev;
                if let Some(pruned) = &mut self.pruned
                    && self.report.records == 0
                {
                    pruned.head = digests.first_prev;
                }
            }
            let notices = digests.notices.remove(&number).unwrap_or_default();
            notices.iter().for_each(|notice| self.notice(digest, notice));
            self.record(digest)?;
            if self.report.complete {
                notices.iter().for_each(|notice| self.ended(notice));
            }
        }
        Ok(())
    }

    /// Adds the policies that lines name to the report, up to the maximum.
    fn policies(&mut self, digests: &mut Digests) {
        let odd =
            digests.odd_policy.take().filter(|_| !std::mem::replace(&mut self.odd_policy, true));
        let hashes = std::mem::take(&mut digests.policies).into_iter();
        for (policy, seq) in hashes.map(|(hash, seq)| (hash.to_string(), seq)).chain(odd) {
            let many = self.report.policies.len() >= Report::MAX_POLICIES;
            if many && !self.report.policies.contains_key(&policy) {
                self.report.more_policies = true;
            } else {
                self.report.policies.entry(policy).or_insert(seq);
            }
        }
    }

    /// Tracks the stops of gateways that leave checkpoints.
    fn ended(&mut self, notice: &Notice) {
        match notice {
            Notice::Key(_, gateway) if !self.stopped => drop(self.signing.insert(*gateway)),
            Notice::Stop(gateway) if self.signing.contains(gateway) => {
                self.stopped = true;
                self.signing.clear();
            }
            Notice::Unsigned => {
                self.stopped = false;
                self.signing.clear();
            }
            _ => {}
        }
    }

    fn notice(&mut self, digest: &Digest, notice: &Notice) {
        match notice {
            Notice::Stop(_) | Notice::Unsigned => {}
            Notice::Key(key, _gateway) => {
                self.names_key = true;
                self.expectations.key(digest.seq, key);
            }
            Notice::Removal(removal) => {
                let pruned = self.pruned.as_ref();
                if pruned.is_some_and(|pruned| removal.explains(pruned.until, pruned.head)) {
                    self.recorded_pruned = true;
                    // After a damage the expected number is not certain to be the record's.
                    if self.report.complete {
                        self.report.pruned_by.get_or_insert(self.expected);
                    }
                }
                if digest.kind == Kind::Recovered {
                    self.warn(WarningKind::UnaccountedRecords, Some(digest.seq), || {
                        format!(
                            "record {} notes that {} segments from the first one on are missing, \
                             and that no record says who had them removed",
                            digest.seq, removal.segments
                        )
                    });
                }
            }
        }
    }

    fn record(&mut self, digest: &Digest) -> io::Result<()> {
        let seq = digest.seq;
        if seq != self.expected {
            let words = if seq > self.expected {
                "records before it are missing"
            } else {
                "it was here before, or is out of order"
            };
            let detail = format!("the line is record {seq}: {words}");
            self.broken(DamageKind::WrongSequence, detail);
        } else if self.prev.is_some() && !digest.linked {
            let detail = match seq.checked_sub(1) {
                Some(before) => {
                    format!("`prev` is not the hash of record {before}: one of the two was changed")
                }
                None => "`prev` of the first record is not zero".to_owned(),
            };
            let first = self.report.complete;
            self.broken(DamageKind::BrokenLink, detail);
            if first && !self.expectations.bears_out(seq) {
                self.report.sure = self.before;
            }
        }
        if self.report.complete {
            self.reference(digest);
        }
        let leaf = digest.leaf;
        self.head(seq, leaf);
        self.expected = seq.saturating_add(1);
        self.prev = Some(leaf);
        self.count(digest);
        if self.report.complete {
            self.expectations.push(self.source, leaf)?;
            self.take_faults();
            let (segment, offset) = (self.at.segment.0, self.at.offset);
            self.before = self.report.intact;
            self.report.intact = Position { records: self.expected, segment, offset };
            self.report.sure = self.report.intact;
        }
        Ok(())
    }

    /// Compares the receipts of record `seq` with it.
    fn head(&mut self, seq: u64, leaf: Hash) {
        let Some(heads) = self.heads.remove(&seq) else { return };
        if let Some(head) = heads.iter().find(|head| **head != leaf) {
            let detail = format!("the record's hash is {leaf}, but the receipt says {head}");
            let name = self.at.segment.to_string();
            self.damage(DamageKind::WrongHead, &name, Some((seq, self.at.line)), detail);
        } else {
            self.report.matched.insert(seq);
        }
    }

    /// Checks that an outcome refers to an earlier intent without an outcome, and so a recovery
    /// that names one. This is only checked while no record is known to be missing.
    fn reference(&mut self, digest: &Digest) {
        match (digest.kind, digest.of) {
            (Kind::Intent, _) => {
                self.open.insert(digest.seq);
            }
            (Kind::Outcome | Kind::Recovered, Some(of)) if !self.open.remove(&of) => {
                let detail = format!("record {of} is no earlier intent without an outcome");
                self.broken(DamageKind::WrongReference, detail);
            }
            _ => {}
        }
    }

    fn count(&mut self, digest: &Digest) {
        let Digest { seq, kind, t, .. } = digest;
        self.report.records += 1;
        if let Some(count) = self.kinds.get_mut(*kind as usize) {
            *count += 1;
        }
        if *kind == Kind::Unknown {
            self.warn(WarningKind::UnknownKind, Some(*seq), || {
                format!("record {seq} is of a kind that this version does not know")
            });
        }
        if let (Some(t), Some(last)) = (t, self.last_time)
            && *t < last
        {
            self.warn(WarningKind::TimeWentBack, Some(*seq), || {
                let (t, last) = (t.as_str(), last.as_str());
                format!("record {seq} is of {t}, the one before it of {last}")
            });
        }
        if self.report.first.is_none() {
            self.report.first = t.map(|t| t.as_str().to_owned());
        }
        self.last_time = *t;
        self.report.head = Some(Receipt { seq: *seq, leaf: digest.leaf, durable: false });
    }
}
