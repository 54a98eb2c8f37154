//! Settling a change whose gate died between its intent and its outcome, by
//! looking at what is there.

use portcullis_audit::Hash;

use super::{
    Error, remove,
    swap::{self, hash_at},
};
use crate::{
    model::{OperationKind, WorkspacePath},
    policy::ObjectKind,
    workspace::{self, Parent, TempName, Workspace},
};

/// What an intent without outcome says of its change.
#[derive(Debug, Clone)]
pub struct Remains {
    /// The operation.
    pub operation: OperationKind,
    /// The canonical path.
    pub path: WorkspacePath,
    /// The new canonical path of a rename.
    pub to: Option<WorkspacePath>,
    /// The name under which the change was prepared.
    pub temp: Option<TempName>,
    /// Hash of what was to be replaced, as the vault holds it.
    pub before: Option<Hash>,
    /// Hash of what was to be there.
    pub after: Option<Hash>,
}

/// How an unfinished change was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// The change is there, whole.
    Committed,
    /// The old state is there, whole.
    RolledBack,
    /// Something else is there: somebody changed the object since.
    Superseded,
}

impl Resolution {
    /// The word in the `recovered` record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolledBack",
            Self::Superseded => "superseded",
        }
    }
}

/// Looks at the object, finishes or undoes the change, and removes what it
/// left under its temporary name. Nothing that the vault does not hold is
/// deleted.
///
/// # Errors
/// When the workspace cannot be looked at; the change stays unsettled then.
pub fn settle(workspace: &Workspace, remains: &Remains) -> Result<Resolution, Error> {
    let parent = match workspace.open_parent(&remains.path) {
        Ok(parent) => parent,
        // The directory is gone or another one: nothing of ours is there.
        Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => {
            return Ok(absent(remains));
        }
        Err(workspace::Error::Moved) => return Ok(Resolution::Superseded),
        Err(error) => return Err(error.into()),
    };
    match remains.operation {
        OperationKind::Remove => settle_removal(&parent, remains),
        OperationKind::Rename => settle_rename(workspace, &parent, remains),
        OperationKind::Mkdir => Ok(match hash_of(&parent, parent.name())? {
            Some(_) => Resolution::Committed,
            None => Resolution::RolledBack,
        }),
        _ => settle_replacement(&parent, remains),
    }
}

fn absent(remains: &Remains) -> Resolution {
    match remains.operation {
        OperationKind::Remove => Resolution::Superseded,
        _ if remains.before.is_none() => Resolution::RolledBack,
        _ => Resolution::Superseded,
    }
}

/// The hash of the object named `name`; `None` when nothing is there.
fn hash_of(parent: &Parent, name: &str) -> Result<Option<Hash>, Error> {
    match parent.stat(name) {
        Ok(stat)
            if matches!(
                stat.kind,
                ObjectKind::File | ObjectKind::Directory | ObjectKind::Symlink
            ) =>
        {
            Ok(Some(hash_at(parent, name, &stat)?))
        }
        Ok(_) => Ok(Some(Hash::ZERO)),
        Err(workspace::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn settle_replacement(parent: &Parent, remains: &Remains) -> Result<Resolution, Error> {
    if delete_condemned(parent, remains)? {
        return Ok(Resolution::Committed);
    }
    let there = hash_of(parent, parent.name())?;
    let prepared = match &remains.temp {
        Some(temp) => hash_of(parent, temp.as_str())?,
        None => None,
    };
    let resolution = if there == remains.after {
        Resolution::Committed
    } else if there == remains.before {
        Resolution::RolledBack
    } else {
        Resolution::Superseded
    };
    if let (Some(temp), Some(content)) = (&remains.temp, prepared) {
        let displaced = resolution == Resolution::Committed
            && Some(content) != remains.before
            && remains.before != remains.after;
        if displaced {
            // What came out of the exchange is not what the vault holds:
            // another process had changed it. It goes back, ours goes.
            return undo_exchange(parent, temp);
        }
        remove::delete(parent, temp.as_str())?;
        parent.sync()?;
    }
    Ok(resolution)
}

fn undo_exchange(parent: &Parent, temp: &TempName) -> Result<Resolution, Error> {
    use rustix::fs::{RenameFlags, renameat_with};
    renameat_with(parent, temp.as_str(), parent, parent.name(), RenameFlags::EXCHANGE)
        .map_err(workspace::Error::os("exchange the files back"))?;
    remove::delete(parent, temp.as_str())?;
    parent.sync()?;
    Ok(Resolution::Superseded)
}

/// Finishes the removal of what was proven to be in the vault.
fn delete_condemned(parent: &Parent, remains: &Remains) -> Result<bool, Error> {
    let Some(condemned) = remains.temp.as_ref().map(TempName::condemned) else { return Ok(false) };
    if parent.stat(condemned.as_str()).is_err() {
        return Ok(false);
    }
    remove::delete(parent, condemned.as_str())?;
    parent.sync()?;
    Ok(true)
}

fn settle_removal(parent: &Parent, remains: &Remains) -> Result<Resolution, Error> {
    if delete_condemned(parent, remains)? {
        return Ok(Resolution::Committed);
    }
    if let Some(temp) = &remains.temp
        && let Some(aside) = hash_of(parent, temp.as_str())?
    {
        // It was not yet compared with what the vault holds.
        swap::put_back((parent, temp.as_str()), (parent, parent.name()))?;
        return Ok(if Some(aside) == remains.before {
            Resolution::RolledBack
        } else {
            Resolution::Superseded
        });
    }
    Ok(match hash_of(parent, parent.name())? {
        None => Resolution::Committed,
        there if there == remains.before => Resolution::RolledBack,
        Some(_) => Resolution::Superseded,
    })
}

fn settle_rename(
    workspace: &Workspace,
    from: &Parent,
    remains: &Remains,
) -> Result<Resolution, Error> {
    let Some(to) = &remains.to else { return Ok(Resolution::Superseded) };
    let to = match workspace.open_parent(to) {
        Ok(parent) => parent,
        Err(workspace::Error::NotFound) => return Ok(Resolution::RolledBack),
        Err(error) => return Err(error.into()),
    };
    match (hash_of(from, from.name())?, hash_of(&to, to.name())?) {
        (None, Some(_)) => Ok(Resolution::Committed),
        (Some(_), None) => Ok(Resolution::RolledBack),
        // Exchanged, and the replaced file not yet removed: the vault has it.
        (Some(old), Some(new)) if Some(old) == remains.before && Some(new) != remains.before => {
            swap::unlink(from, from.name())?;
            from.sync()?;
            Ok(Resolution::Committed)
        }
        (Some(_), Some(new)) if Some(new) == remains.before => Ok(Resolution::RolledBack),
        _ => Ok(Resolution::Superseded),
    }
}
