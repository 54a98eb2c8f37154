//! The operation `restore`: a backup is written back.
//!
//! A restore works as every change: the object is prepared beside its path, exchanged in one step,
//! and the replaced object is backed up first. Any object at the path is replaced, a directory too.
//! Contents are compared with their hashes before and while they are written, and a link is
//! restored as a link, never written through.

use std::{
    fs::File,
    io::Write as _,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, fsync, mkdirat, symlinkat, syncfs};

use super::{
    Change, Committed, Context, Error, Facts, SealedChange, atomic_exchange, parents, read_backup,
    remove::Target,
    replace::{self, set_list},
    unpack,
};
use crate::{
    backup::{
        self, AssignableOwners, Attributes, BackupKind, BackupStore, NodeKind, Origin, Saved,
    },
    model::Access,
    workspace::{self, Parent, Permit, Stat, TempName},
};

/// The count of objects that are restored with another owner.
const DISOWNED: &str = "ownersNotKept";

struct Restoration<'a> {
    context: Context<'a>,
    backup_store: &'a BackupStore,
    entry: backup::Backup,
    permit: Permit,
    /// The current object at the path.
    current: Option<(Stat, Target)>,
    owners: AssignableOwners,
    /// Number of objects that cannot get their owner back.
    disowned: u64,
}

/// Checks the backup and its content, and opens the object that it will replace.
///
/// # Errors
/// When the backup is damaged, or the policy denies its content.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    backup_store: &'a BackupStore,
    entry: backup::Backup,
) -> Result<SealedChange<'a>, Error> {
    if permit.path().is_root() {
        return Err(Error::Invalid("the workspace itself is never replaced"));
    }
    parents::check_may_rename(context.workspace, permit.path())?;
    backup_store.verify(&entry)?;
    check(context, &permit, backup_store, &entry)?;
    let after = match entry.kind {
        BackupKind::Tree => backup_store.tree(&entry)?.restored_fingerprint()?,
        _ => entry.sha256,
    };
    let current = match permit.stat().copied() {
        Some(stat) => Some((stat, Target::open(context, &permit, stat.kind)?)),
        None => None,
    };
    let owners = AssignableOwners::of_this_process();
    let disowned = disowned(backup_store, &entry, &owners)?;
    let mut facts = Facts {
        bytes: Some(entry.bytes),
        after: Some(after),
        temp: Some(TempName::new()?),
        ..Facts::default()
    };
    facts.count(DISOWNED, disowned);
    let change =
        Restoration { context: *context, backup_store, entry, permit, current, owners, disowned };
    Ok(SealedChange::new(Box::new(change), facts))
}

/// Counts the objects of a backup to which the gateway cannot give their owner.
fn disowned(
    backup_store: &BackupStore,
    entry: &backup::Backup,
    owners: &AssignableOwners,
) -> Result<u64, Error> {
    let is_lost = |attributes: &Option<Attributes>| {
        u64::from(attributes.as_ref().is_some_and(|attributes| !owners.may_give(attributes)))
    };
    let mut count = is_lost(&entry.attributes);
    if entry.kind == BackupKind::Tree {
        count = 0;
        let mut tree = backup_store.tree(entry)?;
        while let Some(node) = tree.next_node()? {
            count += is_lost(&node.attributes);
        }
    }
    Ok(count)
}

/// Decides on every content that would be stored at another path.
///
/// At its own path a backup was there before, and limits on what an agent may store (size, binary
/// content) do not prevent its restore: otherwise the operator could not undo the removal of an
/// image.
fn check(
    context: &Context<'_>,
    permit: &Permit,
    backup_store: &BackupStore,
    entry: &backup::Backup,
) -> Result<(), Error> {
    match entry.kind {
        _ if entry.path == *permit.path() => Ok(()),
        BackupKind::Link => Ok(()),
        BackupKind::File | BackupKind::Buffer => {
            let bytes = read_backup::bytes(context, Access::Write, backup_store.content(entry)?)?;
            context.store(permit.path(), None, bytes.into()).map(drop)
        }
        BackupKind::Tree => {
            let mut tree = backup_store.tree(entry)?.at(permit.path().clone());
            while let Some(node) = tree.next_node()? {
                let path = tree.path(&node).map_err(|_| workspace::Error::TooLong)?;
                if node.kind == NodeKind::File {
                    let bytes = read_backup::bytes(context, Access::Write, tree.content(&node)?)?;
                    context.store(&path, None, bytes.into())?;
                }
            }
            Ok(())
        }
    }
}

