//! `portcullis backup restore`: restores a backup, or a former state of a path or of
//! the workspace, through the gateway.

use std::process::ExitCode;

use serde_json::json;

use super::{
    entries::{entry_json, finish, named},
    steps::{self, Flags},
};
use crate::{
    app::{
        failure::{Exit, Failure},
        options::Common,
        record_time::RecordTime,
    },
    cli::{local_gateway::LocalGateway, render},
    gateway::{Backup, Changed, Error, Reply},
    model::{Escaped, WorkspacePath, request::Restore},
    undo::Select,
};

/// Put back a backup, a path as it was, or the whole workspace as it was
///
/// Decided, backed up and audited as any other change. The current content is
/// backed up first, so a restore can be undone by another one. A directory that is in
/// the way of a backup is replaced with all that is in it.
///
/// With --at or --before, PATH becomes what it was then: changes that went
/// through the gateway since are taken back, of a directory all in it. --at or --to
/// alone does so for the whole workspace. These show first what they would do, and do
/// it with --yes or after a yes on the terminal; files that something else
/// changed since are conflicts, and nothing is done while there are any, unless
/// they are to be skipped or overwritten.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "portcullis backup restore [OPTIONS] <BACKUP> [--to <PATH>] [--dry-run]\n       \
    portcullis backup restore [OPTIONS] <PATH> <--at <TIME>|--before <RECORD>> [--yes]\n       \
    portcullis backup restore [OPTIONS] <--at <TIME>|--to <RECORD>> [--yes]"
)]
#[command(after_help = "Examples:\n  \
    portcullis backup restore src/main.rs --dry-run\n  \
    portcullis backup restore src/main.rs\n  \
    portcullis backup restore 20261103T1201 --to old/main.rs\n  \
    portcullis backup restore src --at 2h\n  \
    portcullis backup restore --at yesterday\n  \
    portcullis backup restore src/main.rs --before 1207 --yes\n  \
    portcullis backup restore --to 1180")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// An id, the beginning of one, or a path
    #[arg(required_unless_present_any = ["to", "at"], value_name = "BACKUP|PATH")]
    backup: Option<String>,
    /// The time whose state is restored: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`, `1 hour ago`,
    /// `yesterday`. Without a path the complete workspace is restored
    #[arg(long, value_name = "TIME", conflicts_with_all = ["before", "to"])]
    at: Option<RecordTime>,
    /// The record of the log before which the path's state is restored
    #[arg(long, value_name = "RECORD", requires = "backup", conflicts_with = "to")]
    before: Option<u64>,
    /// The path to which a backup is restored. Without a backup, the record of the log at which
    /// the complete workspace is restored
    #[arg(long, value_name = "PATH|RECORD")]
    to: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (path, select) = match (&args.backup, &args.at, args.before, &args.to) {
        (path, Some(at), ..) => (path.as_ref(), Select::Later(at.as_str().to_owned())),
        (Some(path), _, Some(record), _) => (Some(path), Select::From(record)),
        (Some(backup), ..) => return one(args, backup),
        (None, _, _, to) => {
            let text = to.as_deref().unwrap_or_default();
            let record = text.parse().map_err(|_| {
                Failure::new(format_args!("`{}` is not the number of a record", Escaped(text)))
                    .exit(Exit::Usage)
                    .help("for a time write --at TIME; for a path name a backup, too: BACKUP --to PATH")
            })?;
            (None, Select::After(record))
        }
    };
    steps::run(&args.common, &select, path.map(String::as_str), &args.flags)
}

fn one(args: &Args, backup: &str) -> Result<ExitCode, Failure> {
    let local = LocalGateway::open(&args.common)?;
    let answer = perform(&local, args, backup);
    finish(local, answer, args.flags.json, |(entry, to, reply)| {
        print(args, &entry, &to, &reply);
        Ok(())
    })
}

fn perform(
    local: &LocalGateway,
    args: &Args,
    backup: &str,
) -> Result<(Backup, WorkspacePath, Reply<Changed>), Error> {
    let entry = named(local, "restore", backup)?;
    let to = match &args.to {
        None => entry.path.clone(),
        Some(text) => local.path("restore", text)?,
    };
    let restore =
        Restore { path: to.clone(), backup: entry.id.to_string(), dry_run: args.flags.dry_run };
    let reply = local.handle(&restore)?;
    Ok((entry, to, reply))
}

fn print(args: &Args, entry: &Backup, to: &WorkspacePath, reply: &Reply<Changed>) {
    if args.flags.json {
        let mut object = render::reply_json(reply);
        if let Some(fields) = object.as_object_mut() {
            fields.insert("from".to_owned(), entry_json(entry));
            fields.insert("to".to_owned(), json!(to.as_str()));
            fields.insert("dryRun".to_owned(), json!(args.flags.dry_run));
        }
        outjson!(object);
        return;
    }
    if args.flags.dry_run {
        errln!("`{to}` can be restored from backup {}", entry.id);
        return;
    }
    errln!("restored `{to}` from backup {}", entry.id);
    let record = render::receipt_text(&reply.receipt);
    match &reply.output.backup {
        Some(backup) => errln!("record {record}, what was there is backup {backup}"),
        None => errln!("record {record}, nothing was there"),
    }
}
