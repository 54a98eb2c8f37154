//! Recovery of a change whose gateway died between its intent and its outcome, from the state of
//! the disk.

use portcullis_audit::Hash;
use rustix::fs::OFlags;

use super::{
    Error, SomeAttributes,
    atomic_exchange::{self, hash_at},
    delete::{self, EntryAllowance},
};
use crate::{
    backup::{self, MAX_ENTRIES},
    model::{OperationKind, WorkspacePath},
    policy::ObjectKind,
    workspace::{self, EntryIdentity, Parent, Stat, TempName, Workspace},
};

/// The description of a change in an intent without outcome.
#[derive(Debug, Clone)]
pub(crate) struct UnfinishedChange {
    /// The operation.
    pub operation: OperationKind,
    /// The canonical path.
    pub path: WorkspacePath,
    /// The new canonical path of a rename.
    pub to: Option<WorkspacePath>,
    /// True if the entry at the new path gets the old path.
    pub exchange: bool,
    /// The temporary name of the change, beside the object that it replaces.
    pub temp: Option<TempName>,
    /// Hash of the object before the change, as in its backup.
    pub before: Option<Hash>,
    /// Hash of the object after the change.
    pub after: Option<Hash>,
    /// Attributes before and after, if the change sets attributes.
    pub attributes: Option<(SomeAttributes, SomeAttributes)>,
    /// The entry that gets another name or attributes, as it is afterwards.
    pub entry: Option<EntryIdentity>,
    /// Bytes that either object can have: a larger one is another object.
    pub most: u64,
}

/// The resolution of an unfinished change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The new state is complete.
    Committed,
    /// The old state is intact.
    RolledBack,
    /// Another state: another process changed the object since.
    Superseded,
}

impl Resolution {
    /// Returns the word in the `recovered` record.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolledBack",
            Self::Superseded => "superseded",
        }
    }
}

/// True if a failed change left nothing behind, durably: neither temporary files nor, unless
/// another process was in the way or had to make it, a part of itself. An object that cannot be
/// looked at may be there.
pub(crate) fn is_undone(workspace: &Workspace, remains: &UnfinishedChange, error: &Error) -> bool {
    let look = || -> Result<bool, Error> {
        let parent = match workspace.open_parent(&remains.path) {
            Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => return Ok(true),
            parent => parent?,
        };
        let to = match &remains.to {
            None => None,
            Some(to) => match workspace.open_parent(to) {
                Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => None,
                to => Some(to?),
            },
        };
        // An undone change must stay undone when the power fails after its outcome.
        parent.sync()?;
        to.as_ref().map_or(Ok(()), Parent::sync)?;
        for name in remains.temp.iter().flat_map(TempName::all) {
            match to.as_ref().unwrap_or(&parent).stat(name.as_str()) {
                Err(workspace::Error::NotFound) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(false),
            }
        }
        if matches!(error, Error::Conflict | Error::Editor(_)) {
            return Ok(true);
        }
        let here = (&parent, parent.name());
        if let Some((before, _)) = &remains.attributes {
            return match parent.stat(parent.name()) {
                Err(workspace::Error::NotFound) => Ok(true),
                stat => Ok(before.of(&stat?) == *before),
            };
        }
        match to {
            Some(to) => Ok(is_there(here)? && holds((&to, to.name()), remains, remains.before)?),
            None if remains.to.is_some() => is_there(here),
            None => holds(here, remains, remains.before),
        }
    };
    look().unwrap_or(false)
}

