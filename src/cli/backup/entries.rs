//! Entries of the backup store: the one that the command line names, and how they are shown.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    app::{
        failure::{Context as _, Failure},
        path_argument,
    },
    cli::{local::LocalGate, render},
    gateway::{Backup, BackupError, BackupId, BackupList, BackupStore, Error, Refusal},
    model::WorkspacePath,
};

/// What fails where backups cannot be read.
pub(super) const UNREADABLE: &str = "cannot read the backups";

/// What the vault keeps; nothing where there is none.
pub(super) fn entries(vault: Option<&BackupStore>) -> Result<BackupList, Failure> {
    vault.map(BackupStore::entries).transpose().or_fail(UNREADABLE).map(Option::unwrap_or_default)
}

/// The backup that the command line names. What does not exist is recorded as
/// the refusal of `op`.
pub(super) fn named(gate: &LocalGate, op: &str, text: &str) -> Result<Backup, Error> {
    let refuse = |refusal| gate.gateway().refuse(gate.session(), op, Some(text), &refusal);
    let root = gate.gateway().workspace().root();
    let path = path_argument::parse(root, text).ok();
    look(gate.gateway().backups(), text, path.as_ref())
        .map_err(|error| refuse(Refusal::Parameters(error.to_string())))
}

/// A path that has backups comes before the beginning of an id.
fn look(
    vault: &BackupStore,
    text: &str,
    path: Option<&WorkspacePath>,
) -> Result<Backup, BackupError> {
    if text.parse::<BackupId>().is_err()
        && let Some(path) = path
        && let Some(newest) = vault.entries_of(path)?.entries.pop()
    {
        return Ok(newest);
    }
    vault.find(text)
}

/// When the backup was made: RFC 3339 in UTC, to the second.
pub(super) fn time(entry: &Backup) -> String {
    Timestamp::from_second(entry.id.time().as_second()).unwrap_or_default().to_string()
}

/// A backup as a JSON object; its content's hash only where that is disclosed.
pub(super) fn entry_json(entry: &Backup) -> Value {
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
pub(super) fn finish<T>(
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
