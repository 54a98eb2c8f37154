//! Exchange of a prepared object with the old one: in one step, followed by a comparison, so that
//! another process's change of a moment before is restored rather than lost. Advisory locks would
//! prove nothing: no other program takes them.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use portcullis_audit::Hash;
use rustix::{
    fs::{AtFlags, OFlags, RenameFlags, renameat_with, unlinkat},
    io::Errno,
};

use super::{
    Error,
    delete::{self, EntryAllowance},
};
use crate::{
    backup::{MAX_ENTRIES, Saved, content_hash, fingerprint},
    policy::ObjectKind,
    workspace::{self, Identity, Parent, Stat, TempName, Workspace},
};

/// Attempts to undo an exchange that another process disturbs; after them the gateway gives the
/// object a name of its own.
const MAX_UNDO_ATTEMPTS: usize = 1000;

/// Number of attempts at an entry out of reach, and the pause between them: a tenth of a second in
/// all.
pub(super) const MAX_ATTEMPTS: u32 = 200;
pub(super) const RETRY_INTERVAL: Duration = Duration::from_micros(500);

/// The reason why a name cannot be changed within one directory, other file systems being excluded.
pub(super) const OVERLAY_LOWER: &str = "it is of a lower layer of an overlay file system, whose directories \
                                cannot be renamed, and so neither moved nor removed as a whole";

/// The reason why an entry cannot have a name.
pub(super) const ALIAS: &str = "this file system finds another entry by that name, or would give the \
                                entry another one: use a name as lists have it";

/// The object that a change may displace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// The inode.
    pub(super) identity: Identity,
    /// Hash of its content, target or tree, as in the backup store.
    pub(super) sha256: Hash,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// Number of objects in it.
    pub(super) objects: u64,
}

impl Expected {
    /// Returns the object of this `identity` with the backup `saved`.
    pub(super) fn new(identity: Identity, saved: &Saved) -> Self {
        Self { identity, sha256: saved.sha256, bytes: saved.bytes, objects: saved.objects }
    }

    /// True if the object named `name` is the expected one, unchanged.
    pub(super) fn is_at(&self, parent: &Parent, name: &str) -> bool {
        matches_at(parent, name, self).unwrap_or(false)
    }
}

fn matches_at(parent: &Parent, name: &str, expected: &Expected) -> Result<bool, Error> {
    let stat = parent.stat(name)?;
    if stat.identity != expected.identity {
        return Ok(false);
    }
    Ok(hash_at(parent, name, &stat, expected.bytes)? == expected.sha256)
}

