//! Deletion of a tree that is in the backup store and no longer visible.

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
    atomic_exchange::{MAX_ATTEMPTS, RETRY_INTERVAL, unlink},
};
use crate::{
    backup,
    policy::ObjectKind,
    workspace::{self, Parent, Workspace},
};

/// True if the system forbids it, as it would the next time.
pub(super) fn is_refused(error: &Error) -> bool {
    let errno = match error {
        Error::Workspace(workspace::Error::Os { errno, .. }) => Some(*errno),
        Error::Backup(backup::Error::Io { source, .. }) => Errno::from_io_error(source),
        _ => None,
    };
    matches!(errno, Some(Errno::ACCESS | Errno::PERM))
}

/// Number of entries that a directory may still have. Another process that has a directory open can
/// add entries as fast as the gateway deletes them.
pub(super) struct EntryAllowance(pub(super) u64);

impl EntryAllowance {
    /// Returns the limit for a directory with `objects` in it; entries that other gateways put
    /// there for a moment are far fewer.
    pub(super) fn beside(objects: u64) -> Self {
        Self(objects.saturating_add(MAX_LATE_ENTRIES))
    }

    pub(super) fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or_default();
        left.is_some()
    }

    /// Reads the entries of a directory, at most one more than the limit.
    pub(super) fn read(&self, directory: impl AsFd) -> Result<Vec<(CString, bool)>, Error> {
        entries(directory, self.0.saturating_add(1))
    }
}

/// Maximum number of entries that may be added to a directory during its deletion.
const MAX_LATE_ENTRIES: u64 = 1000;

/// Deletes an entry that is proven to be in the backup store and has a hidden name. Parts that the
/// system does not let the gateway delete stay there after a few attempts, as they would at every
/// start. The backup has `objects`.
///
/// # Errors
/// When a later attempt may succeed, as when the directory was moved out of the gateway's reach, or
/// keeps growing.
pub(super) fn delete_kept(
    workspace: &Workspace,
    parent: &Parent,
    name: &str,
    objects: u64,
) -> Result<(), Error> {
    let (mut attempts_left, mut room) = (MAX_ATTEMPTS, EntryAllowance::beside(objects));
    loop {
        match delete(parent, name, &mut room) {
            Err(error) if is_refused(&error) && attempts_left == 0 => {
                workspace.confirm(parent)?;
                let path = parent.path_of(name);
                tracing::warn!(%error, ?path, "a part of what was removed cannot be deleted");
                return Ok(());
            }
            Err(error) if is_refused(&error) => attempts_left -= 1,
            done => return done,
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Deletes the entry `name` and everything beneath it, which `room` bounds.
///
/// Directories inside are first moved up to the top one, so that two descriptors are enough at any
/// depth.
///
/// # Errors
/// [`Error::Growing`], and errors of the system; the rest keeps its names.
pub(super) fn delete(parent: &Parent, name: &str, room: &mut EntryAllowance) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match parent.stat(name)?.kind {
        ObjectKind::Directory => {}
        _ => return unlink(parent, name),
    }
    let top = parent.open(name, flags)?;
    make_writable(&top)?;
    let mut moved = 0_u64;
    let mut attempts_left = MAX_ATTEMPTS;
    let take = |room: &mut EntryAllowance| match room.take() {
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
                // An empty directory of another user can be removed, but not moved.
                if unlinkat(&inner, child.as_c_str(), AtFlags::REMOVEDIR).is_ok() {
                    take(room)?;
                    continue;
                }
                // A move changes the directory's `..`, so it must be writable itself.
                make_writable(&open_in(&inner, &child)?)?;
                move_up(&inner, &child, &top, &mut moved, room)?;
            }
            remove_empty(&top, entry.as_c_str(), &mut attempts_left)?;
        }
        if directories == 0 && remove_empty(parent, name, &mut attempts_left)? {
            return Ok(());
        }
    }
}

/// Removes an emptied directory; false if entries were added since. Another gateway that had it
/// open removes what it put there.
fn remove_empty(
    directory: impl AsFd,
    name: impl Arg,
    attempts_left: &mut u32,
) -> Result<bool, Error> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY) if *attempts_left > 0 => {
            *attempts_left -= 1;
            thread::sleep(RETRY_INTERVAL);
            Ok(false)
        }
        Err(errno) => Err(workspace::Error::os("remove the directory")(errno).into()),
    }
}

/// Moves an entry up to `top`, under a name that is free there: a gateway with the same process id
/// may have died over this tree before.
fn move_up(
    inner: &OwnedFd,
    child: &CString,
    top: &OwnedFd,
    moved: &mut u64,
    room: &mut EntryAllowance,
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

/// Makes a directory writable that is to be deleted; otherwise its mode could leave half of a tree
/// that is in the backup store already.
fn make_writable(directory: &OwnedFd) -> Result<(), Error> {
    match fchmod(directory, Mode::RWXU) {
        // A directory of another user may be writable already.
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

/// Reads at most `most` entries of a directory, each with true if it is a directory. Names are
/// bytes here: nothing is disclosed, and all must be deleted.
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
#[expect(clippy::disallowed_methods, reason = "tests make directories behind the gateway's back")]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::WorkspacePath;

    /// Regression: the deletion went on as long as another process made entries.
    #[test]
    fn what_grows_while_it_is_removed_is_left_and_named() {
        let temp = tempfile::tempdir().unwrap();
        for directory in ["a/d/x/y", "a/d/z"] {
            fs::create_dir_all(temp.path().join(directory)).unwrap();
        }
        fs::write(temp.path().join("a/d/x/f"), "f").unwrap();
        let workspace = Workspace::open(temp.path()).unwrap();
        let parent = workspace.open_parent(&WorkspacePath::parse("a/d").unwrap()).unwrap();
        let left = delete(&parent, "d", &mut EntryAllowance(1)).unwrap_err();
        assert!(matches!(&left, Error::Growing(path) if path == "a/d"), "{left}");
        assert!(parent.stat("d").is_ok());
        for objects in [0, 1] {
            fs::create_dir_all(temp.path().join("a/d/x")).unwrap();
            delete(&parent, "d", &mut EntryAllowance::beside(objects)).unwrap();
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
            assert_eq!(delete(&parent, name, &mut EntryAllowance(room)).is_ok(), done, "{name}");
        }
    }
}
