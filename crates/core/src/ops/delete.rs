//! Deleting a tree that the vault holds, and that nobody sees any more.

use std::{
    ffi::CString,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    thread,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fchmod, openat, renameat_with, statat,
        unlinkat,
    },
    io::Errno,
    path::Arg,
};

use super::{
    Error,
    swap::{PATIENCE, PAUSE, unlink},
};
use crate::{
    backup,
    policy::ObjectKind,
    workspace::{self, Parent, Workspace},
};

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
pub(super) struct Room(pub(super) u64);

impl Room {
    /// What a directory with `objects` in it may have: what other gates put there
    /// for a moment comes to much less.
    pub(super) fn beside(objects: u64) -> Self {
        Self(objects.saturating_add(LATE))
    }

    pub(super) fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or_default();
        left.is_some()
    }

    /// The entries of a directory, or one more of them than there is room for.
    pub(super) fn read(&self, directory: impl AsFd) -> Result<Vec<(CString, bool)>, Error> {
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
    let (mut patience, mut room) = (PATIENCE, Room::beside(objects));
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
        thread::sleep(PAUSE);
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
        _ => return unlink(parent, name),
    }
    let top = parent.open(name, flags)?;
    make_writable(&top)?;
    let mut moved = 0_u64;
    let mut patience = PATIENCE;
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
            thread::sleep(PAUSE);
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
    use crate::model::WorkspacePath;

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
