//! How a prepared object takes the place of the old one: exchanged in one
//! step, then compared, so that what another process did a moment before is
//! put back rather than lost. Advisory locks would prove nothing: nobody else
//! takes them.

use std::os::fd::AsFd as _;

use portcullis_audit::Hash;
use rustix::{
    fs::{AtFlags, OFlags, RenameFlags, renameat_with, unlinkat},
    io::Errno,
};

use super::{Error, remove};
use crate::{
    backup::{content_hash, fingerprint},
    policy::ObjectKind,
    workspace::{self, Identity, Parent, Stat, TempName},
};

/// How often an exchange that another process disturbs is undone before the
/// gate gives up and leaves the object under its temporary name.
const UNDO_ROUNDS: usize = 8;

/// What an object must be for a change to be allowed to displace it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Which inode.
    pub(super) identity: Identity,
    /// Hash of its content, target or tree, as the vault holds it.
    pub(super) sha256: Hash,
}

impl Expected {
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
    Ok(hash_at(parent, name, &stat)? == expected.sha256)
}

/// The hash of an object as the vault computes it.
pub(super) fn hash_at(parent: &Parent, name: &str, stat: &Stat) -> Result<Hash, Error> {
    match stat.kind {
        ObjectKind::Directory => {
            let fd = parent.open(name, OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(fingerprint(fd.as_fd())?)
        }
        ObjectKind::Symlink => {
            let target = rustix::fs::readlinkat(parent, name, Vec::new())
                .map_err(workspace::Error::os("read the link"))?;
            Ok(Hash::of(target.as_bytes()))
        }
        _ => Ok(content_hash(parent.open(name, OFlags::RDONLY)?.as_fd())?),
    }
}

/// Puts `new`, prepared under `temp`, at the place of `old`, and removes `old`
/// once it is proven to be what the vault holds.
///
/// # Errors
/// [`Error::Conflict`] when it is not: the other process's object is back at
/// its place then.
pub(super) fn replace(
    parent: &Parent,
    temp: &TempName,
    new: Identity,
    old: &Expected,
) -> Result<(), Error> {
    let exchange =
        || renameat_with(parent, temp.as_str(), parent, parent.name(), RenameFlags::EXCHANGE);
    match exchange() {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(Error::Conflict),
        Err(errno) => return Err(workspace::Error::os("exchange the files")(errno).into()),
    }
    if old.is_at(parent, temp.as_str()) {
        return remove_replaced(parent, temp);
    }
    for _ in 0..UNDO_ROUNDS {
        match exchange() {
            Ok(()) if parent.stat(temp.as_str()).is_ok_and(|out| out.identity == new) => {
                remove::delete(parent, temp.as_str())?;
                return Err(Error::Conflict);
            }
            // Somebody replaced ours meanwhile: theirs goes back, once more.
            Ok(()) => {}
            Err(_) => {
                put_back(parent, temp)?;
                return Err(Error::Conflict);
            }
        }
    }
    Err(Error::Conflict)
}

/// Removes what was proven to be in the vault. A directory is marked first:
/// half removed it would look like something else that came in the way.
fn remove_replaced(parent: &Parent, temp: &TempName) -> Result<(), Error> {
    if parent.stat(temp.as_str())?.kind != ObjectKind::Directory {
        return unlink(parent, temp.as_str());
    }
    let condemned = remove::condemn(parent, temp)?;
    remove::delete(parent, condemned.as_str())
}

/// Gives an object that was moved aside its name back, or a name beside it
/// when somebody else took that meanwhile.
///
/// # Errors
/// As the system says; the object then still has its temporary name.
pub(super) fn put_back(parent: &Parent, temp: &TempName) -> Result<(), Error> {
    let back =
        |name: &str| renameat_with(parent, temp.as_str(), parent, name, RenameFlags::NOREPLACE);
    match back(parent.name()) {
        Err(Errno::EXIST) => {
            let random = temp.as_str().get(12..20).unwrap_or("0");
            back(&format!("{}.conflict-{random}", parent.name()))
        }
        other => other,
    }
    .map_err(workspace::Error::os("put the object back"))?;
    Ok(parent.sync()?)
}

/// Removes the entry `name`, which is no directory.
pub(super) fn unlink(parent: &Parent, name: &str) -> Result<(), Error> {
    unlinkat(parent, name, AtFlags::empty())
        .map_err(|errno| workspace::Error::os("remove the file")(errno).into())
}

/// Gives `temp` the name that nothing has yet.
///
/// # Errors
/// [`Error::Conflict`] when something took the name meanwhile.
pub(super) fn place(parent: &Parent, temp: &TempName) -> Result<(), Error> {
    match renameat_with(parent, temp.as_str(), parent, parent.name(), RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(Error::Conflict),
        Err(errno) => Err(workspace::Error::os("name the file")(errno).into()),
    }
}
