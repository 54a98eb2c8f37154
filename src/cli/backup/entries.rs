//! The backup that the command line names, and the output of backups.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    app::{
        failure::{Context as _, Failure},
        path_argument,
    },
    cli::{local_gateway::LocalGateway, render},
    gateway::{Backup, BackupError, BackupId, BackupList, BackupStore, Error, ErrorKind, Refusal},
    model::{Escaped, WorkspacePath},
    policy::nearest,
};

/// The action of a failure to read backups.
pub(super) const UNREADABLE: &str = "cannot read the backups";

/// Lists the backups; an empty list if there is no store.
pub(super) fn entries(backup_store: Option<&BackupStore>) -> Result<BackupList, Failure> {
    backup_store
        .map(BackupStore::entries)
        .transpose()
        .or_fail(UNREADABLE)
        .map(Option::unwrap_or_default)
}

/// Returns the backup that the command line names. A missing one is recorded as a refusal of
/// `op`.
pub(super) fn named(local: &LocalGateway, op: &str, text: &str) -> Result<Backup, Error> {
    let refuse = |refusal| local.gateway().refuse(local.session(), op, Some(text), &refusal);
    let root = local.gateway().workspace().root();
    let path = path_argument::parse(root, text).ok();
    look(local.gateway().backups(), text, path.as_ref()).map_err(refuse)
}

/// Looks up a backup by its id, the beginning of one, or a path. An agent chooses the names of files,
/// so one that may be the beginning of an id is no path.
fn look(
    backup_store: &BackupStore,
    text: &str,
    path: Option<&WorkspacePath>,
) -> Result<Backup, Refusal> {
    if text.parse::<BackupId>().is_err()
        && let Some(path) = path
        && let Some(newest) = backup_store.entries_of(path).map_err(unsuitable)?.entries.pop()
    {
        return match BackupId::may_begin(text) {
            false => Ok(newest),
            true => Err(Refusal::Unsuitable(
                ErrorKind::InvalidInput,
                format!(
                    "`{text}` may be the beginning of an id, and is a path that has backups; write the \
                     whole id, or `./{text}` for the path"
                ),
            )),
        };
    }
    backup_store.find(text).map_err(|error| {
        let near = match &error {
            BackupError::Unknown(_) => similar_path(backup_store, path),
            _ => None,
        };
        match near {
            Some(near) => Refusal::Unsuitable(
                ErrorKind::NotFound,
                format!("{error}; did you mean `{}`?", Escaped(&near)),
            ),
            None => unsuitable(error),
        }
    })
}

/// Returns the path with a backup that is most similar to one without.
fn similar_path(backup_store: &BackupStore, path: Option<&WorkspacePath>) -> Option<String> {
    let list = backup_store.entries().ok()?;
    let known = list.entries.iter().map(|entry| entry.path.as_str());
    nearest(path?.as_str(), known).map(str::to_owned)
}

/// Returns the refusal of a command whose backup cannot be read.
pub(super) fn unsuitable(error: BackupError) -> Refusal {
    let kind = match &error {
        BackupError::Unknown(_) => ErrorKind::NotFound,
        BackupError::Ambiguous(_) => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Refusal::Unsuitable(kind, error.to_string())
}

/// Returns the time of a backup: RFC 3339 in UTC, to the second.
pub(super) fn time(entry: &Backup) -> String {
    Timestamp::from_second(entry.id.time().as_second()).unwrap_or_default().to_string()
}

/// Returns a backup as a JSON object; its content's hash only if that is disclosed.
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

/// Closes the gateway and prints its reply.
pub(super) fn finish<T>(
    local: LocalGateway,
    answer: Result<T, Error>,
    json: bool,
    print: impl FnOnce(T) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    local.close()?;
    match answer {
        Ok(answer) => print(answer).map(|()| ExitCode::SUCCESS),
        Err(error) => Ok(render::report_error("backup", &error, json)),
    }
}