/// Returns the hash of an object as the backup store computes it, of at most `most` bytes.
pub(super) fn hash_at(parent: &Parent, name: &str, stat: &Stat, most: u64) -> Result<Hash, Error> {
    match stat.kind {
        ObjectKind::Directory => {
            let fd = parent.open(name, OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(fingerprint(fd.as_fd(), most)?)
        }
        ObjectKind::Symlink => {
            let target = rustix::fs::readlinkat(parent, name, Vec::new())
                .map_err(workspace::Error::os("read the link"))?;
            Ok(Hash::of(target.as_bytes()))
        }
        _ => Ok(content_hash(parent.open(name, OFlags::RDONLY)?.as_fd(), most)?),
    }
}

/// Puts the object behind `new`, prepared under `temp`, at its name: in place of the object `old`
/// with the backup `saved`, or at a free name if there was none.
///
/// # Errors
/// As [`replace`] and [`place`].
pub(super) fn put(
    workspace: &Workspace,
    parent: &Parent,
    temp: &TempName,
    new: BorrowedFd<'_>,
    old: Option<Identity>,
    saved: &[Saved],
) -> Result<(), Error> {
    match (old, saved.first()) {
        (Some(old), Some(saved)) => {
            replace(workspace, parent, temp, new, &Expected::new(old, saved))
        }
        (Some(_), None) => Err(Error::Conflict),
        (None, _) => place(workspace, parent, temp, new),
    }
}

/// Deletes the object behind `new`, which could not be put at its name. The name `temp` may be that
/// of another process's object by now, which stays. An object that remains is removed by the next
/// start.
pub(super) fn discard(parent: &Parent, temp: &TempName, new: BorrowedFd<'_>) {
    let (Ok(there), Ok(ours)) = (parent.stat(temp.as_str()), Stat::of(new)) else { return };
    if there.identity != ours.identity {
        return;
    }
    let deleted = match ours.kind {
        ObjectKind::Directory => {
            delete::delete(parent, temp.as_str(), &mut EntryAllowance::beside(MAX_ENTRIES))
        }
        _ => unlink(parent, temp.as_str()),
    };
    if let Err(error) = deleted {
        tracing::warn!(%error, "a temporary object could not be removed");
    }
}

/// Puts the object behind `new`, prepared under `temp`, in place of `old`, and removes `old` once
/// it is proven to be in the backup store.
///
/// It is exchanged under its staged name: an object named `temp` is the gateway's own, after a
/// crash too, and one with the staged name may not be.
///
/// The directory must still be in its place: another gateway that removes it has compared it with
/// its backup by then, and would remove the new object with it.
///
/// # Errors
/// [`Error::Conflict`] if `old` is not the expected object: the other process's object is back in
/// its place then, and the new one under `temp`, if it exists.
pub(super) fn replace(
    workspace: &Workspace,
    parent: &Parent,
    temp: &TempName,
    new: BorrowedFd<'_>,
    old: &Expected,
) -> Result<(), Error> {
    let staged = temp.staged();
    move_to(parent, temp, &staged)?;
    let (spare, name) = ((parent, staged.as_str()), (parent, parent.name()));
    if let Err(errno) = exchange(spare, name) {
        move_to(parent, &staged, temp)?;
        return Err(match errno {
            Errno::NOENT => Error::Conflict,
            errno => workspace::Error::os("exchange the files")(errno).into(),
        });
    }
    if old.is_at(parent, staged.as_str()) && workspace.confirm(parent).is_ok() {
        return remove_replaced(workspace, parent, temp, old.objects);
    }
    match undo(spare, name, new)? {
        UndoneExchange::Ours => move_to(parent, &staged, temp)?,
        // A directory may have the only copy of its entries.
        UndoneExchange::Stale if parent.stat(staged.as_str())?.kind == ObjectKind::Directory => {
            put_back(spare, name)?;
        }
        UndoneExchange::Stale => unlink(parent, staged.as_str())?,
        UndoneExchange::Moved => {}
    }
    Err(Error::Conflict)
}

/// Renames an object from one of the gateway's temporary names to another.
pub(super) fn move_to(parent: &Parent, old: &TempName, new: &TempName) -> Result<(), Error> {
    patiently(|| renameat_with(parent, old.as_str(), parent, new.as_str(), RenameFlags::NOREPLACE))
        .map_err(|errno| workspace::Error::os("move the object aside")(errno).into())
}

/// Removes an object that was exchanged and is proven to be in the backup store, with `objects` in
/// it. A directory is renamed first: half removed it would look like another process's.
pub(super) fn remove_replaced(
    workspace: &Workspace,
    parent: &Parent,
    temp: &TempName,
    objects: u64,
) -> Result<(), Error> {
    let staged = temp.staged();
    if parent.stat(staged.as_str())?.kind != ObjectKind::Directory {
        return unlink(parent, staged.as_str());
    }
    let deletion_name = temp.deletion_name();
    move_to(parent, &staged, &deletion_name)?;
    parent.sync()?;
    delete::delete_kept(workspace, parent, deletion_name.as_str(), objects)
}

/// An entry of an open directory.
pub(super) type EntryAt<'a> = (&'a Parent, &'a str);

/// Exchanges two entries.
pub(super) fn exchange(one: EntryAt<'_>, other: EntryAt<'_>) -> Result<(), Errno> {
    renameat_with(one.0, one.1, other.0, other.1, RenameFlags::EXCHANGE)
}

/// The object at the spare name after an exchange was undone.
pub(super) enum UndoneExchange {
    /// The object that the gateway had put at the name.
    Ours,
    /// An object of another process, which that process has replaced since.
    Stale,
    /// None: the object got a name of its own.
    Moved,
}

/// Undoes an exchange that displaced an unexpected object, so that the newest object that another
/// process gave the name ends there.
///
/// An exchange that returns another object than was last put there returns a newer one, which must
/// go back. The object that is returned for it is stale if the other process replaced an object at
/// the name, which then has no name any more. If that process moved the object elsewhere, by an
/// exchange of its own, nothing was replaced, and all of them stay. Descriptors pin the objects,
/// because an inode number alone could be reused meanwhile. `ours` is the object that the gateway
/// had put at the name.
///
/// # Errors
/// Of the system; the object then still has its spare name.
pub(super) fn undo(
    spare: EntryAt<'_>,
    name: EntryAt<'_>,
    ours: BorrowedFd<'_>,
) -> Result<UndoneExchange, Error> {
    let pin = || -> Result<(Identity, OwnedFd), Error> {
        let handle = spare.0.open(spare.1, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok((Stat::of(&handle)?.identity, handle))
    };
    let our_identity = Stat::of(ours)?.identity;
    let mut put: (Identity, Option<OwnedFd>) = (our_identity, None);
    let mut held = pin()?;
    let mut replaced = true;
    for _ in 0..MAX_UNDO_ATTEMPTS {
        if exchange(spare, name).is_err() {
            break;
        }
        let out = pin()?;
        if out.0 == put.0 {
            if put.0 == our_identity {
                return Ok(UndoneExchange::Ours);
            }
            if replaced {
                return Ok(UndoneExchange::Stale);
            }
            break;
        }
        let displaced = match &put.1 {
            Some(handle) => Stat::of(handle)?,
            None => Stat::of(ours)?,
        };
        replaced = displaced.links == 0;
        put = (held.0, Some(held.1));
        held = out;
    }
    put_back(spare, name)?;
    Ok(UndoneExchange::Moved)
}

/// Restores the name of an object that was moved aside, or gives it a name beside that if another
/// process took it meanwhile.
///
/// # Errors
/// Of the system; the object then still has its spare name.
pub(super) fn put_back(spare: EntryAt<'_>, name: EntryAt<'_>) -> Result<(), Error> {
    let back = |to: &str| {
        patiently(|| renameat_with(spare.0, spare.1, name.0, to, RenameFlags::NOREPLACE))
    };
    match back(name.1) {
        Err(Errno::EXIST) => back(&TempName::new()?.beside(name.1)),
        other => other,
    }
    .map_err(workspace::Error::os("put the object back"))?;
    Ok(name.0.sync()?)
}

/// Repeats for a moment an action that a confined gateway may not do. A directory that another
/// process moves out of the workspace takes the gateway's unfinished work along, and is out of
/// reach until it comes back.
///
/// # Errors
/// As `act`; [`Errno::ACCESS`] when the directory stays away.
pub(super) fn patiently(mut act: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 0..MAX_ATTEMPTS {
        match act() {
            Err(Errno::ACCESS) => std::thread::sleep(RETRY_INTERVAL),
            other => return other,
        }
    }
    act()
}

/// Removes the entry `name`, which is no directory.
pub(super) fn unlink(parent: &Parent, name: &str) -> Result<(), Error> {
    patiently(|| unlinkat(parent, name, AtFlags::empty()))
        .map_err(|errno| workspace::Error::os("remove the file")(errno).into())
}

/// Gives `temp`, the object behind `new`, a name that is free, in a directory that must be in its
/// place afterwards as for [`replace`].
///
/// # Errors
/// [`Error::Conflict`] when the name was taken meanwhile, and when the directory is not in its
/// place: the object is under `temp` then, if it exists.
pub(super) fn place(
    workspace: &Workspace,
    parent: &Parent,
    temp: &TempName,
    new: BorrowedFd<'_>,
) -> Result<(), Error> {
    match renameat_with(parent, temp.as_str(), parent, parent.name(), RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(taken(parent)),
        Err(errno) => return Err(workspace::Error::os("name the file")(errno).into()),
    }
    let is_listed = parent.lists(parent.name()).unwrap_or(false);
    if is_listed && workspace.confirm(parent).is_ok() {
        return Ok(());
    }
    let back = patiently(|| {
        renameat_with(parent, parent.name(), parent, temp.as_str(), RenameFlags::NOREPLACE)
    });
    match back {
        // Another process may have put an object of its own there.
        Ok(()) if parent.stat(temp.as_str())?.identity != Stat::of(new)?.identity => {
            put_back((parent, temp.as_str()), (parent, parent.name()))?;
        }
        // It was stored, and has left the workspace since with its directory.
        Err(Errno::ACCESS) => return Ok(()),
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(workspace::Error::os("name the file")(errno).into()),
    }
    Err(if is_listed { Error::Conflict } else { Error::Invalid(ALIAS) })
}

/// Returns why an entry cannot have the name of `parent`, which is taken.
pub(super) fn taken(parent: &Parent) -> Error {
    match parent.lists(parent.name()) {
        Ok(false) => Error::Invalid(ALIAS),
        _ => Error::Conflict,
    }
}