impl Change for Restoration<'_> {
    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.current.iter().map(|(_, target)| target.origin()).collect()
    }

    fn commit(
        self: Box<Self>,
        temp: Option<&TempName>,
        saved: &[Saved],
    ) -> Result<Committed, Error> {
        let Some(temp) = temp else { return Err(Error::Conflict) };
        let (workspace, path) = (self.context.workspace, self.permit.path());
        parents::create(workspace, path)?;
        let parent = workspace.open_parent(path)?;
        let _excluded = self.context.name_locks.exclude(&[&parent])?;
        workspace.confirm(&parent).map_err(Error::unbegun)?;
        let made = self.make(&parent, temp)?;
        let old = self.current.as_ref().map(|(stat, _)| stat.identity);
        self.fill(&made)
            .and_then(|()| Ok(workspace.confirm(&parent)?))
            .and_then(|()| atomic_exchange::put(workspace, &parent, temp, made.as_fd(), old, saved))
            .inspect_err(|_| atomic_exchange::discard(&parent, temp, made.as_fd()))?;
        parent.sync()?;
        if self.disowned > 0 {
            tracing::warn!(
                objects = self.disowned,
                "objects of other owners were restored as the gateway user's own, accessible to \
                 that user alone"
            );
        }
        Ok(Committed::Stored(None))
    }
}

impl Restoration<'_> {
    /// Makes the object under its temporary name, empty unless it is a link.
    fn make(&self, parent: &Parent, temp: &TempName) -> Result<OwnedFd, Error> {
        match self.entry.kind {
            BackupKind::File | BackupKind::Buffer => {
                let kept = self.entry.attributes.is_some();
                let like = self.current.as_ref().map(|(stat, _)| stat);
                replace::create(parent, temp, kept || like.is_some())
            }
            BackupKind::Tree => {
                mkdirat(parent, temp.as_str(), Mode::RWXU)
                    .map_err(workspace::Error::os("make the directory"))?;
                Ok(parent.open(temp.as_str(), OFlags::RDONLY | OFlags::DIRECTORY)?)
            }
            BackupKind::Link => {
                let target = self.backup_store.link_target(&self.entry)?;
                symlinkat(target.as_slice(), parent, temp.as_str())
                    .map_err(workspace::Error::os("make the link"))?;
                Ok(parent.open(temp.as_str(), OFlags::PATH | OFlags::NOFOLLOW)?)
            }
        }
    }

    /// Gives the object its content and attributes.
    fn fill(&self, made: &OwnedFd) -> Result<(), Error> {
        match self.entry.kind {
            BackupKind::Link => Ok(()),
            BackupKind::Tree => {
                let mut tree = self.backup_store.tree(&self.entry)?;
                unpack::unpack(
                    &mut tree,
                    made,
                    &self.owners,
                    self.context.workspace.has_aliases(),
                )?;
                // A single sync covers everything that may be in it.
                Ok(syncfs(made).map_err(workspace::Error::os("sync the directory"))?)
            }
            BackupKind::File | BackupKind::Buffer => {
                write(made, self.backup_store.content(&self.entry)?)?;
                match (&self.entry.attributes, &self.current) {
                    (Some(attributes), _) => apply(made, attributes, &self.owners)?,
                    (None, Some((stat, Target::File(old)))) => {
                        replace::keep_ownership(made, old, stat)?;
                    }
                    (None, _) => {}
                }
                Ok(fsync(made).map_err(workspace::Error::os("sync the file"))?)
            }
        }
    }
}

/// Writes stored content into an open file.
pub(super) fn write(file: &OwnedFd, mut content: backup::BackupContent) -> Result<(), Error> {
    let mut file = File::from(file.try_clone().map_err(workspace::Error::io("open the file"))?);
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = content.piece(&mut buffer)?;
        let piece = buffer.get(..count).unwrap_or_default();
        if piece.is_empty() {
            return Ok(());
        }
        file.write_all(piece).map_err(workspace::Error::io("write the file"))?;
    }
}

/// Restores an object's owner, mode and access control lists; see [`AssignableOwners::mode`].
///
/// An object that cannot get its owner back stays the gateway's own, accessible to nobody else: its
/// content is better than none.
pub(super) fn apply(
    fd: &OwnedFd,
    attributes: &Attributes,
    owners: &AssignableOwners,
) -> Result<(), Error> {
    let now = Stat::of(fd)?;
    let given = owners.may_give(attributes);
    if given && (now.uid, now.gid) != (attributes.uid, attributes.gid) {
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        fchown(fd, Some(uid), Some(gid)).map_err(|_| Error::Owner)?;
    }
    let is_directory = now.kind == crate::policy::ObjectKind::Directory;
    fchmod(fd, Mode::from_raw_mode(owners.mode(attributes, is_directory)))
        .map_err(workspace::Error::os("set the mode"))?;
    set_list(fd, backup::ACL_ACCESS, attributes.acl.as_deref().filter(|_| given))?;
    if is_directory {
        set_list(fd, backup::ACL_DEFAULT, attributes.default_acl.as_deref().filter(|_| given))?;
    }
    Ok(())
}
