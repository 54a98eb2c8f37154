//! `portcullis backup list`: lists backups. Reads no content.

use std::process::ExitCode;

use indicatif::HumanBytes;
use serde_json::json;

use super::entries::{UNREADABLE, entries, entry_json, time};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        options::Common,
        pager::PagerOptions,
        path_argument, state_directory, state_owner,
        workspace::open_workspace,
    },
    cli::{render, rows},
    gateway::{Backup, BackupKind, BackupList, BackupStore},
    model::{Escaped, WorkspacePath},
};

/// List backups, the newest first
///
/// SIZE is that of the content, STORED what it takes in the backup store: more than one
/// backup may share that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup list\n  \
    portcullis backup list src --json")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// List backups of this path, of paths beneath it, and of trees that
    /// contain it
    path: Option<String>,
    /// List backups that this session made; the beginning of its id is enough
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let common = &args.common;
    common.adopts_nothing()?;
    let state_path = common.state_directory()?;
    let opened = state_directory::look(&state_path)?;
    let owner = opened.map(|state| state_owner::of(&state, &state_path)).transpose()?.flatten();
    // The current directory must not be used by accident.
    let root = match owner {
        Some(owner) => owner,
        None => open_workspace(&common.workspace)?.root().to_owned(),
    };
    if !args.json {
        args.pager.enable(&root);
    }
    let path = match &args.path {
        Some(text) => Some(path_argument::parse(&root, text).map_err(|_| {
            Failure::new(format_args!("`{}` is no path in the workspace", Escaped(text)))
                .exit(Exit::Usage)
        })?),
        None => None,
    };
    let backup_store = state_directory::backup_store(&state_path)?;
    let mut listing = entries(backup_store.as_ref())?;
    let total =
        backup_store.as_ref().map(BackupStore::size).transpose().or_fail(UNREADABLE)?.unwrap_or(0);
    listing.entries.retain(|entry| args.wants(entry, path.as_ref()));
    listing.entries.reverse();
    print(args, &listing, total);
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn wants(&self, entry: &Backup, path: Option<&WorkspacePath>) -> bool {
        let at = |path: &WorkspacePath| {
            entry.path.is_within(path)
                || (entry.kind == BackupKind::Tree && path.is_within(&entry.path))
        };
        path.is_none_or(at)
            && self.session.as_ref().is_none_or(|id| entry.session.starts_with(id.as_str()))
            && self.common.agent.as_ref().is_none_or(|agent| entry.agent == agent.as_str())
    }
}

/// Returns the bytes of content before compression.
fn bytes(listing: &BackupList) -> u64 {
    listing.entries.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add)
}

fn print(args: &Args, listing: &BackupList, total: u64) {
    if args.json {
        let entries: Vec<_> = listing.entries.iter().map(entry_json).collect();
        let damaged: Vec<_> = listing.damaged.iter().map(ToString::to_string).collect();
        outjson!(json!({
            "ok": true,
            "backups": entries,
            "damaged": damaged,
            "bytes": bytes(listing),
            "stored": total,
        }));
        return;
    }
    if listing.entries.is_empty() {
        errln!("no backups");
    } else {
        // Before the table: that may fill a pager.
        errln!(
            "{} of {}; the complete backup store takes {}",
            render::counted(listing.entries.len() as u64, "backup"),
            HumanBytes(bytes(listing)),
            HumanBytes(total)
        );
    }
    for id in &listing.damaged {
        errln!("portcullis: backup {id} is damaged");
    }
    if !listing.entries.is_empty() {
        outln!("{}", table(&listing.entries).join("\n"));
    }
}

fn table(entries: &[Backup]) -> Vec<String> {
    let heads = ["TIME", "ID", "PATH", "OPERATION", "SIZE", "STORED", "AGENT"];
    let rows = entries.iter().map(|entry| {
        let slash = if entry.kind == BackupKind::Tree { "/" } else { "" };
        vec![
            time(entry),
            entry.id.to_string(),
            format!("{}{slash}", entry.path.quoted()),
            entry.operation.to_string(),
            entry.bytes.to_string(),
            entry.stored.to_string(),
            Escaped(&entry.agent).to_string(),
        ]
    });
    rows::table(heads, rows, |column| matches!(column, 4 | 5))
}
