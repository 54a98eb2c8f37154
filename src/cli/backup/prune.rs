//! `portcullis backup prune`: deletes expired backups now, and packs the rest.

use std::{collections::BTreeMap, process::ExitCode};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::json;

use super::entries::finish;
use crate::{
    app::{
        failure::{Context as _, Failure},
        options::Common,
    },
    cli::local_gateway::LocalGateway,
    gateway::{Packed, Pruned},
};

/// Delete backups that the policy's `backups.keep` does not retain, and pack the others
///
/// Gateways do this as well, when room is needed and once a day. Never removes the
/// first version that a session younger than `keep.days` replaced. Also removes
/// backups of changes that killed gateways never began.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup prune --dry-run\n  \
    portcullis backup prune")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Report what would be deleted, and delete nothing
    #[arg(long, conflicts_with = "adopt")]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let local = LocalGateway::open(&args.common)?;
    let backups = local.gateway().maintenance();
    let failed = "cannot prune the backups";
    if args.dry_run {
        let pruned = backups.preview().or_fail(failed)?;
        return finish(local, Ok(()), args.json, |()| print(args, pruned, None));
    }
    let bar = ProgressBar::new(0);
    let template = "packing {bar:30} {bytes}/{total_bytes}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let done = backups.run(&mut |packed, total| {
        bar.set_length(total);
        bar.set_position(packed);
    });
    bar.finish_and_clear();
    let (pruned, packed) = done.or_fail(failed)?;
    let facts = BTreeMap::from([
        ("removed".to_owned(), json!(pruned.entries)),
        ("removedBytes".to_owned(), json!(pruned.bytes)),
        ("packed".to_owned(), json!(packed.entries)),
    ]);
    let recorded = local.gateway().note(local.session(), "prune", facts).map(drop);
    finish(local, recorded, args.json, |()| print(args, pruned, Some(packed)))
}

fn print(args: &Args, pruned: Pruned, packed: Option<Packed>) -> Result<(), Failure> {
    if args.json {
        let object = json!({
            "ok": true,
            "dryRun": args.dry_run,
            "removed": { "backups": pruned.entries, "bytes": pruned.bytes },
            "left": { "backups": pruned.left },
            "packed": packed.map(|packed| json!({
                "backups": packed.entries,
                "before": packed.before,
                "after": packed.after,
                "damaged": packed.damaged,
                "busy": packed.busy,
            })),
        });
        outjson!(object);
        return Ok(());
    }
    let (verb, bytes) = (if args.dry_run { "would remove" } else { "removed" }, pruned.bytes);
    errln!("{verb} {} backups ({}), {} stay", pruned.entries, HumanBytes(bytes), pruned.left);
    let Some(packed) = packed else { return Ok(()) };
    if packed.busy {
        errln!("another process packs the backup store just now");
    } else if packed.entries > 0 {
        let (before, after) = (HumanBytes(packed.before), HumanBytes(packed.after));
        errln!("packed {} backups: {after} instead of {before}", packed.entries);
    }
    if packed.damaged > 0 {
        errln!("portcullis: {} backups are damaged; see `backup verify`", packed.damaged);
    }
    Ok(())
}
