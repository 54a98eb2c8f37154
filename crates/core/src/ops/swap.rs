//! How a prepared object takes the place of the old one: exchanged in one
//! step, then compared, so that what another process did a moment before is
//! put back rather than lost. Advisory locks would prove nothing: nobody else
//! takes them.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use portcullis_audit::Hash;
use rustix::{
    fs::{AtFlags, OFlags, RenameFlags, renameat_with, unlinkat},
    io::Errno,
};

use super::{Error, delete};
use crate::{
    backup::{Saved, content_hash, fingerprint},
    policy::ObjectKind,
    workspace::{self, Identity, Parent, Stat, TempName, Workspace},
};

/// How often an exchange that another process disturbs is undone before the
/// gate gives up and gives the object a name of its own.
const UNDO_ROUNDS: usize = 1000;

/// How often, and after what pause, something is tried again that is out of
/// reach: a tenth of a second in all.
pub(super) const PATIENCE: u32 = 200;
pub(super) const PAUSE: Duration = Duration::from_micros(500);

/// Why a name does not change within one directory, mounts and other file systems
/// being none.
pub(super) const LOWER: &str = "it is of a lower layer of an overlay file system, whose directories \
                                cannot be renamed, and so neither moved nor removed as a whole";

/// Why an entry cannot have a name.
pub(super) const ALIAS: &str = "this file system finds another entry by that name, or would give the \
                                entry another one: use a name as lists have it";

/// What an object must be for a change to be allowed to displace it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Which inode.
    pub(super) identity: Identity,
    /// Hash of its content, target or tree, as the vault holds it.
    pub(super) sha256: Hash,
    /// Bytes of that.
    pub(super) bytes: u64,
    /// Objects of that.
    pub(super) objects: u64,
}

impl Expected {
    /// The object of this `identity` that the vault keeps as `saved`.
    pub(super) fn new(identity: Identity, saved: &Saved) -> Self {
        Self { identity, sha256: saved.sha256, bytes: saved.bytes, objects: saved.objects }
    }

    /// Whether the object named `name` is the expected one, unchanged.
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

/// The hash of an object as the vault computes it, of at most `most` bytes.
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

/// Puts the object behind `new`, prepared under `temp`, at the place of `old`,
/// and removes `old` once it is proven to be what the vault holds.
///
/// It is exchanged under its staged name: whatever has `temp` itself is ours,
/// after a crash too, and what has the other may not be.
///
/// The directory must still be where it was decided to be: another gate that
/// removes it has compared it with the vault by then, so what is put into it now
/// would go with it.
///
/// # Errors
/// [`Error::Conflict`] when it is not: the other process's object is back at
/// its place then, and ours under `temp`, if it is anywhere.
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
        Undone::Ours => move_to(parent, &staged, temp)?,
        // A directory may hold what is nowhere else.
        Undone::Stale if parent.stat(staged.as_str())?.kind == ObjectKind::Directory => {
            put_back(spare, name)?;
        }
        Undone::Stale => unlink(parent, staged.as_str())?,
        Undone::Moved => {}
    }
    Err(Error::Conflict)
}

/// Gives what a gate has under one of its names another of them.
pub(super) fn move_to(parent: &Parent, old: &TempName, new: &TempName) -> Result<(), Error> {
    patiently(|| renameat_with(parent, old.as_str(), parent, new.as_str(), RenameFlags::NOREPLACE))
        .map_err(|errno| workspace::Error::os("move the object aside")(errno).into())
}

/// Removes what an exchange brought out and the vault is proven to hold, with
/// `objects` in it. A directory is marked first: half removed it would look like
/// something else that came in the way.
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
    let condemned = temp.condemned();
    move_to(parent, &staged, &condemned)?;
    parent.sync()?;
    delete::delete_kept(workspace, parent, condemned.as_str(), objects)
}

/// An entry of an open directory.
pub(super) type EntryAt<'a> = (&'a Parent, &'a str);

/// Exchanges two entries.
pub(super) fn exchange(one: EntryAt<'_>, other: EntryAt<'_>) -> Result<(), Errno> {
    renameat_with(one.0, one.1, other.0, other.1, RenameFlags::EXCHANGE)
}

/// What lies at the spare name after an exchange was undone.
pub(super) enum Undone {
    /// What we had put at the name.
    Ours,
    /// An object of another process that it has replaced since by itself.
    Stale,
    /// Nothing: what was there got a name of its own.
    Moved,
}

/// Undoes an exchange that brought out something unexpected, so that the
/// newest object that another process gave the name ends there.
///
/// An exchange that brings out something else than what was last put there
/// brings out something newer, which must go back. What comes out for that is
/// stale if the other process replaced an object at the name, which then has no
/// name any more. If it moved it elsewhere, by an exchange of its own, nothing
/// was replaced, and all of them stay. Handles pin the objects: an inode number
/// alone could be given to another one meanwhile. `ours` is what we had put at
/// the name.
///
/// # Errors
/// As the system says; the object then still has its spare name.
pub(super) fn undo(
    spare: EntryAt<'_>,
    name: EntryAt<'_>,
    ours: BorrowedFd<'_>,
) -> Result<Undone, Error> {
    let pin = || -> Result<(Identity, OwnedFd), Error> {
        let handle = spare.0.open(spare.1, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok((Stat::of(&handle)?.identity, handle))
    };
    let our_identity = Stat::of(ours)?.identity;
    let mut put: (Identity, Option<OwnedFd>) = (our_identity, None);
    let mut held = pin()?;
    let mut replaced = true;
    for _ in 0..UNDO_ROUNDS {
        if exchange(spare, name).is_err() {
            break;
        }
        let out = pin()?;
        if out.0 == put.0 {
            if put.0 == our_identity {
                return Ok(Undone::Ours);
            }
            if replaced {
                return Ok(Undone::Stale);
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
    Ok(Undone::Moved)
}

/// Gives an object that was moved aside its name back, or a name beside it
/// when somebody else took that meanwhile.
///
/// # Errors
/// As the system says; the object then still has its spare name.
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

/// Tries again for a moment what a confined gate may not do. A directory that
/// another process moves out of the workspace takes what the gate has half done
/// with it, and is out of the gate's reach until it comes back.
///
/// # Errors
/// As `act` says; [`Errno::ACCESS`] when the directory stays away.
pub(super) fn patiently(mut act: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 0..PATIENCE {
        match act() {
            Err(Errno::ACCESS) => std::thread::sleep(PAUSE),
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

/// Gives `temp`, which is the object behind `new`, the name that nothing has
/// yet, in a directory that must be in place afterwards as for [`replace`].
///
/// # Errors
/// [`Error::Conflict`] when something took the name meanwhile, and when the
/// directory is not in place: the object is under `temp` then, if it is anywhere.
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
        // Another process may have put something of its own there.
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

/// Why an entry cannot have the name that `parent` is for, which something has.
pub(super) fn taken(parent: &Parent) -> Error {
    match parent.lists(parent.name()) {
        Ok(false) => Error::Invalid(ALIAS),
        _ => Error::Conflict,
    }
}
