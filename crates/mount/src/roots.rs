//! Scratch directories and files as entries of the workspace's directories: creation,
//! removal, rename.

use std::ffi::OsStr;

use portcullis_fuse::{Caller, Entry, Errno, FileSystem as _, NodeId, RenameMode};
use rustix::{fs::FileType, io::Result};

use crate::{router::Router, scratch::Scratch, waiting::begin};

impl Router<'_, '_> {
    /// Creates an empty scratch directory, or a file with that mode, at a name in the
    /// workspace.
    pub(crate) fn make_root(
        &self,
        scratch: &Scratch,
        (parent, name): (NodeId, &OsStr),
        file: Option<u32>,
    ) -> Result<Entry> {
        let name = name.to_str().ok_or(Errno::ILSEQ)?;
        let (_kept, path) = self.mount.keep_path_of(parent.0, name)?;
        begin()?;
        let mut roots = scratch.change_roots();
        if roots.by_path.contains_key(&path) {
            return Err(Errno::EXIST);
        }
        let root = scratch.make_root(&mut roots, path, file)?;
        self.root_entry(scratch, root)
    }

    /// Removes an empty scratch directory, or a file.
    ///
    /// # Errors
    /// `ENOTDIR` or `EISDIR` where it is not of this kind; the error of the system.
    pub(crate) fn remove_root(
        &self,
        scratch: &Scratch,
        (parent, name): (NodeId, &OsStr),
        kind: FileType,
    ) -> Result<()> {
        let name = name.to_str().ok_or(Errno::NOENT)?;
        let (_kept, path) = self.mount.keep_path_of(parent.0, name)?;
        begin()?;
        let mut roots = scratch.change_roots();
        let there = roots.by_path.get(&path).ok_or(Errno::NOENT)?;
        check_kind(kind, there.kind)?;
        scratch.remove_root(&mut roots, &path)
    }

    /// Renames an entry of the workspace, or a scratch directory or file.
    ///
    /// # Errors
    /// `EXDEV` where the rename would cross between workspace and scratch.
    pub(crate) fn rename_in_workspace(
        &self,
        caller: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        let (old, new) = (self.root_path(from.0, from.1), self.root_path(to.0, to.1));
        let Some((scratch, _)) = old.as_ref().or(new.as_ref()) else {
            return self.mount.rename(caller, from, to, mode);
        };
        if mode == RenameMode::Exchange {
            return Err(Errno::XDEV);
        }
        let name = from.1.to_str().ok_or(Errno::NOENT)?;
        let (from, to) = ((from.0.0, name), (to.0.0, to.1.to_str().ok_or(Errno::ILSEQ)?));
        match (&old, &new) {
            (None, _) => self.adopt(scratch, (from, to), mode, caller.pid),
            (Some((_, old)), None) => {
                let is_there = scratch.roots().by_path.contains_key(old);
                Err(if is_there { Errno::XDEV } else { Errno::NOENT })
            }
            (Some(_), Some(_)) => {
                let (_held, [old, new]) = self.mount.change_paths([from, to])?;
                begin()?;
                let mut roots = scratch.change_roots();
                let moved = *roots.by_path.get(&old).ok_or(Errno::NOENT)?;
                if old == new {
                    return Ok(());
                }
                if let Some(there) = roots.by_path.get(&new) {
                    if mode == RenameMode::NoReplace {
                        return Err(Errno::EXIST);
                    }
                    check_kind(moved.kind, there.kind)?;
                    scratch.remove_root(&mut roots, &new)?;
                }
                let moved = [(old, new)];
                roots.rename(&moved);
                drop(roots);
                scratch.note_paths(&moved)
            }
        }
    }
}

/// Checks that an entry may be replaced by one of `kind`, or be removed as such.
fn check_kind(kind: FileType, there: FileType) -> Result<()> {
    match (kind == FileType::Directory, there == FileType::Directory) {
        (true, false) => Err(Errno::NOTDIR),
        (false, true) => Err(Errno::ISDIR),
        _ => Ok(()),
    }
}
