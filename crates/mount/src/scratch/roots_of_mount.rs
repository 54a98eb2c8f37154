//! Scratch directories as entries of the workspace's directories.

use std::{
    fs::File,
    io::Write as _,
    path::PathBuf,
    sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use portcullis_fuse::Entry;
use portcullis_policy::model::WorkspacePath;
use rustix::{
    fs::{FileType, Mode, OFlags, fchmod, mkdirat, symlinkat},
    io::{Errno, Result},
};

use super::{
    Scratch,
    beneath::{self, kind},
    names::SET_ID,
    roots::{self, Roots, ScratchRoot},
    usage::{BLOCK, cost_of},
};

/// An entry that is moved into a new scratch directory.
#[derive(Debug)]
pub(crate) enum AdoptedEntry {
    Directory,
    File(Vec<u8>, u32),
    Link(String),
}

impl Scratch {
    /// Locks the paths of scratch directories against changes.
    pub(crate) fn roots(&self) -> RwLockReadGuard<'_, Roots> {
        self.roots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the paths for a change.
    pub(crate) fn change_roots(&self) -> RwLockWriteGuard<'_, Roots> {
        self.roots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entry of a scratch directory or file; the kernel gets a reference to its
    /// node. The kernel may cache the name for `timeout`.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn root_entry(&self, root: ScratchRoot, timeout: Duration) -> Result<Entry> {
        let mut table = self.table();
        let stat = beneath::stat(&self.base, &roots::content(root.number))?;
        table.refer(root.node);
        Ok(Entry { entry_timeout: timeout, ..self.entry(root.node, &stat) })
    }

    /// Creates an empty directory at `path`, or a file with this mode.
    ///
    /// # Errors
    /// `EPERM` for a set-ID mode; `ENOSPC`; the error of the system.
    pub(crate) fn make_root(
        &self,
        roots: &mut Roots,
        path: WorkspacePath,
        file: Option<u32>,
    ) -> Result<ScratchRoot> {
        if file.is_some_and(|mode| mode & SET_ID != 0) {
            return Err(Errno::PERM);
        }
        let file = file.map(|mode| Mode::from_raw_mode(mode & 0o1777));
        let root = self.make_unnamed(roots, file)?;
        self.name_root(roots, root, path).inspect_err(|_| self.drop_root(root))?;
        Ok(root)
    }

    /// Creates an empty directory or file without a path.
    ///
    /// # Errors
    /// As [`Scratch::make_root`].
    pub(crate) fn make_unnamed(
        &self,
        roots: &mut Roots,
        file: Option<Mode>,
    ) -> Result<ScratchRoot> {
        if roots.by_path.len() >= roots::MAX_ROOTS {
            return Err(Errno::NOSPC);
        }
        self.usage.add_entry()?;
        let number = roots.next;
        roots.next += 1;
        let made = roots::make(&self.base, number, file);
        let stat = made.and_then(|()| beneath::stat(&self.base, &roots::content(number)));
        let stat = stat.inspect_err(|_| self.usage.remove_entry(BLOCK))?;
        let kind = kind(&stat);
        let node = self.table().add_root(roots::content(number), (kind, stat.st_ino));
        Ok(ScratchRoot { kind, number, node })
    }

    /// Stores its path.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn name_root(
        &self,
        roots: &mut Roots,
        root: ScratchRoot,
        path: WorkspacePath,
    ) -> Result<()> {
        roots::set_path(&self.base, root.number, &path)?;
        roots.by_path.insert(path, root);
        Ok(())
    }

    /// Adds entries to a directory that no program sees yet; directories must come before their
    /// content.
    ///
    /// # Errors
    /// `ENOSPC`; the error of the system.
    pub(crate) fn fill(
        &self,
        root: ScratchRoot,
        entries: &[(PathBuf, AdoptedEntry)],
    ) -> Result<()> {
        for (path, entry) in entries {
            let path = roots::content(root.number).join(path);
            let (above, name) = beneath::split(&path)?;
            let above = beneath::directory(&self.base, above)?;
            self.usage.add_entry()?;
            let made = match entry {
                AdoptedEntry::Directory => {
                    mkdirat(above, name, Mode::from_raw_mode(0o755)).map(|()| None)
                }
                AdoptedEntry::Link(target) => symlinkat(target, above, name).map(|()| None),
                AdoptedEntry::File(bytes, mode) => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                    let made = beneath::open(&self.base, &path, flags, Mode::RUSR | Mode::WUSR);
                    made.map(|file| Some((file, bytes, *mode)))
                }
            };
            // An entry that was not created is not counted.
            let made = made.inspect_err(|_| self.usage.remove_entry(BLOCK))?;
            if let Some((file, bytes, mode)) = made {
                fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
                let write = || File::from(file.try_clone()?).write_all(bytes);
                let write =
                    || write().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
                self.usage.change_size(&file, bytes.len() as u64, write)?;
            }
        }
        Ok(())
    }

    /// Removes a directory or file made by [`Scratch::make_unnamed`], with its content.
    pub(crate) fn drop_root(&self, root: ScratchRoot) {
        let content = roots::content(root.number);
        let _ = beneath::walk(&self.base, &content, &mut |_, _, stat| {
            self.usage.remove_entry(cost_of(stat));
            Ok(())
        });
        self.usage.remove_entry(BLOCK);
        // A remainder has no path, and is removed at the next start.
        let _ = roots::remove(&self.base, root.number);
        self.table().remove_root(root.node);
    }

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY`; the error of the system.
    pub(crate) fn remove_root(&self, roots: &mut Roots, path: &WorkspacePath) -> Result<()> {
        let root = *roots.by_path.get(path).ok_or(Errno::NOENT)?;
        let mut table = self.table();
        let content = roots::content(root.number);
        let cost = cost_of(&beneath::stat(&self.base, &content)?);
        beneath::remove(&self.base, &content, root.kind == FileType::Directory)?;
        // An open file is counted until it is closed.
        if table.open_file(root.node).is_none() {
            self.usage.remove_entry(cost);
        }
        table.remove_root(root.node);
        roots.by_path.remove(path);
        // A remainder has no content, and is removed at the next start.
        let _ = roots::remove(&self.base, root.number);
        Ok(())
    }

    /// Stores the new paths after a rename.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn note_paths(&self, moved: &[roots::Moved]) -> Result<()> {
        for (_, there) in moved {
            let root = self.roots().by_path.get(there).copied();
            if let Some(root) = root {
                roots::set_path(&self.base, root.number, there)?;
            }
        }
        Ok(())
    }
}
