//! The operation `remove`: an entry is moved aside in one step, compared with its backup, then
//! deleted.

use std::{
    ffi::{CStr, CString},
    fs::File,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{
        Access, AtFlags, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags, accessat, fstat,
        renameat_with, statat, statx,
    },
    io::Errno,
    process::geteuid,
};

use super::{
    Change, Committed, Context, Error, Facts, SealedChange,
    atomic_exchange::{self, Expected},
    delete::{EntryAllowance, delete_kept},
    parents,
};
use crate::{
    backup::{MAX_ENTRIES, Origin, Saved},
    model::WorkspacePath,
    policy::ObjectKind,
    workspace::{self, Listing, Parent, Permit, Stat, TempName, Workspace},
};

/// An object that is to be removed or replaced, open for its backup.
pub(super) enum Target {
    File(File),
    Link(String),
    Directory(OwnedFd),
}

impl Target {
    /// Opens the permit's object.
    ///
    /// # Errors
    /// Also when it is a directory that the gateway could remove only in part.
    pub(super) fn open(
        context: &Context<'_>,
        permit: &Permit,
        kind: ObjectKind,
    ) -> Result<Self, Error> {
        Ok(match kind {
            ObjectKind::Symlink => Self::Link(permit.link_target()?),
            ObjectKind::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let directory = permit.open(context.workspace, flags)?;
                check_can_be_emptied(context.workspace, permit.path())?;
                Self::Directory(directory)
            }
            _ => Self::File(permit.open_file(context.workspace)?),
        })
    }

    /// Refuses a directory with entries.
    pub(super) fn check_is_empty(&self) -> Result<(), Error> {
        let Self::Directory(directory) = self else { return Ok(()) };
        let listing = Listing::read(directory)?;
        let is_empty = listing.entries.is_empty() && listing.not_utf8 == 0;
        if is_empty { Ok(()) } else { Err(Error::NotEmpty) }
    }

    /// Returns the object for the backup store.
    pub(super) fn origin(&self) -> Origin<'_> {
        match self {
            Self::File(file) => Origin::File(file.as_fd()),
            Self::Link(target) => Origin::Link(target.as_bytes()),
            Self::Directory(directory) => Origin::Tree(directory.as_fd()),
        }
    }
}

struct Removal<'a> {
    context: Context<'a>,
    permit: Permit,
    stat: Stat,
    target: Target,
}

/// Opens the object for its backup.
///
/// # Errors
/// [`Error::NotEmpty`] for a directory with entries unless `recursive`.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    recursive: bool,
) -> Result<SealedChange<'a>, Error> {
    if permit.path().is_root() {
        return Err(Error::Invalid("the workspace itself is never removed"));
    }
    let stat = *permit.stat().ok_or(Error::Workspace(workspace::Error::NotFound))?;
    parents::check_may_rename(context.workspace, permit.path())?;
    let target = Target::open(context, &permit, stat.kind)?;
    if !recursive {
        target.check_is_empty()?;
    }
    let facts = Facts { temp: Some(TempName::new()?), ..Facts::default() };
    let change: Box<dyn Change + 'a> =
        Box::new(Removal { context: *context, permit, stat, target });
    Ok(SealedChange::new(change, facts))
}

