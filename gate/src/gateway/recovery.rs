//! Settling what gates that died left behind, before serving anything.

use portcullis_audit::{AuditRecord, Draft, Kind};

use super::{Gateway, record::shown};
use crate::{
    backup::{BackupId, Vault},
    ledger,
    model::WorkspacePath,
    ops::{self, Remains, Resolution},
    workspace::TempName,
};

/// Why a start could not settle what a dead gate left.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The log cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// An intent does not say what it was about.
    #[error("the intent {0} cannot be understood")]
    Malformed(u64),
}

/// An intent that a dead gate left, and how it was settled; `None` when it could
/// not be.
pub(super) type Settled<'a> = (&'a AuditRecord, Option<Resolution>);

/// Settles every intent without outcome whose gate is dead, and records how.
/// Records that nobody waits for an answer to what it asked. Then removes what a
/// dead gate kept for a change whose intent it did not live to write. Returns how many intents were settled.
///
/// One that cannot be settled now stays open, and each start tries again. It is
/// no reason not to serve: what it replaces is in the vault, and what the change
/// holds under its temporary names is neither served nor deleted meanwhile.
pub(super) fn run(gateway: &Gateway) -> Result<usize, RecoveryError> {
    let (ledger, workspace, vault) = (&gateway.ledger, &gateway.workspace, &gateway.vault);
    let orphans = ledger.orphans()?;
    let mut settled = Vec::new();
    // The newest first: what took another change back holds what that one made.
    for intent in orphans.intents().iter().rev() {
        let remains = remains(&intent.draft, vault).ok_or(RecoveryError::Malformed(intent.seq))?;
        let resolution = match ops::settle(workspace, &remains) {
            Ok(resolution) => resolution,
            Err(error) => {
                tracing::error!(
                    record = intent.seq,
                    %error,
                    "a change that a gate left unfinished cannot be settled; each start tries again"
                );
                settled.push((intent, None));
                continue;
            }
        };
        let resolution = match &intent.draft.backup {
            Some(backup) if resolution == Resolution::Committed => {
                if is_kept(vault, &remains, backup) { resolution } else { Resolution::Superseded }
            }
            _ => resolution,
        };
        settled.push((intent, Some(resolution)));
    }
    settled.reverse();
    gateway.take_back_unfinished(&settled);
    let mut count = 0;
    for (intent, resolution) in &settled {
        let Some(resolution) = resolution else { continue };
        let remains = remains(&intent.draft, vault).ok_or(RecoveryError::Malformed(intent.seq))?;
        orphans.resolve(intent, draft(intent, &remains, *resolution))?;
        count += 1;
    }
    for question in orphans.questions() {
        ledger.note(Kind::Approval, abandoned(question), true)?;
    }
    let dead = orphans.traces().iter().filter_map(|(boot, trace)| {
        let since: jiff::Timestamp = trace.since.parse().ok()?;
        Some((boot.as_str(), since.as_microsecond(), &trace.backups))
    });
    match vault.remove_unnamed(&dead.collect::<Vec<_>>()) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed backups of changes that never began"),
        // They cost room, until retention lets them go, and nothing else.
        Err(error) => tracing::warn!(%error, "needless backups could not be removed"),
    }
    orphans.finish()?;
    Ok(count)
}

/// Whether the vault still has what was kept for a change. A gate takes that
/// back only when it did not make the change, which need not be on stable
/// storage as soon as the file's end is: what looks as if it had been made was
/// made by somebody else.
fn is_kept(vault: &Vault, remains: &Remains, backup: &str) -> bool {
    let Ok(id) = backup.parse::<BackupId>() else { return true };
    let mut paths = std::iter::once(&remains.path).chain(&remains.to);
    // What cannot be looked at may be there.
    paths.any(|path| !matches!(vault.entry_of(path, &id), Ok(None)))
}

/// The end of a question that its gate did not live to hear the answer to. Nothing was
/// decided about it, and nothing was done.
fn abandoned(question: &AuditRecord) -> Draft {
    Draft {
        decision: None,
        result: Some("abandoned".to_owned()),
        bytes: None,
        ..question.draft.clone()
    }
}

fn draft(intent: &AuditRecord, remains: &Remains, resolution: Resolution) -> Draft {
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

/// What an intent says of its change.
pub(super) fn remains(draft: &Draft, vault: &Vault) -> Option<Remains> {
    let parse = |text: &String| WorkspacePath::parse(text).ok();
    Some(Remains {
        operation: draft.op.as_ref()?.parse().ok()?,
        path: parse(draft.resolved.as_ref().or(draft.path.as_ref())?)?,
        to: match &draft.to {
            Some(to) => Some(parse(to)?),
            None => None,
        },
        temp: match &draft.temp {
            Some(temp) => Some(TempName::parse(temp)?),
            None => None,
        },
        before: draft.before,
        after: draft.after,
        // What was kept had room in the vault, and what was written in memory.
        most: vault.retention().size.max(draft.bytes.unwrap_or(0)),
    })
}
