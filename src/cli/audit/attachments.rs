//! Files that a log names outside of it: former policies, and backups.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
};

use jiff::{SignedDuration, Timestamp};
use portcullis_audit::{Directory, Hash, Kind, Reader, RecordView, Report, Segment, Source as _};
use serde::Serialize;

use crate::{
    app::{
        failure::{Context as _, Failure},
        state_directory,
    },
    gateway::{BackupError, BackupId},
    model::Escaped,
    review::{MAX_POLICY, is_foreign, read_regular},
};

/// The result of a check of such files.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attached {
    /// All damage, in words.
    pub(super) faults: Vec<String>,
    /// Number of policies named by records whose text is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<u64>,
    /// Number of backups whose content matches their hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    backups: Option<u64>,
    /// Number of backups named by records that are not stored any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    backups_gone: Option<u64>,
}

impl Attached {
    /// Formats it for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> =
            self.faults.iter().map(|fault| format!("damaged: {}", Escaped(fault))).collect();
        if let Some(policies) = self.policies {
            lines.push(format!("policies: {policies} intact"));
        }
        if let Some(backups) = self.backups {
            lines.push(format!("backups: {backups} intact"));
        }
        if let Some(gone @ 1..) = self.backups_gone {
            lines.push(format!(
                "backups: {gone} that records name are missing: retention removed them, or \
                 somebody else did"
            ));
        }
        lines
    }
}

/// Checks that every policy named by records is stored, and matches its hash.
pub(super) fn policies(state: &Path, report: &Report, found: &mut Attached) -> io::Result<()> {
    let mut kept = 0;
    for (hash, seq) in &report.policies {
        let named: Option<Hash> = hash.parse().ok();
        let fault = match named {
            None => "is no hash",
            Some(named) => match kept_policy(state, named) {
                Ok(text) if Hash::of(&text) == named => {
                    kept += 1;
                    continue;
                }
                Ok(_other) => "is stored with another text",
                Err(error) if error.kind() == io::ErrorKind::NotFound => "is not stored",
                Err(error) if is_foreign(&error) => "is stored as something else than a file",
                Err(error) => return Err(error),
            },
        };
        found.faults.push(format!("the policy {hash} that record {seq} names {fault}"));
    }
    if report.more_policies {
        found.faults.push(format!(
            "records name more than {} policies, and no more were checked",
            Report::MAX_POLICIES
        ));
    }
    found.policies = Some(kept);
    Ok(())
}

fn kept_policy(state: &Path, hash: Hash) -> io::Result<Vec<u8>> {
    read_regular(&state.join(format!("policies/{hash}.toml")), MAX_POLICY)
}

/// Checks that every backup matches its hash, and that this is the hash in the records
/// that name it. An unreadable part of the log counts as damage, so that the report with
/// the reason is printed.
pub(super) fn backups(
    state: &Path,
    log: &Directory,
    report: &Report,
    found: &mut Attached,
) -> Result<(), Failure> {
    let (mut kept, mut damaged) = (HashMap::new(), HashSet::new());
    let mut whole = 0;
    let backup_store = state_directory::backup_store(state)?;
    if let Some(backup_store) = &backup_store {
        let listing = backup_store.entries().or_fail("cannot list the backups")?;
        for id in &listing.damaged {
            found.faults.push(format!("the backup {id} cannot be read"));
            damaged.insert(id.to_string());
        }
        for entry in &listing.entries {
            match backup_store.verify(entry) {
                Ok(()) => whole += 1,
                // It was deleted since the backups were listed: the records decide if it
                // should exist.
                Err(BackupError::Unknown(_)) => continue,
                Err(error) => found.faults.push(format!("the backup {}: {error}", entry.id)),
            }
            kept.insert(entry.id.to_string(), entry.sha256);
        }
    } else {
        found.faults.push(format!("there are no backups at {}", state.join("backups").display()));
    }
    let mut missing = MissingFiles::default();
    let named = each_record(log, report, |record| {
        missing.begin(record);
        missing.answer(record);
        let Some(id) = record.backup() else { return };
        let is_first = missing.is_first(record, report.pruned > 0);
        match (kept.get(id), record.before) {
            (None, _) if damaged.contains(id) || record.kind != Kind::Intent => {}
            (None, _) => drop(missing.open.insert(record.seq, (id.to_owned(), is_first))),
            (Some(hash), Some(before)) if *hash != before => found.faults.push(format!(
                "the backup {id} has the hash {hash}, but record {} says {before}",
                record.seq
            )),
            (Some(_), _) => {}
        }
    });
    for (seq, id) in missing.early {
        // It may have been created since the others were listed.
        let look = backup_store.as_ref().map(|backup_store| backup_store.find(&id));
        if let Some(Err(BackupError::Unknown(_))) = look {
            found.faults.push(format!(
                "the backup {id} that record {seq} names is gone, and retention removes none such \
                 within a day, unless the clock was ahead"
            ));
        }
    }
    if let Err(error) = named {
        found.faults.push(format!("not every record that may name a backup can be read: {error}"));
    }
    (found.backups, found.backups_gone) =
        (Some(whole), Some(missing.gone + missing.open.len() as u64));
    Ok(())
}

