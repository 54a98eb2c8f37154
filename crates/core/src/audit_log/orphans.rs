//! Intents of dead gateways without an outcome, and their questions without an end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use portcullis_audit::{AuditRecord, Draft, Kind, Reader, Receipt, RecordView};
use rustix::fs::OFlags;

use super::{
    AuditLog, Error,
    disk::{self, FileLock, Folder},
    lifetime::{self, DeadGateway},
    log,
};

/// The open intents and questions of dead gateways. While it exists, no other gateway recovers.
///
/// When it is dropped and every intent has been resolved, the dead gateways are forgotten;
/// otherwise the next call finds the rest.
pub(crate) struct Orphans<'a> {
    audit_log: &'a AuditLog,
    dead: Vec<DeadGateway>,
    intents: Vec<AuditRecord>,
    questions: Questions,
    traces: Traces,
    left: Mutex<BTreeSet<u64>>,
    /// Locked until it is closed.
    _recovery: File,
}

/// The trace of a dead gateway in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The time of its first record, as in that record's `t`.
    pub since: String,
    /// The backups that its intents name.
    pub backups: BTreeSet<String>,
}

/// The fact that identifies a question and its end.
const QUESTION: &str = "question";

/// Questions of dead gateways without an end, by session and question.
#[derive(Debug, Default)]
struct Questions(BTreeMap<(Option<String>, String), AuditRecord>);

impl Questions {
    fn take_in(&mut self, dead: &[DeadGateway], record: &RecordView<'_>) {
        let asks = record.kind == Kind::Decision
            && dead.iter().any(|gateway| record.boot() == Some(&gateway.boot));
        // An earlier start may have recorded an end.
        if !asks && record.kind != Kind::Approval {
            return;
        }
        let Some(question) = record.fact(QUESTION) else { return };
        let key = (record.session().map(str::to_owned), question.to_owned());
        match record.decision() {
            _ if record.kind == Kind::Approval => drop(self.0.remove(&key)),
            Some("ask") => drop(self.0.insert(key, record.clone().into_record())),
            _ => {}
        }
    }
}

/// The traces of dead gateways by their `boot`.
#[derive(Debug, Default)]
struct Traces {
    gateways: BTreeMap<String, Trace>,
    cut: bool,
}

impl Traces {
    fn take_in(&mut self, dead: &[DeadGateway], record: &RecordView<'_>) {
        if record.kind == Kind::Recovered && record.of.is_none() {
            self.cut |= record.fact("what") != Some("torn");
        }
        if self.cut {
            self.gateways.clear();
            return;
        }
        let Some(boot) = record.boot().filter(|boot| dead.iter().any(|d| d.boot == *boot)) else {
            return;
        };
        let trace = self.gateways.entry(boot.to_owned()).or_insert_with(|| Trace {
            since: record.t.as_str().to_owned(),
            backups: BTreeSet::new(),
        });
        if record.kind == Kind::Intent {
            let backups = [record.backup(), record.fact("bufferBackup")];
            trace.backups.extend(backups.into_iter().flatten().map(str::to_owned));
        }
    }
}

impl AuditLog {
    /// Finds the intents without outcome of gateways that are dead: their lifetime lock is free.
    /// Waits while another gateway recovers, so one thread must not call it twice at once.
    ///
    /// # Errors
    ///
    /// When the locks or the log cannot be read.
    pub(crate) fn orphans(&self) -> Result<Orphans<'_>, Error> {
        self.group.check()?;
        let recovery = (self.life.gateways)
            .file("recovery", OFlags::RDWR | OFlags::CREATE)
            .map_err(|errno| lifetime::unopened(&self.life.gateways, "recovery", errno))?;
        disk::wait_lock(&recovery, "gateways/recovery")?;
        let (dead, audit) = {
            // The mutex is locked too: within a process the file lock excludes no thread.
            let log = self.group.log();
            let lock = log.lock();
            let _between_registrations = FileLock::wait(&lock, log::LOCK)?;
            (lifetime::census(&self.life.gateways, Some(&self.life))?.0, Arc::clone(&log.audit))
        };
        let (mut open, mut traces) = (BTreeMap::new(), Traces::default());
        let mut questions = Questions::default();
        if let Some(first) = dead.iter().map(|gateway| gateway.first).min() {
            let mut reader = Reader::new(&*audit, first);
            while let Some(entry) = reader.next().map_err(Error::std("read the audit log"))? {
                let record = RecordView::parse(&entry.bytes)
                    .map_err(|error| Error::line(entry.segment, &error))?;
                update_open(&mut open, &record, || {
                    let gateway = dead.iter().find(|dead| record.boot() == Some(&dead.boot))?;
                    let mut intent = record.clone().into_record();
                    // The gateway finished these batches: nothing has to be rolled back.
                    intent.draft.facts.take_if(|_facts| gateway.ended);
                    Some(intent)
                });
                questions.take_in(&dead, &record);
                traces.take_in(&dead, &record);
            }
        }
        let left = Mutex::new(open.keys().copied().collect());
        let intents = open.into_values().collect();
        Ok(Orphans { audit_log: self, dead, intents, questions, traces, left, _recovery: recovery })
    }
}