/// Looks at the object, finishes or undoes the change, and removes its temporary files. Nothing is
/// deleted that is not in the backup store.
///
/// # Errors
/// When it cannot be looked at, finished or undone; its temporary files stay then.
pub(crate) fn settle(
    workspace: &Workspace,
    remains: &UnfinishedChange,
) -> Result<Resolution, Error> {
    let parent = match workspace.open_parent(&remains.path) {
        Ok(parent) => Some(parent),
        Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => None,
        Err(workspace::Error::Moved) => return Ok(Resolution::Superseded),
        Err(error) => return Err(error.into()),
    };
    if remains.operation == OperationKind::Rename {
        return settle_rename(workspace, parent.as_ref(), remains);
    }
    // The directory is missing or another one: it has nothing of the change.
    let Some(parent) = parent else { return Ok(absent(remains)) };
    match remains.operation {
        OperationKind::Remove => settle_removal(workspace, &parent, remains),
        OperationKind::SetAttributes => settle_attributes(&parent, remains),
        OperationKind::Mkdir => Ok(match kind_of((&parent, parent.name()))? {
            Some(ObjectKind::Directory) => Resolution::Committed,
            Some(_) => Resolution::Superseded,
            None => Resolution::RolledBack,
        }),
        _ => settle_replacement(workspace, &parent, remains),
    }
}

/// Compares the object's attributes, if it is the one that the change is about; those that were set
/// before the crash stay.
fn settle_attributes(parent: &Parent, remains: &UnfinishedChange) -> Result<Resolution, Error> {
    let Some((before, after)) = &remains.attributes else { return Ok(Resolution::Superseded) };
    let object = match parent.open(parent.name(), OFlags::PATH | OFlags::NOFOLLOW) {
        Err(workspace::Error::NotFound | workspace::Error::Mount) => {
            return Ok(Resolution::Superseded);
        }
        object => object?,
    };
    let (stat, now) = (Stat::of(&object)?, EntryIdentity::of(&object)?);
    let is_object = |entry: &EntryIdentity| {
        let at = |set: &SomeAttributes| entry.clone().with_modified(set.modified);
        at(before).is_same_object(&now) || at(after).is_same_object(&now)
    };
    Ok(if !remains.entry.as_ref().is_none_or(is_object) {
        Resolution::Superseded
    } else if after.of(&stat) == *after {
        Resolution::Committed
    } else if before.of(&stat) == *before {
        Resolution::RolledBack
    } else {
        Resolution::Superseded
    })
}

fn absent(remains: &UnfinishedChange) -> Resolution {
    match remains.operation {
        OperationKind::Remove => Resolution::Superseded,
        _ if remains.before.is_none() => Resolution::RolledBack,
        _ => Resolution::Superseded,
    }
}