/// Backups that records name and that are missing.
#[derive(Default)]
struct MissingFiles {
    /// The sessions whose first record is in the log.
    sessions: HashSet<String>,
    /// Hashes of session or agent with path, of which a backup was made.
    runs: HashSet<Hash>,
    /// Backups by the sequence number of the intent: the backup's id, and true if it is the first
    /// of its path.
    open: HashMap<u64, (String, bool)>,
    /// Number of missing backups of changes that were made.
    gone: u64,
    /// The missing backups that retention cannot have deleted yet, with their intents.
    early: Vec<(u64, String)>,
}

impl MissingFiles {
    /// Returns true if it is the first backup of its path by the session, or by the agent
    /// of commands: retention never deletes that within `keep.days`, at least a day. If
    /// earlier records were pruned, the first one may be among those.
    fn is_first(&mut self, record: &RecordView<'_>, is_pruned: bool) -> bool {
        let is_command = record.transport() == Some("cli");
        let who = if is_command { record.agent() } else { record.session() };
        let is_whole =
            !is_pruned || (!is_command && who.is_some_and(|who| self.sessions.contains(who)));
        let path = record.to().or_else(|| record.canonical_path());
        let run = format!("{is_command} {}\0{}", who.unwrap_or_default(), path.unwrap_or_default());
        // The new path of a rename may lead through links.
        self.runs.insert(Hash::of(run.as_bytes())) && record.to().is_none() && is_whole
    }

    /// Notes the first record of a session.
    fn begin(&mut self, record: &RecordView<'_>) {
        if record.kind == Kind::Start && record.transport() != Some("cli") {
            self.sessions.extend(record.session().map(str::to_owned));
        }
    }

    /// Notes an outcome, which decides if the backup of its intent should exist.
    fn answer(&mut self, record: &RecordView<'_>) {
        let Some((of, (id, is_first))) =
            record.of.and_then(|of| Some((of, self.open.remove(&of)?)))
        else {
            return;
        };
        match record.result() {
            Some("ok" | "buffered" | "committed") if is_first && is_of_a_day(&id) => {
                self.early.push((of, id));
            }
            Some("ok" | "buffered" | "committed" | "superseded") => self.gone += 1,
            // A change that was not made leaves no backup.
            _ => {}
        }
    }
}

/// Returns true if a backup was made less than a day ago.
fn is_of_a_day(id: &str) -> bool {
    id.parse::<BackupId>()
        .is_ok_and(|id| Timestamp::now().duration_since(id.time()) < SignedDuration::from_hours(24))
}

/// Calls `take` with every record. Lines that cannot be parsed are damage of the log,
/// found before.
fn each_record(
    log: &Directory,
    report: &Report,
    mut take: impl FnMut(&RecordView<'_>),
) -> io::Result<()> {
    let mut reader = Reader::new(log, Segment::of(report.pruned).first());
    while let Some(entry) = reader.next()? {
        if let Ok(record) = RecordView::parse(&entry.bytes) {
            take(&record);
        }
    }
    log.list().map(drop)
}