/// Adds the record to those without an outcome if it is an intent that `intent` returns, and removes
/// the one of which it is the outcome.
pub(super) fn update_open<T>(
    open: &mut BTreeMap<u64, T>,
    record: &RecordView<'_>,
    intent: impl FnOnce() -> Option<T>,
) {
    match (record.kind, record.of) {
        (Kind::Intent, _) => open.extend(intent().map(|intent| (record.seq, intent))),
        (Kind::Outcome | Kind::Recovered, Some(of)) => drop(open.remove(&of)),
        _ => {}
    }
}

/// Returns the gateways with intents without an outcome before record `end`, the future end of the
/// log, each with the first of these intents.
pub(super) fn without_outcome(audit: &Folder, end: u64) -> Result<BTreeMap<String, u64>, Error> {
    let mut open = BTreeMap::new();
    let (mut reader, mut next) = (Reader::new(audit, 0), 0);
    // Later lines may be invalid.
    while next < end {
        let entry = reader.next().map_err(Error::std("read the audit log"))?;
        let Some(entry) = entry else { break };
        next = entry.seq().saturating_add(1);
        let record =
            RecordView::parse(&entry.bytes).map_err(|error| Error::line(entry.segment, &error))?;
        update_open(&mut open, &record, || {
            record.boot().filter(|boot| lifetime::is_boot(boot)).map(str::to_owned)
        });
    }
    let mut gateways = BTreeMap::new();
    for (seq, boot) in open {
        gateways.entry(boot).or_insert(seq);
    }
    Ok(gateways)
}

impl Orphans<'_> {
    /// Returns the intents, oldest first; those of gateways that ended in order without `facts`.
    pub(crate) fn intents(&self) -> &[AuditRecord] {
        &self.intents
    }

    /// Returns the questions of dead gateways without an end.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &AuditRecord> {
        self.questions.0.values()
    }

    /// Returns the traces of dead gateways, for the recovery of other files. Empty if a part of the
    /// log was set aside since: then it is incomplete.
    pub(crate) fn traces(&self) -> &BTreeMap<String, Trace> {
        &self.traces.gateways
    }

    /// Appends and syncs the `recovered` record of `intent`.
    ///
    /// # Errors
    ///
    /// When it is not in the log, or when `intent` is none of these or has been resolved.
    pub(crate) fn resolve(&self, intent: &AuditRecord, draft: Draft) -> Result<Receipt, Error> {
        if !self.left().remove(&intent.seq) {
            return Err(Error::NoIntent(intent.seq));
        }
        let draft = Draft { of: Some(intent.seq), ..draft };
        self.audit_log.append(Kind::Recovered, draft, true).inspect_err(|_error| {
            self.left().insert(intent.seq);
        })
    }

    /// Forgets the dead gateways, if every intent has been resolved.
    ///
    /// # Errors
    ///
    /// When their files cannot be removed.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        self.remove_lock_file()
    }

    fn remove_lock_file(&mut self) -> Result<(), Error> {
        if !self.left().is_empty() {
            return Ok(());
        }
        let dead = std::mem::take(&mut self.dead);
        dead.iter().try_for_each(|gateway| gateway.remove_lock_file(&self.audit_log.life.gateways))
    }

    fn left(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // A set has no state between two of its operations.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Orphans<'_> {
    fn drop(&mut self) {
        // A remaining file is found the next time, with every intent resolved.
        let _buried = self.remove_lock_file();
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test makes a state directory of its own")]
mod tests {
    use cap_std::fs::Dir;

    use super::*;

    fn asked(question: &str) -> Draft {
        Draft {
            session: Some("s".to_owned()),
            decision: Some("ask".to_owned()),
            facts: Some(BTreeMap::from([(QUESTION.to_owned(), question.into())])),
            ..Draft::default()
        }
    }

    #[test]
    fn a_question_is_open_until_any_gateway_records_its_end() {
        let state = tempfile::TempDir::new().unwrap();
        let open = || {
            let dir = std::fs::File::open(state.path()).unwrap();
            AuditLog::open(&Dir::from_std_file(dir)).unwrap()
        };
        let dead = open();
        for question in ["heard", "open", "later"] {
            let _question = dead.record(asked(question)).unwrap();
        }
        let _heard = dead.note(Kind::Approval, asked("heard"), false).unwrap();
        // Prevents the dead gateway from being forgotten.
        let _intent = dead.note(Kind::Intent, Draft::default(), true).unwrap();
        drop(dead);
        let next = open();
        let alive = open();
        let _question = alive.record(asked("alive")).unwrap();
        let questions = || {
            let orphans = next.orphans().unwrap();
            let facts = orphans.questions().filter_map(|asked| asked.draft.facts.clone());
            facts.map(|facts| facts[QUESTION].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(questions(), ["later", "open"]);
        let _ended = next.note(Kind::Approval, asked("open"), true).unwrap();
        assert_eq!(questions(), ["later"]);
    }
}
