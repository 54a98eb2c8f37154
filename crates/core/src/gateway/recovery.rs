//! Recovery of what dead gateways left behind, before anything is served.

use portcullis_audit::{AuditRecord, Draft, Kind};

use super::{
    Gateway,
    record::{ATTRIBUTES, ATTRIBUTES_BEFORE, ENTRY, EXCHANGE, shown},
};
use crate::{
    audit_log,
    backup::{self, BackupId, BackupStore},
    model::{OperationKind, WorkspacePath},
    ops::{self, Resolution, SomeAttributes, UnfinishedChange},
    workspace::{EntryIdentity, TempName},
};

/// The reason why a start could not settle what a dead gateway left.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The log cannot be read or written.
    #[error(transparent)]
    Log(#[from] audit_log::Error),
    /// The backups cannot be opened.
    #[error(transparent)]
    Backups(backup::Error),
    /// An intent does not describe its change.
    #[error("the intent {0} cannot be understood")]
    Malformed(u64),
}

/// An intent that a dead gateway left, and its resolution; `None` when it could not be settled.
pub(super) type SettledChange<'a> = (&'a AuditRecord, Option<Resolution>);

/// Settles every intent of a dead gateway that has no outcome, and records how. Records that the
/// questions of dead gateways were abandoned. Then removes the backups of changes whose intents a
/// dead gateway did not write. Returns the number of settled intents.
///
/// An intent that cannot be settled stays open, and each start tries again. The gateway serves
/// nevertheless: the backup store has what the change replaces, and files under its temporary names
/// are neither served nor deleted meanwhile.
pub(super) fn run(gateway: &Gateway) -> Result<usize, RecoveryError> {
    let (audit_log, workspace, backup_store) =
        (&gateway.audit_log, &gateway.workspace, &gateway.backup_store);
    let orphans = audit_log.orphans()?;
    let mut settled = Vec::new();
    let (connections, changes): (Vec<_>, Vec<_>) =
        orphans.intents().iter().partition(|intent| is_connection(intent));
    // The newest first: a rollback has the content that the change before it made.
    for intent in changes.into_iter().rev() {
        let remains =
            remains(&intent.draft, backup_store).ok_or(RecoveryError::Malformed(intent.seq))?;
        let resolution = match ops::settle(workspace, &remains) {
            Ok(resolution) => resolution,
            Err(error) => {
                tracing::error!(
                    record = intent.seq,
                    %error,
                    "a change that a gateway left unfinished cannot be settled; each start tries again"
                );
                settled.push((intent, None));
                continue;
            }
        };
        let resolution = match &intent.draft.backup {
            Some(backup) if resolution == Resolution::Committed => {
                if is_kept(backup_store, &remains, backup) {
                    resolution
                } else {
                    Resolution::Superseded
                }
            }
            _ => resolution,
        };
        settled.push((intent, Some(resolution)));
    }
    settled.reverse();
    gateway.take_back_unfinished(&settled);
    let mut count = connections.len();
    for intent in connections {
        orphans.resolve(intent, interrupted(intent))?;
    }
    for (intent, resolution) in &settled {
        let Some(resolution) = resolution else { continue };
        let remains =
            remains(&intent.draft, backup_store).ok_or(RecoveryError::Malformed(intent.seq))?;
        orphans.resolve(intent, draft(intent, &remains, *resolution))?;
        count += 1;
    }
    for question in orphans.questions() {
        audit_log.note(Kind::Approval, abandoned(question), true)?;
    }
    let dead = orphans.traces().iter().filter_map(|(boot, trace)| {
        let since: jiff::Timestamp = trace.since.parse().ok()?;
        Some((boot.as_str(), since.as_microsecond(), &trace.backups))
    });
    match backup_store.remove_unnamed(&dead.collect::<Vec<_>>()) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed backups of changes that never began"),
        // They only take space until retention deletes them.
        Err(error) => tracing::warn!(%error, "needless backups could not be removed"),
    }
    orphans.finish()?;
    Ok(count)
}

/// True for the intent of a connection, which leaves nothing to settle.
fn is_connection(intent: &AuditRecord) -> bool {
    intent.draft.op.as_deref() == Some(OperationKind::Connect.as_str())
}

/// Returns the outcome of a connection whose gateway died.
fn interrupted(intent: &AuditRecord) -> Draft {
    Draft {
        session: intent.draft.session.clone(),
        agent: intent.draft.agent.clone(),
        op: intent.draft.op.clone(),
        facts: intent.draft.facts.clone(),
        result: Some("interrupted".to_owned()),
        ..Draft::default()
    }
}

/// True if the backup store still has the backup of a change. A gateway discards a backup only of a
/// change that it did not make, and its record of that may not be durable yet. So without the
/// backup, another process made what looks like the change.
fn is_kept(backup_store: &BackupStore, remains: &UnfinishedChange, backup: &str) -> bool {
    let Ok(id) = backup.parse::<BackupId>() else { return true };
    let mut paths = std::iter::once(&remains.path).chain(&remains.to);
    // A backup that cannot be read may exist.
    paths.any(|path| !matches!(backup_store.entry_of(path, &id), Ok(None)))
}

/// Returns the end of a question whose gateway died before the answer. Nothing was decided, and
/// nothing was done.
fn abandoned(question: &AuditRecord) -> Draft {
    Draft {
        decision: None,
        result: Some("abandoned".to_owned()),
        bytes: None,
        ..question.draft.clone()
    }
}

