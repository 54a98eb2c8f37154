//! Removing an entry: moved aside in one step, compared with what the vault
//! holds, then deleted.

use std::{
    ffi::{CStr, CString},
    fs::File,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    thread,
};

use rustix::{
    fs::{
        Access, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags,
        accessat, fchmod, fstat, openat, renameat_with, statat, statx, unlinkat,
    },
    io::Errno,
    path::Arg,
    process::geteuid,
};

use super::{
    Change, Committed, Context, Error, Facts, Sealed, parents,
    swap::{self, Expected},
};
use crate::{
    backup::{self, MAX_ENTRIES, Origin, Saved},
    model::WorkspacePath,
    policy::ObjectKind,
    workspace::{self, Listing, Parent, Permit, Stat, TempName, Workspace},
};

/// An object that is to be removed or replaced, open so that it can be kept.
pub(super) enum Target {
    File(File),
    Link(String),
    Directory(OwnedFd),
}

impl Target {
    /// Opens the permit's object.
    ///
    /// # Errors
    /// Also when it is a directory of which the gate could remove a part only.
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

    /// What the vault must keep of it.
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

/// Opens what is to go, so that it can be kept.
///
/// # Errors
/// [`Error::NotEmpty`] for a directory with entries unless `recursive`.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    recursive: bool,
) -> Result<Sealed<Box<dyn Change + 'a>>, Error> {
    if permit.path().is_root() {
        return Err(Error::Invalid("the workspace itself is never removed"));
    }
    let stat = *permit.stat().ok_or(Error::Workspace(workspace::Error::NotFound))?;
    parents::check_may_rename(context.workspace, permit.path())?;
    let target = Target::open(context, &permit, stat.kind)?;
    if let (Target::Directory(directory), false) = (&target, recursive) {
        let listing = Listing::read(directory)?;
        if !listing.entries.is_empty() || listing.not_utf8 > 0 {
            return Err(Error::NotEmpty);
        }
    }
    let facts = Facts { temp: Some(TempName::new()?), ..Facts::default() };
    let change: Box<dyn Change + 'a> =
        Box::new(Removal { context: *context, permit, stat, target });
    Ok(Sealed::new(change, facts))
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
        self.context.workspace.confirm(&parent)?;
        let (aside, name) = ((&parent, temp.as_str()), (&parent, parent.name()));
        if let Err(error) = move_aside(&parent, temp) {
            // Where it is aside and stays there, the next start puts it back.
            if parent.stat(aside.1).is_ok() {
                let _stays = swap::put_back(aside, name);
            }
            return Err(error);
        }
        if !expected.is_at(&parent, temp.as_str()) {
            swap::put_back(aside, name)?;
            return Err(Error::Conflict);
        }
        // Marked as proven to be in the vault.
        let condemned = temp.condemned();
        swap::move_to(&parent, temp, &condemned)?;
        parent.sync()?;
        delete_kept(self.context.workspace, &parent, condemned.as_str(), saved.objects)?;
        parent.sync()?;
        Ok(Committed::Stored)
    }
}

/// Gives the object a name that is never served.
fn move_aside(parent: &Parent, temp: &TempName) -> Result<(), Error> {
    match renameat_with(parent, parent.name(), parent, temp.as_str(), RenameFlags::NOREPLACE) {
        Ok(()) => Ok(parent.sync()?),
        Err(Errno::NOENT) => Err(Error::Conflict),
        Err(Errno::XDEV) => Err(Error::Invalid(swap::LOWER)),
        Err(errno) => Err(workspace::Error::os("move the object aside")(errno).into()),
    }
}

