//! What a log names outside of it: policies that were in force, backups.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
};

use portcullis_audit::{Directory, Hash, Reader, RecordView, Report, Segment, Source as _};
use serde::Serialize;

use crate::{
    app::{
        failure::{Context as _, Failure},
        state_directory,
    },
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
                "backups: {gone} that records name are not kept any more (old ones are removed)"
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
    if let Some(vault) = state_directory::vault(state)? {
        let listing = vault.entries().or_fail("cannot list the backups")?;
        for id in &listing.damaged {
            found.faults.push(format!("the backup {id} cannot be read"));
            damaged.insert(id.to_string());
        }
        for entry in &listing.entries {
            match vault.verify(entry) {
                Ok(()) => whole += 1,
                Err(error) => found.faults.push(format!("the backup {}: {error}", entry.id)),
            }
            kept.insert(entry.id.to_string(), entry.sha256);
        }
    } else {
        found.faults.push(format!("there are no backups at {}", state.join("backups").display()));
    }
    let mut gone = 0;
    let named = each_record(log, report, |record| {
        let (Some(id), Some(before)) = (record.backup(), record.before) else { return };
        match kept.get(id) {
            None if damaged.contains(id) => {}
            None => gone += 1,
            Some(hash) if *hash == before => {}
            Some(hash) => found.faults.push(format!(
                "the backup {id} holds {hash}, but record {} says {before}",
                record.seq
            )),
        }
    });
    if let Err(error) = named {
        found.faults.push(format!("not every record that may name a backup can be read: {error}"));
    }
    (found.backups, found.backups_gone) = (Some(whole), Some(gone));
    Ok(())
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