fn draft(intent: &AuditRecord, remains: &UnfinishedChange, resolution: Resolution) -> Draft {
    Draft {
        session: intent.draft.session.clone(),
        agent: intent.draft.agent.clone(),
        op: intent.draft.op.clone(),
        path: Some(shown(&remains.path)),
        backup: intent.draft.backup.clone(),
        result: Some(resolution.as_str().to_owned()),
        ..Draft::default()
    }
}

/// Returns the description of an intent's change for recovery.
pub(super) fn remains(draft: &Draft, backup_store: &BackupStore) -> Option<UnfinishedChange> {
    let parse = |text: &String| WorkspacePath::parse(text).ok();
    Some(UnfinishedChange {
        operation: draft.op.as_ref()?.parse().ok()?,
        path: parse(draft.resolved.as_ref().or(draft.path.as_ref())?)?,
        to: match &draft.to {
            Some(to) => Some(parse(to)?),
            None => None,
        },
        exchange: draft.facts.as_ref().is_some_and(|facts| facts.contains_key(EXCHANGE)),
        temp: match &draft.temp {
            Some(temp) => Some(TempName::parse(temp)?),
            None => None,
        },
        before: draft.before,
        after: draft.after,
        attributes: {
            let attributes = |name| SomeAttributes::parse(draft.facts.as_ref()?.get(name)?);
            attributes(ATTRIBUTES_BEFORE).zip(attributes(ATTRIBUTES))
        },
        entry: draft.facts.as_ref().and_then(|facts| EntryIdentity::parse(facts.get(ENTRY)?)),
        // A backup fit into the store, and a stored content into memory.
        most: backup_store.retention().size.max(draft.bytes.unwrap_or(0)),
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make files behind the gateway's back")]
mod tests {
    use std::{collections::BTreeMap, fs, os::fd::AsFd as _, sync::Arc};

    use cap_std::fs::Dir;
    use tempfile::TempDir;

    use super::*;
    use crate::{
        audit_log::AuditLog,
        backup::{Meta, Origin},
        gateway::Client,
        model::{Access, OperationKind, Session, Transport, request::Write},
        policy::{PolicySource, Query, SecretKey, compile},
        workspace::{Follow, Permit, Workspace},
    };

    const POLICY: &str =
        "schema = 1\nversion = 1\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]";

    fn session() -> Session {
        let (id, user) = ("ab".repeat(16), "user".to_owned());
        Session { id, agent: "agent".parse().unwrap(), user, transport: Transport::Acp, acp: None }
    }

    fn gateway(temp: &TempDir) -> Gateway {
        let policy = compile(&PolicySource::from_text("test", POLICY)).unwrap();
        let state = Dir::from_std_file(fs::File::open(temp.path().join("state")).unwrap());
        let workspace = Workspace::open(&temp.path().join("ws")).unwrap();
        let audit_log = AuditLog::open(&state).unwrap();
        let key = SecretKey::new(&[7; SecretKey::LENGTH]);
        Gateway::open(workspace, Arc::new(policy), audit_log, &state, key).unwrap()
    }

    /// Saves a backup as a gateway does before it writes an intent.
    fn save(gateway: &Gateway, backup_store: &BackupStore) -> BackupId {
        let path = WorkspacePath::parse("a").unwrap();
        let resolved = gateway.workspace.resolve(&path, Follow::No).unwrap();
        let (session, operation) = (&session(), OperationKind::Write);
        let query = Query { agent: &session.agent, operation, access: Access::Write, path: &path };
        let permit = Permit::new(resolved, gateway.policy().evaluate(&query)).unwrap();
        let file = fs::File::open(gateway.workspace().root().join("a")).unwrap();
        let meta = Meta { session, operation, after: None, beyond_size: false };
        let mut saved = backup_store.save(&permit, &meta, Origin::File(file.as_fd())).unwrap();
        backup_store.settle(&mut saved).unwrap();
        saved.id
    }

    #[test]
    fn what_a_dead_gateway_kept_for_nothing_goes_and_all_else_stays() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["ws", "state"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        fs::write(temp.path().join("ws/a"), "one").unwrap();
        let (alive, dead) = (gateway(&temp), gateway(&temp));
        for gateway in [&alive, &dead] {
            gateway.start(&session(), BTreeMap::new()).unwrap();
        }
        let path = WorkspacePath::parse("a").unwrap();
        let write = Write { path, content: b"two".to_vec(), mode: None };
        dead.handle(&session(), &write, Client::default()).unwrap();
        let ids = |gateway: &Gateway| -> Vec<BackupId> {
            let entries = gateway.backups().entries().unwrap().entries;
            entries.iter().map(|entry| entry.id).collect()
        };
        let named = ids(&dead);
        assert_eq!(named.len(), 1);
        // Each gateway dies, or lives, between the backup and its record.
        let (of_dead, of_alive) =
            (save(&dead, &dead.backup_store), save(&alive, &alive.backup_store));
        let state = Dir::from_std_file(fs::File::open(temp.path().join("state")).unwrap());
        let nobodys = BackupStore::open(&state, dead.backup_store.retention()).unwrap();
        let of_nobody = save(&dead, &nobodys);
        drop(dead);

        let next = gateway(&temp);
        let left = ids(&next);
        assert!(!left.contains(&of_dead));
        assert!([&named[0], &of_alive, &of_nobody].into_iter().all(|id| left.contains(id)));
        drop(alive);
        let left = ids(&gateway(&temp));
        assert_eq!(left.len(), 2);
        assert!(!left.contains(&of_alive));
    }
}