/// Looks whether the gate may remove all that is in the directory at `path`,
/// before any of it goes: a directory of somebody else may forbid it.
fn check_can_be_emptied(workspace: &Workspace, path: &WorkspacePath) -> Result<(), Error> {
    // What the vault cannot keep is not removed, and may never end.
    let mut room = Room(MAX_ENTRIES);
    let mut pending = vec![path.clone()];
    while let Some(path) = pending.pop() {
        let directory = match workspace.open_listed(&path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            // Whether anything changed meanwhile is looked at when it goes.
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

/// The same for one directory and what it holds by itself.
fn check_may_empty(directory: &OwnedFd, entries: &[(CString, bool)]) -> Result<(), Error> {
    let look = workspace::Error::os("look at the directory");
    let (me, stat) = (geteuid().as_raw(), fstat(directory).map_err(look)?);
    let mut all = std::iter::once(c"").chain(entries.iter().map(|(name, _)| name.as_c_str()));
    if all.any(|name| is_fixed(directory, name)) {
        return Err(workspace::Error::os("empty a directory in it")(Errno::PERM).into());
    }
    // Of its own directories the gate may change the mode.
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

/// Whether the system lets nobody remove the entry `name`, or one of the directory
/// itself if that is empty (`chattr +i`, `+a`).
fn is_fixed(directory: &OwnedFd, name: &CStr) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    statx(directory, name, flags, StatxFlags::TYPE)
        .is_ok_and(|stat| stat.stx_attributes.intersects(fixed))
}

/// Whether the system forbade it, as it would the next time.
pub(super) fn is_refused(error: &Error) -> bool {
    let errno = match error {
        Error::Workspace(workspace::Error::Os { errno, .. }) => Some(*errno),
        Error::Backup(backup::Error::Io { source, .. }) => Errno::from_io_error(source),
        _ => None,
    };
    matches!(errno, Some(Errno::ACCESS | Errno::PERM))
}

/// How many more entries a directory may have. To one that is deleted, another
/// process that has it open can add as fast as the gate deletes.
pub(super) struct Room(u64);

impl Room {
    /// What a directory with `objects` in it may have: what other gates put there
    /// for a moment comes to much less.
    pub(super) fn beside(objects: u64) -> Self {
        Self(objects.saturating_add(LATE))
    }

    fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or_default();
        left.is_some()
    }

    /// The entries of a directory, or one more of them than there is room for.
    fn read(&self, directory: impl AsFd) -> Result<Vec<(CString, bool)>, Error> {
        entries(directory, self.0.saturating_add(1))
    }
}

/// How many entries may come into a directory while it is deleted.
const LATE: u64 = 1000;

/// Deletes what is proven to be in the vault and is out of everybody's sight.
/// What the gate may not delete stays there: that is tried for a moment, and
/// would come to the same at every start. The vault's copy has `objects`.
///
/// # Errors
/// When a later try may be worth it, as when the directory was moved out of
/// the gate's reach, or grows all the time.
pub(super) fn delete_kept(
    workspace: &Workspace,
    parent: &Parent,
    name: &str,
    objects: u64,
) -> Result<(), Error> {
    let (mut patience, mut room) = (swap::PATIENCE, Room::beside(objects));
    loop {
        match delete(parent, name, &mut room) {
            Err(error) if is_refused(&error) && patience == 0 => {
                workspace.confirm(parent)?;
                let path = parent.path_of(name);
                tracing::warn!(%error, ?path, "a part of what was removed cannot be deleted");
                return Ok(());
            }
            Err(error) if is_refused(&error) => patience -= 1,
            done => return done,
        }
        thread::sleep(swap::PAUSE);
    }
}

/// Deletes the entry `name` and all beneath it, which must not be more than there
/// is `room` for.
///
/// Directories inside are first moved up to the top one, so that two
/// descriptors do however deep the tree is.
///
/// # Errors
/// [`Error::Growing`], and as the system says; what is left keeps its names.
pub(super) fn delete(parent: &Parent, name: &str, room: &mut Room) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match parent.stat(name)?.kind {
        ObjectKind::Directory => {}
        _ => return swap::unlink(parent, name),
    }
    let top = parent.open(name, flags)?;
    make_writable(&top)?;
    let mut moved = 0_u64;
    let mut patience = swap::PATIENCE;
    let take = |room: &mut Room| match room.take() {
        true => Ok(()),
        false => Err(Error::Growing(parent.path_of(name))),
    };
    loop {
        let mut directories = 0;
        for (entry, is_directory) in room.read(&top)? {
            take(room)?;
            if !is_directory {
                unlink_in(&top, &entry)?;
                continue;
            }
            directories += 1;
            let inner = open_in(&top, &entry)?;
            make_writable(&inner)?;
            for (child, is_directory) in room.read(&inner)? {
                if !is_directory {
                    take(room)?;
                    unlink_in(&inner, &child)?;
                    continue;
                }
                // An empty one of somebody else may go, and not move.
                if unlinkat(&inner, child.as_c_str(), AtFlags::REMOVEDIR).is_ok() {
                    take(room)?;
                    continue;
                }
                // Its parent changes, so it is written to itself.
                make_writable(&open_in(&inner, &child)?)?;
                move_up(&inner, &child, &top, &mut moved, room)?;
            }
            remove_empty(&top, entry.as_c_str(), &mut patience)?;
        }
        if directories == 0 && remove_empty(parent, name, &mut patience)? {
            return Ok(());
        }
    }
}

/// Removes a directory that was emptied; false when something has come since.
/// Another gate that had it open takes back what it put there.
fn remove_empty(directory: impl AsFd, name: impl Arg, patience: &mut u32) -> Result<bool, Error> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY) if *patience > 0 => {
            *patience -= 1;
            thread::sleep(swap::PAUSE);
            Ok(false)
        }
        Err(errno) => Err(workspace::Error::os("remove the directory")(errno).into()),
    }
}

