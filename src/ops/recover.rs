//! Settling a change whose gate died between its intent and its outcome, by
//! looking at what is there.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, ErrorKind, Read as _},
};

use portcullis_audit::Hash;
use rustix::fs::OFlags;

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

/// Whether a change that failed left nothing behind, durably: neither what it prepared
/// nor, unless another process was in the way or had to do it, a part of
/// itself. What cannot be looked at may be there.
pub fn is_undone(workspace: &Workspace, remains: &Remains, error: &Error) -> bool {
    let look = || -> Result<bool, Error> {
        let parent = match workspace.open_parent(&remains.path) {
            Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => return Ok(true),
            parent => parent?,
        };
        // What was undone must stay so when the power fails after its outcome.
        parent.sync()?;
        for name in remains.temp.iter().flat_map(|temp| [temp.clone(), temp.condemned()]) {
            match parent.stat(name.as_str()) {
                Err(workspace::Error::NotFound) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(false),
            }
        }
        let to = match &remains.to {
            None => None,
            Some(to) => match workspace.open_parent(to) {
                Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => None,
                to => Some(to?),
            },
        };
        to.as_ref().map_or(Ok(()), Parent::sync)?;
        if matches!(error, Error::Conflict | Error::Editor(_)) {
            return Ok(true);
        }
        let here = hash_of(&parent, parent.name())?;
        match to {
            Some(to) => Ok(here.is_some() && hash_of(&to, to.name())? == remains.before),
            None if remains.to.is_some() => Ok(here.is_some()),
            None => Ok(here == remains.before),
        }
    };
    look().unwrap_or(false)
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
    let Some((temp, prepared)) = remains.temp.as_ref().zip(prepared) else {
        return Ok(resolution);
    };
    // What the name held before an exchange is known, so it is the vault's, or
    // it came from another process a moment before.
    let displaced = resolution == Resolution::Committed
        && remains.before.is_some_and(|before| before != prepared)
        && remains.before != remains.after
        && !is_beginning(parent, temp.as_str(), parent.name())?;
    if !displaced {
        remove::delete(parent, temp.as_str())?;
        parent.sync()?;
        return Ok(resolution);
    }
    if parent.stat(temp.as_str())?.kind == ObjectKind::Directory {
        // Either another process's tree, or a part of ours and somebody did the
        // same since. It gets a name of its own: nothing whole makes way for it.
        swap::put_back((parent, temp.as_str()), (parent, parent.name()))?;
        return Ok(resolution);
    }
    // It goes back, ours goes.
    undo_exchange(parent, temp)
}

/// Whether the file `part` holds the first bytes of the file `whole`: then it
/// is a copy that was being made when its gate died, and the same change was
/// made again since.
fn is_beginning(parent: &Parent, part: &str, whole: &str) -> Result<bool, Error> {
    for name in [part, whole] {
        if parent.stat(name)?.kind != ObjectKind::File {
            return Ok(false);
        }
    }
    let open =
        |name: &str| -> Result<File, Error> { Ok(parent.open(name, OFlags::RDONLY)?.into()) };
    let read = || workspace::Error::io("read the file");
    let (part, mut whole) = (open(part)?, open(whole)?);
    let mut part = BufReader::new(part);
    loop {
        let piece = part.fill_buf().map_err(read())?;
        if piece.is_empty() {
            return Ok(true);
        }
        let mut same = vec![0; piece.len()];
        match whole.read_exact(&mut same) {
            Ok(()) if same == piece => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(read()(error).into()),
        }
        let length = piece.len();
        part.consume(length);
    }
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