impl Change for Removal<'_> {
    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        vec![self.target.origin()]
    }

    fn commit(
        self: Box<Self>,
        temp: Option<&TempName>,
        saved: &[Saved],
    ) -> Result<Committed, Error> {
        let (Some(temp), Some(saved)) = (temp, saved.first()) else {
            return Err(Error::Conflict);
        };
        let expected = Expected::new(self.stat.identity, saved);
        let path: &WorkspacePath = self.permit.path();
        let parent = self.context.workspace.open_parent(path)?;
        self.context.workspace.confirm(&parent).map_err(Error::unbegun)?;
        let (aside, name) = ((&parent, temp.as_str()), (&parent, parent.name()));
        if let Err(error) = move_aside(&parent, temp) {
            // If it stays aside, the next start restores its name.
            if parent.stat(aside.1).is_ok() {
                let _stays = atomic_exchange::put_back(aside, name);
            }
            return Err(error);
        }
        if !expected.is_at(&parent, temp.as_str()) {
            atomic_exchange::put_back(aside, name)?;
            return Err(Error::Conflict);
        }
        // The name marks the entry as proven to be in the backup store.
        let deletion_name = temp.deletion_name();
        atomic_exchange::move_to(&parent, temp, &deletion_name)?;
        parent.sync()?;
        delete_kept(self.context.workspace, &parent, deletion_name.as_str(), saved.objects)?;
        parent.sync()?;
        Ok(Committed::Stored(None))
    }
}

/// Gives the object a name that is never served.
fn move_aside(parent: &Parent, temp: &TempName) -> Result<(), Error> {
    match renameat_with(parent, parent.name(), parent, temp.as_str(), RenameFlags::NOREPLACE) {
        Ok(()) => Ok(parent.sync()?),
        Err(Errno::NOENT) => Err(Error::Conflict),
        Err(Errno::XDEV) => Err(Error::Invalid(atomic_exchange::OVERLAY_LOWER)),
        Err(errno) => Err(workspace::Error::os("move the object aside")(errno).into()),
    }
}

/// Checks that the gateway may remove everything in the directory at `path`, before any of it is
/// removed: a directory of another user may forbid it.
fn check_can_be_emptied(workspace: &Workspace, path: &WorkspacePath) -> Result<(), Error> {
    // A tree that is too large for a backup is not removed.
    let mut room = EntryAllowance(MAX_ENTRIES);
    let mut pending = vec![path.clone()];
    while let Some(path) = pending.pop() {
        let directory = match workspace.open_listed(&path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            // The removal itself checks for changes meanwhile.
            Err(
                workspace::Error::NotFound
                | workspace::Error::NotADirectory
                | workspace::Error::Moved,
            ) => continue,
            Err(error) => return Err(error.into()),
        };
        let entries = room.read(&directory)?;
        if !entries.iter().all(|_| room.take()) {
            return Err(workspace::Error::TooLarge.into());
        }
        if !entries.is_empty() {
            check_may_empty(&directory, &entries)?;
        }
        for (name, _) in entries.iter().filter(|(_, is_directory)| *is_directory) {
            let name = name.to_str().map_err(|_| workspace::Error::NotUtf8)?;
            pending.push(path.join(name).map_err(|_| workspace::Error::TooLong)?);
        }
    }
    Ok(())
}

/// Checks one directory and its direct entries.
fn check_may_empty(directory: &OwnedFd, entries: &[(CString, bool)]) -> Result<(), Error> {
    let look = workspace::Error::os("look at the directory");
    let (me, stat) = (geteuid().as_raw(), fstat(directory).map_err(look)?);
    let mut all = std::iter::once(c"").chain(entries.iter().map(|(name, _)| name.as_c_str()));
    if all.any(|name| is_fixed(directory, name)) {
        return Err(workspace::Error::os("empty a directory in it")(Errno::PERM).into());
    }
    // The gateway may change the mode of its own directories.
    if stat.st_uid == me {
        return Ok(());
    }
    accessat(directory, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(workspace::Error::os("empty a directory in it"))?;
    if !Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX) {
        return Ok(());
    }
    for (name, _) in entries {
        let stat = statat(directory, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| stat.st_uid != me) {
            return Err(workspace::Error::os("empty a directory in it")(Errno::PERM).into());
        }
    }
    Ok(())
}

/// True if the system lets nobody remove the entry `name`, or an entry of the directory itself if
/// that is empty (`chattr +i`, `+a`).
fn is_fixed(directory: &OwnedFd, name: &CStr) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    statx(directory, name, flags, StatxFlags::TYPE)
        .is_ok_and(|stat| stat.stx_attributes.intersects(fixed))
}