/// Returns the kind of the entry with a name; `None` if it is missing.
fn kind_of((parent, name): atomic_exchange::EntryAt<'_>) -> Result<Option<ObjectKind>, Error> {
    match parent.stat(name) {
        Ok(stat) => Ok(Some(stat.kind)),
        // A mount point is no object that a change could have made.
        Err(workspace::Error::Mount) => Ok(Some(ObjectKind::Device)),
        Err(workspace::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_there(entry: atomic_exchange::EntryAt<'_>) -> Result<bool, Error> {
    Ok(kind_of(entry)?.is_some())
}

/// True if the expected object has the name, or no object where none is expected. Only an object
/// with an expected hash is read.
fn holds(
    entry: atomic_exchange::EntryAt<'_>,
    remains: &UnfinishedChange,
    expected: Option<Hash>,
) -> Result<bool, Error> {
    match expected {
        Some(_) => Ok(hash_of(entry.0, entry.1, remains)? == expected),
        None => Ok(!is_there(entry)?),
    }
}

/// Returns the hash of the object named `name`; `None` if it is missing. An object that could be
/// neither backed up nor made by a gateway has a hash that no object has.
fn hash_of(parent: &Parent, name: &str, remains: &UnfinishedChange) -> Result<Option<Hash>, Error> {
    match kind_of((parent, name))? {
        None => return Ok(None),
        Some(ObjectKind::File | ObjectKind::Directory | ObjectKind::Symlink) => {}
        Some(_) => return Ok(Some(Hash::ZERO)),
    }
    let hashed = parent
        .stat(name)
        .map_err(Error::from)
        .and_then(|stat| hash_at(parent, name, &stat, remains.most));
    match hashed {
        Ok(hash) => Ok(Some(hash)),
        Err(Error::Workspace(workspace::Error::NotFound)) => Ok(None),
        Err(error) if is_anothers(&error) => Ok(Some(Hash::ZERO)),
        Err(error) => Err(error),
    }
}

/// True for errors of an object that no gateway backed up or made: such objects could be read, and
/// were trees that can be restored.
fn is_anothers(error: &Error) -> bool {
    use backup::Error as Kept;
    use workspace::Error as Found;
    match error {
        Error::Backup(
            Kept::Special
            | Kept::Mount
            | Kept::NotUtf8
            | Kept::TooLarge
            | Kept::NotRegular
            | Kept::Large
            | Kept::Changed,
        )
        | Error::Workspace(
            Found::Mount | Found::Moved | Found::NotADirectory | Found::IsADirectory,
        ) => true,
        error => delete::is_refused(error),
    }
}

fn settle_replacement(
    workspace: &Workspace,
    parent: &Parent,
    remains: &UnfinishedChange,
) -> Result<Resolution, Error> {
    if delete_leftover(workspace, parent, remains)? {
        return Ok(Resolution::Committed);
    }
    let there = hash_of(parent, parent.name(), remains)?;
    let resolution = if there == remains.after {
        Resolution::Committed
    } else if there == remains.before {
        Resolution::RolledBack
    } else {
        Resolution::Superseded
    };
    let Some(temp) = &remains.temp else { return Ok(resolution) };
    delete_unfinished(parent, temp)?;
    let staged = temp.staged();
    let (spare, name) = ((parent, staged.as_str()), (parent, parent.name()));
    let Some(aside) = hash_of(parent, staged.as_str(), remains)? else { return Ok(resolution) };
    if Some(aside) == remains.before {
        atomic_exchange::remove_replaced(workspace, parent, temp, MAX_ENTRIES)?;
        parent.sync()?;
        return Ok(resolution);
    }
    if Some(aside) == remains.after {
        atomic_exchange::move_to(parent, &staged, temp)?;
        delete_unfinished(parent, temp)?;
        return Ok(resolution);
    }
    // It is another process's, without any backup. The object that the exchange displaced is
    // restored; if the exchange was being undone, either of the two may be the newer one.
    if resolution == Resolution::Committed
        && atomic_exchange::exchange(spare, name).is_ok()
        && hash_of(parent, staged.as_str(), remains)? == remains.after
    {
        atomic_exchange::move_to(parent, &staged, temp)?;
        delete_unfinished(parent, temp)?;
    } else {
        atomic_exchange::put_back(spare, name)?;
    }
    Ok(Resolution::Superseded)
}

/// Removes a file that a gateway was making: it is the gateway's own in any case.
fn delete_unfinished(parent: &Parent, temp: &TempName) -> Result<(), Error> {
    match parent.stat(temp.as_str()) {
        Ok(_) => {
            delete::delete(parent, temp.as_str(), &mut EntryAllowance::beside(MAX_ENTRIES))?;
            Ok(parent.sync()?)
        }
        Err(workspace::Error::NotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Finishes the deletion of an entry that is proven to be in the backup store.
fn delete_leftover(
    workspace: &Workspace,
    parent: &Parent,
    remains: &UnfinishedChange,
) -> Result<bool, Error> {
    let Some(deletion_name) = remains.temp.as_ref().map(TempName::deletion_name) else {
        return Ok(false);
    };
    if !is_there((parent, deletion_name.as_str()))? {
        return Ok(false);
    }
    delete::delete_kept(workspace, parent, deletion_name.as_str(), MAX_ENTRIES)?;
    parent.sync()?;
    Ok(true)
}

fn settle_removal(
    workspace: &Workspace,
    parent: &Parent,
    remains: &UnfinishedChange,
) -> Result<Resolution, Error> {
    if delete_leftover(workspace, parent, remains)? {
        return Ok(Resolution::Committed);
    }
    if let Some(temp) = &remains.temp
        && let Some(aside) = hash_of(parent, temp.as_str(), remains)?
    {
        // The entry was not compared with its backup yet.
        atomic_exchange::put_back((parent, temp.as_str()), (parent, parent.name()))?;
        return Ok(if Some(aside) == remains.before {
            Resolution::RolledBack
        } else {
            Resolution::Superseded
        });
    }
    Ok(match hash_of(parent, parent.name(), remains)? {
        None => Resolution::Committed,
        there if there == remains.before => Resolution::RolledBack,
        Some(_) => Resolution::Superseded,
    })
}

fn settle_rename(
    workspace: &Workspace,
    from: Option<&Parent>,
    remains: &UnfinishedChange,
) -> Result<Resolution, Error> {
    let Some(to) = &remains.to else { return Ok(Resolution::Superseded) };
    let to = match workspace.open_parent(to) {
        Ok(parent) => parent,
        Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => {
            return Ok(match from {
                Some(_) => Resolution::RolledBack,
                None => Resolution::Superseded,
            });
        }
        Err(workspace::Error::Moved) => return Ok(Resolution::Superseded),
        Err(error) => return Err(error.into()),
    };
    if remains.exchange {
        return settle_exchange(from, &to, remains);
    }
    if let Some(temp) = &remains.temp
        && let Some(resolution) = settle_replacing(workspace, from, &to, temp, remains)?
    {
        return Ok(resolution);
    }
    let is_old_there = from.map_or(Ok(false), |from| is_there((from, from.name())))?;
    let new = (&to, to.name());
    let is_made = || match remains.after {
        None => is_there(new),
        after => holds(new, remains, after),
    };
    if is_old_there && holds(new, remains, remains.before)? {
        return Ok(Resolution::RolledBack);
    }
    Ok(if !is_old_there && is_made()? { Resolution::Committed } else { Resolution::Superseded })
}

/// Compares both names with the two entries, which were exchanged in one step.
fn settle_exchange(
    from: Option<&Parent>,
    to: &Parent,
    remains: &UnfinishedChange,
) -> Result<Resolution, Error> {
    let Some(from) = from else { return Ok(Resolution::Superseded) };
    let (old, new) = ((from, from.name()), (to, to.name()));
    let are = |at_old, at_new| -> Result<bool, Error> {
        Ok(holds(old, remains, at_old)? && holds(new, remains, at_new)?)
    };
    Ok(if are(remains.after, remains.before)? {
        Resolution::RolledBack
    } else if are(remains.before, remains.after)? {
        Resolution::Committed
    } else {
        Resolution::Superseded
    })
}

/// Settles a rename with an entry under a temporary name.
fn settle_replacing(
    workspace: &Workspace,
    from: Option<&Parent>,
    to: &Parent,
    temp: &TempName,
    remains: &UnfinishedChange,
) -> Result<Option<Resolution>, Error> {
    let undo = |name: &TempName| -> Result<Resolution, Error> {
        // If the old directory is missing, the new name was granted too.
        let back = from.unwrap_or(to);
        atomic_exchange::put_back((to, name.as_str()), (back, back.name()))?;
        let is_old = holds((to, to.name()), remains, remains.before)?;
        Ok(if is_old { Resolution::RolledBack } else { Resolution::Superseded })
    };
    if to.stat(temp.as_str()).is_ok() {
        // The entry was only moved aside.
        return undo(temp).map(Some);
    }
    let staged = temp.staged();
    let Some(aside) = hash_of(to, staged.as_str(), remains)? else { return Ok(None) };
    if Some(aside) == remains.after {
        return undo(&staged).map(Some);
    }
    if Some(aside) == remains.before {
        atomic_exchange::remove_replaced(workspace, to, temp, MAX_ENTRIES)?;
        to.sync()?;
        return Ok(None);
    }
    // It is another process's: the old name could reveal it to an agent that may not read the new
    // one.
    atomic_exchange::put_back((to, staged.as_str()), (to, to.name()))?;
    Ok(Some(Resolution::Superseded))
}