/// Moves an entry up to `top`, under a name that nothing there has: a gate with
/// the same process id may have died over this tree before.
fn move_up(
    inner: &OwnedFd,
    child: &CString,
    top: &OwnedFd,
    moved: &mut u64,
    room: &mut Room,
) -> Result<(), Error> {
    loop {
        *moved += 1;
        let unique = format!("{}-{moved}-{}", std::process::id(), top.as_raw_fd());
        match renameat_with(inner, child.as_c_str(), top, unique, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) if room.take() => {}
            Err(errno) => return Err(workspace::Error::os("remove the directory")(errno).into()),
        }
    }
}

fn open_in(directory: &OwnedFd, name: &CString) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name.as_c_str(), flags, Mode::empty())
        .map_err(|errno| workspace::Error::os("open the directory")(errno).into())
}

/// Lets us empty a directory that is to go; a mode that forbids it would leave
/// half of a tree that is already in the vault.
fn make_writable(directory: &OwnedFd) -> Result<(), Error> {
    match fchmod(directory, Mode::RWXU) {
        // Somebody else's: perhaps it is writable as it is.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(workspace::Error::os("remove the directory")(errno).into()),
    }
}

fn unlink_in(directory: &OwnedFd, name: &CString) -> Result<(), Error> {
    match unlinkat(directory, name.as_c_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(workspace::Error::os("remove an entry")(errno).into()),
    }
}

/// At most so many entries of a directory, and whether each is a directory itself.
/// Names are bytes here: nothing is disclosed, and all must go.
fn entries(directory: impl AsFd, most: u64) -> Result<Vec<(CString, bool)>, Error> {
    let read = workspace::Error::os("read the directory");
    let mut entries = Vec::new();
    for entry in Dir::read_from(&directory).map_err(read)? {
        let entry = entry.map_err(workspace::Error::os("read the directory"))?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if entries.len() as u64 >= most {
            break;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(workspace::Error::os("look at an entry"))?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            other => other == FileType::Directory,
        };
        entries.push((entry.file_name().to_owned(), is_directory));
    }
    Ok(entries)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make directories behind the gate's back")]
mod tests {
    use std::fs;

    use super::*;

    /// It went on as long as another process made entries.
    #[test]
    fn what_grows_while_it_is_removed_is_left_and_named() {
        let temp = tempfile::tempdir().unwrap();
        for directory in ["a/d/x/y", "a/d/z"] {
            fs::create_dir_all(temp.path().join(directory)).unwrap();
        }
        fs::write(temp.path().join("a/d/x/f"), "f").unwrap();
        let workspace = Workspace::open(temp.path()).unwrap();
        let parent = workspace.open_parent(&WorkspacePath::parse("a/d").unwrap()).unwrap();
        let left = delete(&parent, "d", &mut Room(1)).unwrap_err();
        assert!(matches!(&left, Error::Growing(path) if path == "a/d"), "{left}");
        assert!(parent.stat("d").is_ok());
        for objects in [0, 1] {
            fs::create_dir_all(temp.path().join("a/d/x")).unwrap();
            delete(&parent, "d", &mut Room::beside(objects)).unwrap();
            assert!(parent.stat("d").is_err());
        }
    }

    #[test]
    fn a_tree_needs_room_for_each_entry_once() {
        let temp = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(temp.path()).unwrap();
        for (name, room, done) in [("d", 5, false), ("e", 6, true)] {
            let tree = temp.path().join(name);
            fs::create_dir_all(tree.join("1/2/3/4")).unwrap();
            fs::write(tree.join("1/f"), "f").unwrap();
            fs::write(tree.join("f"), "f").unwrap();
            let parent = workspace.open_parent(&WorkspacePath::parse(name).unwrap()).unwrap();
            assert_eq!(delete(&parent, name, &mut Room(room)).is_ok(), done, "{name}");
        }
    }
}
