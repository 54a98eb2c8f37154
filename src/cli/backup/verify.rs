//! `portcullis backup verify`: checks that every backup has its stored content.
//! Discloses names only.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::json;

use super::entries::{UNREADABLE, entries};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        options::Common,
        state_directory,
    },
    gateway::{Backup, BackupError, BackupStore},
};

/// The maximum of threads that read and hash.
const MAX_THREADS: usize = 8;

/// Compare every backup with the hash that was stored with it
///
/// Exit code 5 when one is damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup verify\n  \
    portcullis backup verify --json")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let common = &args.common;
    common.adopts_nothing()?;
    let backup_store = state_directory::backup_store(&common.state_directory()?)?;
    let listing = entries(backup_store.as_ref())?;
    let bytes = listing.entries.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add);
    let mut damaged: Vec<String> = listing.damaged.iter().map(ToString::to_string).collect();
    let found = match &backup_store {
        Some(backup_store) => check(backup_store, &listing.entries, bytes).or_fail(UNREADABLE)?,
        None => Vec::new(),
    };
    let shown = |entry: &&Backup| format!("{} of `{}`", entry.id, entry.path);
    let lines: Vec<String> = damaged.iter().cloned().chain(found.iter().map(shown)).collect();
    damaged.extend(found.iter().map(|entry| entry.id.to_string()));
    damaged.sort();
    let total = listing.entries.len() + listing.damaged.len();
    if args.json {
        let object = json!({
            "ok": damaged.is_empty(),
            "backups": total,
            "bytes": bytes,
            "damaged": damaged,
        });
        outjson!(object);
    } else {
        for line in &lines {
            errln!("portcullis: backup {line} is damaged");
        }
        let bytes = HumanBytes(bytes);
        match damaged.len() {
            0 if total == 0 => errln!(
                "there are no backups; `portcullis audit verify --backups` says which the log names"
            ),
            0 => errln!("{total} backups of {bytes}: all are what was stored"),
            count => errln!("{total} backups of {bytes}: {count} damaged"),
        }
    }
    Ok(if damaged.is_empty() { ExitCode::SUCCESS } else { Exit::Audit.into() })
}

/// Returns the damaged backups.
fn check<'a>(
    backup_store: &BackupStore,
    entries: &'a [Backup],
    bytes: u64,
) -> Result<Vec<&'a Backup>, BackupError> {
    let bar = ProgressBar::new(bytes);
    let template = "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let next = AtomicUsize::new(0);
    let damaged = Mutex::new(Vec::new());
    let work = || -> Result<(), BackupError> {
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            match backup_store.verify(entry) {
                // Retention has deleted it since the names were read.
                Ok(()) | Err(BackupError::Unknown(_)) => {}
                Err(BackupError::Damaged(_)) => {
                    damaged.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
                }
                Err(error) => return Err(error),
            }
            bar.inc(entry.bytes);
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
    let results: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    bar.finish_and_clear();
    for result in results {
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    let mut damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    damaged.sort_by_key(|entry| entry.id);
    Ok(damaged)
}
