//! Scratch directories and files as entries of the workspace's directories: making, removing,
//! renaming.

use std::ffi::OsStr;

use portcullis_fuse::{Caller, Entry, Errno, FileSystem as _, NodeId, RenameMode};
use rustix::{fs::FileType, io::Result};

use crate::{
    router::Router,
    scratch::{Scratch, roots::Roots},
};

impl Router<'_, '_> {
    /// Makes an empty scratch directory, or a file of that mode, at a name of the workspace.
    pub(crate) fn make_root(
        &self,
        scratch: &Scratch,
        (parent, name): (NodeId, &OsStr),
        file: Option<u32>,
    ) -> Result<Entry> {
        let mut roots = scratch.change_roots();
        // Now nothing moves.
        let (_, path) = self.root_path(parent, name).ok_or(Errno::STALE)?;
        if roots.by_path.contains_key(&path) {
            return Err(Errno::EXIST);
        }
        let root = scratch.make_root(&mut roots, path, file)?;
        self.root_entry(scratch, root)
    }

    /// Removes a scratch directory that is empty, or a file.
    ///
    /// # Errors
    /// `ENOTDIR` or `EISDIR` where it is not of this kind; as the system says.
    pub(crate) fn remove_root(
        &self,
        scratch: &Scratch,
        roots: &mut Roots,
        (parent, name): (NodeId, &OsStr),
        kind: FileType,
    ) -> Result<()> {
        // Now nothing moves.
        let (_, path) = self.root_path(parent, name).ok_or(Errno::STALE)?;
        let there = roots.by_path.get(&path).ok_or(Errno::NOENT)?;
        check_kind(kind, there.kind)?;
        scratch.remove_root(roots, &path)
    }

    /// Renames an entry of the workspace, or a scratch directory or file.
    ///
    /// # Errors
    /// `EXDEV` where it would become scratch, or none.
    pub(crate) fn rename_in_workspace(
        &self,
        caller: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        let renames = || self.mount.rename(caller, from, to, mode);
        let Some(scratch) = &self.mount.scratch else { return renames() };
        let (old, new) = (self.root_path(from.0, from.1), self.root_path(to.0, to.1));
        let mut roots = scratch.change_roots();
        if (old.is_some() || new.is_some()) && mode == RenameMode::Exchange {
            return Err(Errno::XDEV);
        }
        match (old, new) {
            (Some((_, old)), Some((_, new))) => {
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
                scratch.move_root(&mut roots, &old, new)
            }
            (Some((_, old)), None) => {
                Err(if roots.by_path.contains_key(&old) { Errno::XDEV } else { Errno::NOENT })
            }
            (None, Some((_, new))) => {
                let name = from.1.to_str().ok_or(Errno::NOENT)?;
                self.adopt(scratch, &mut roots, (from.0.0, name), (new, mode), caller.pid)
            }
            (None, None) => {
                let path = |(parent, name): (NodeId, &OsStr)| {
                    name.to_str().and_then(|name| self.mount.path_of(parent.0, name).ok())
                };
                let (Some(old), Some(new)) = (path(from), path(to)) else { return renames() };
                let mut moved = Vec::new();
                for (path, _) in roots.beneath(&old) {
                    // Its own name, by which it is scratch, stays.
                    let there = path.rebase(&old, &new).ok_or(Errno::NAMETOOLONG)?;
                    moved.push((path, there));
                }
                let is_exchange = mode == RenameMode::Exchange;
                match (moved.is_empty(), roots.beneath(&new).is_empty()) {
                    // Scratch directories in them would have to move both ways.
                    (_, false) | (false, _) if is_exchange => return Err(Errno::XDEV),
                    (_, false) if old != new => return Err(Errno::NOTEMPTY),
                    _ => {}
                }
                renames()?;
                for (path, there) in moved {
                    scratch.move_root(&mut roots, &path, there)?;
                }
                Ok(())
            }
        }
    }
}

/// Checks that an entry may take the place of another one, or be removed as one of that kind.
fn check_kind(kind: FileType, there: FileType) -> Result<()> {
    match (kind == FileType::Directory, there == FileType::Directory) {
        (true, false) => Err(Errno::NOTDIR),
        (false, true) => Err(Errno::ISDIR),
        _ => Ok(()),
    }
}
