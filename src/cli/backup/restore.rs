//! `portcullis backup restore`: putting a backup back, through the gate.

use std::process::ExitCode;

use serde_json::json;

use super::{entry_json, finish, named};
use crate::{
    backup::Entry,
    cli::{failure::Failure, fs, local::LocalGate, options::Common, render},
    gateway::{Error, Output, Reply},
    model::{Operation, WorkspacePath},
};

/// Put a backup back, decided, backed up and audited as any other change
///
/// What is there now is kept first, so a restore can be undone by another one.
/// A directory that is in the way is replaced with all that is in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup restore src/main.rs --dry-run\n  \
    portcullis backup restore src/main.rs\n  \
    portcullis backup restore 20261103T1201 --to old/main.rs")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// An id, the beginning of one, or a path
    backup: String,
    /// Put it at this path instead
    #[arg(long, value_name = "PATH")]
    to: Option<String>,
    /// Only say whether it is allowed and possible
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let gate = LocalGate::open(&args.common, "cli")?;
    let answer = perform(&gate, args);
    finish(gate, answer, args.json, |(entry, to, reply)| {
        print(args, &entry, &to, &reply);
        Ok(())
    })
}

fn perform(gate: &LocalGate, args: &Args) -> Result<(Entry, WorkspacePath, Reply), Error> {
    let entry = named(gate, "restore", &args.backup)?;
    let to = match &args.to {
        None => entry.path.clone(),
        Some(text) => fs::parse(gate.gateway().workspace().root(), text).map_err(|refusal| {
            gate.gateway().refuse(gate.session(), "restore", Some(text), &refusal)
        })?,
    };
    let operation = Operation::Restore {
        path: to.clone(),
        backup: entry.id.to_string(),
        dry_run: args.dry_run,
    };
    let reply = gate.handle(&operation)?;
    Ok((entry, to, reply))
}

fn print(args: &Args, entry: &Entry, to: &WorkspacePath, reply: &Reply) {
    if args.json {
        let mut object = render::reply_json(reply);
        if let Some(fields) = object.as_object_mut() {
            fields.insert("from".to_owned(), entry_json(entry));
            fields.insert("to".to_owned(), json!(to.as_str()));
            fields.insert("dryRun".to_owned(), json!(args.dry_run));
        }
        println!("{object}");
        return;
    }
    if args.dry_run {
        eprintln!("`{to}` can be restored from backup {}", entry.id);
        return;
    }
    eprintln!("restored `{to}` from backup {}", entry.id);
    let record = reply.receipt.seq;
    match &reply.output {
        Output::Changed(changed) => match &changed.backup {
            Some(backup) => eprintln!("record {record}, what was there is backup {backup}"),
            None => eprintln!("record {record}, nothing was there"),
        },
        _ => eprintln!("record {record}"),
    }
}
