//! `portcullis backup`: what the vault keeps, listed, shown, compared and put
//! back.

mod diff;
mod list;
mod prune;
mod put_back;
mod restore;
mod show;
mod undo;
mod verify;

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{local::LocalGate, render};
use crate::{
    app::{
        failure::{Context as _, Failure},
        path_argument,
    },
    backup::{self, Entry, Listing, Vault},
    gateway::{Error, Refusal},
    model::WorkspacePath,
};

/// What fails where backups cannot be read.
const UNREADABLE: &str = "cannot read the backups";

/// List, show, compare and restore backups, and undo what was done
///
/// A BACKUP is an id, the beginning of one, or a path, which stands for the
/// newest backup of that path.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup list src\n  \
    portcullis backup diff src/main.rs\n  \
    portcullis backup restore src/main.rs\n  \
    portcullis backup undo --session 5f2c\n  \
    portcullis backup show 20261103T1201 -o old.txt")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Diff(diff::Args),
    Restore(restore::Args),
    Undo(undo::Args),
    Verify(verify::Args),
    Prune(prune::Args),
}

/// Runs the command.
///
/// # Errors
/// When state or vault cannot be opened, or the operation fails.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Command::List(args) => list::run(&args),
        Command::Show(args) => show::run(args),
        Command::Diff(args) => diff::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Undo(args) => undo::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Prune(args) => prune::run(&args),
    }
}

/// What the vault keeps; nothing where there is none.
fn entries(vault: Option<&Vault>) -> Result<Listing, Failure> {
    vault.map(Vault::entries).transpose().or_fail(UNREADABLE).map(Option::unwrap_or_default)
}

/// The backup that the command line names. What does not exist is recorded as
/// the refusal of `op`.
fn named(gate: &LocalGate, op: &str, text: &str) -> Result<Entry, Error> {
    let refuse = |refusal| gate.gateway().refuse(gate.session(), op, Some(text), &refusal);
    let root = gate.gateway().workspace().root();
    let path = path_argument::parse(root, text).ok();
    look(gate.gateway().vault(), text, path.as_ref())
        .map_err(|error| refuse(Refusal::Parameters(error.to_string())))
}

/// A path that has backups comes before the beginning of an id.
fn look(vault: &Vault, text: &str, path: Option<&WorkspacePath>) -> Result<Entry, backup::Error> {
    if text.parse::<backup::BackupId>().is_err()
        && let Some(path) = path
        && let Some(newest) = vault.entries_of(path)?.entries.pop()
    {
        return Ok(newest);
    }
    vault.find(text)
}

/// When the backup was made: RFC 3339 in UTC, to the second.
fn time(entry: &Entry) -> String {
    Timestamp::from_second(entry.id.time().as_second()).unwrap_or_default().to_string()
}

/// A backup as a JSON object; its content's hash only where that is disclosed.
fn entry_json(entry: &Entry) -> Value {
    let attributes = entry.attributes.as_ref();
    json!({
        "id": entry.id.to_string(),
        "time": entry.id.time().to_string(),
        "path": entry.path.as_str(),
        "type": entry.kind.as_str(),
        "operation": entry.operation.as_str(),
        "bytes": entry.bytes,
        "stored": entry.stored,
        "nodes": entry.nodes,
        "mode": attributes.map(|attributes| format!("{:04o}", attributes.mode)),
        "session": entry.session,
        "agent": entry.agent,
    })
}

/// Closes the gate and says what it answered.
fn finish<T>(
    gate: LocalGate,
    answer: Result<T, Error>,
    json: bool,
    print: impl FnOnce(T) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    gate.close()?;
    match answer {
        Ok(answer) => print(answer).map(|()| ExitCode::SUCCESS),
        Err(error) => Ok(render::report_error("backup", &error, json)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        _args: super::Args,
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
