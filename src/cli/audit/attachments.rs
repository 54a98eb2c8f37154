//! What a log names outside of it: policies that were in force, backups.

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
    review::{MOST_POLICY, is_foreign, read_kept},
};

/// What was found.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attached {
    /// Everything wrong, in words.
    pub(super) faults: Vec<String>,
    /// Policies whose text is kept, of those that records name.
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<u64>,
    /// Backups whose content has its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    backups: Option<u64>,
    /// Backups that records name and that are not kept any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    backups_gone: Option<u64>,
}

impl Attached {
    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> =
            self.faults.iter().map(|fault| format!("damaged: {}", Escaped(fault))).collect();
        if let Some(policies) = self.policies {
            lines.push(format!("policies: {policies} kept, each with its hash"));
        }
        if let Some(backups) = self.backups {
            lines.push(format!("backups: {backups} kept, each with its hash"));
        }
        if let Some(gone @ 1..) = self.backups_gone {
            lines.push(format!(
                "backups: {gone} that records name are not kept any more: retention removed them, \
                 or somebody else did"
            ));
        }
        lines
    }
}

/// Every policy that records name is kept, and is what its hash says.
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
                Ok(_other) => "is kept with another text",
                Err(error) if error.kind() == io::ErrorKind::NotFound => "is not kept",
                Err(error) if is_foreign(&error) => "is kept as what is no policy's file",
                Err(error) => return Err(error),
            },
        };
        found.faults.push(format!("the policy {hash} that record {seq} names {fault}"));
    }
    if report.more_policies {
        found.faults.push(format!(
            "records name more than {} policies, and only so many were looked at",
            Report::MOST_POLICIES
        ));
    }
    found.policies = Some(kept);
    Ok(())
}

fn kept_policy(state: &Path, hash: Hash) -> io::Result<Vec<u8>> {
    read_kept(&state.join(format!("policies/{hash}.toml")), MOST_POLICY)
}

/// Every backup has its hash, which is that of the records that name it. What cannot
/// be read of the log is a fault, so that the report is printed that says why.
pub(super) fn backups(
    state: &Path,
    log: &Directory,
    report: &Report,
    found: &mut Attached,
) -> Result<(), Failure> {
    let (mut kept, mut damaged) = (HashMap::new(), HashSet::new());
    let mut whole = 0;
    let vault = state_directory::vault(state)?;
    if let Some(vault) = &vault {
        let listing = vault.entries().or_fail("cannot list the backups")?;
        for id in &listing.damaged {
            found.faults.push(format!("the backup {id} cannot be read"));
            damaged.insert(id.to_string());
        }
        for entry in &listing.entries {
            match vault.verify(entry) {
                Ok(()) => whole += 1,
                // Let go since the backups were listed: the records say whether it should
                // be there.
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
        missing.answer(record);
        let Some(id) = record.backup() else { return };
        let is_first = missing.is_first(record, report.pruned > 0);
        match (kept.get(id), record.before) {
            (None, _) if damaged.contains(id) || record.kind != Kind::Intent => {}
            (None, _) => drop(missing.open.insert(record.seq, (id.to_owned(), is_first))),
            (Some(hash), Some(before)) if *hash != before => found.faults.push(format!(
                "the backup {id} holds {hash}, but record {} says {before}",
                record.seq
            )),
            (Some(_), _) => {}
        }
    });
    for (seq, id) in missing.early {
        // It may have been made since the others were listed.
        let look = vault.as_ref().map(|vault| vault.find(&id));
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

/// Backups that records name and that are not there.
#[derive(Default)]
struct MissingFiles {
    /// Who had something of which path kept, as hashes.
    runs: HashSet<Hash>,
    /// By the intent that names it: its id, and whether it began a run.
    open: HashMap<u64, (String, bool)>,
    /// Those of changes that were made.
    gone: u64,
    /// Of these, the ones that nothing can have let go yet, and their intents.
    early: Vec<(u64, String)>,
}

impl MissingFiles {
    /// Whether it is the first backup of its path by the session, or by the agent of
    /// commands: retention never removes that within `keep.days`, a day at the least.
    /// Where records before are gone, an agent's first one may be among them.
    fn is_first(&mut self, record: &RecordView<'_>, is_pruned: bool) -> bool {
        let is_command = record.door() == Some("cli");
        let who = if is_command { record.agent() } else { record.session() };
        let path = record.to().or_else(|| record.canonical_path());
        let run = format!("{is_command} {}\0{}", who.unwrap_or_default(), path.unwrap_or_default());
        // The new name of a rename may be one that leads through links.
        self.runs.insert(Hash::of(run.as_bytes()))
            && record.to().is_none()
            && !(is_command && is_pruned)
    }

    /// What became of an intent decides whether its backup should be there.
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
            // What was not made leaves none.
            _ => {}
        }
    }
}

/// Whether a backup was made less than a day ago.
fn is_of_a_day(id: &str) -> bool {
    id.parse::<BackupId>()
        .is_ok_and(|id| Timestamp::now().duration_since(id.time()) < SignedDuration::from_hours(24))
}

/// Gives every record to `take`. What cannot be parsed is
/// damage of the log, which was found before.
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
