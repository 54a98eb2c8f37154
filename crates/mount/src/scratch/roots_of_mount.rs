//! Scratch directories as entries of the workspace's directories.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use portcullis_fuse::Entry;
use portcullis_policy::model::WorkspacePath;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, symlinkat},
    io::{Errno, Result},
};

use super::{
    Scratch, place,
    roots::{self, Root, Roots},
    usage::{BLOCK, cost_of},
};

/// What is moved into a new scratch directory.
#[derive(Debug)]
pub(crate) enum Moved {
    Directory,
    File(Vec<u8>, u32),
    Link(String),
}

impl Scratch {
    /// Keeps them where they are.
    pub(crate) fn roots(&self) -> RwLockReadGuard<'_, Roots> {
        self.roots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for whatever depends on where they are.
    pub(crate) fn change_roots(&self) -> RwLockWriteGuard<'_, Roots> {
        self.roots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of one, with one more reference of the kernel's. That may be held for
    /// `timeout`.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn root_entry(&self, root: Root, timeout: Duration) -> Result<Entry> {
        let mut table = self.table();
        let stat = place::stat(&self.base, &roots::content(root.number))?;
        table.refer(root.node);
        Ok(Entry { entry_timeout: timeout, ..self.entry(root.node, &stat) })
    }

    /// Makes an empty one at `path`.
    ///
    /// # Errors
    /// `ENOSPC`; as the system says.
    pub(crate) fn make_root(&self, roots: &mut Roots, path: WorkspacePath) -> Result<Root> {
        let root = self.make_unnamed(roots)?;
        self.name_root(roots, root, path).inspect_err(|_| self.drop_root(root))?;
        Ok(root)
    }

    /// The same, which is nowhere yet.
    ///
    /// # Errors
    /// As [`Scratch::make_root`].
    pub(crate) fn make_unnamed(&self, roots: &mut Roots) -> Result<Root> {
        self.usage.add_entry()?;
        let number = roots.next;
        roots.next += 1;
        let made = roots::make(&self.base, number);
        let stat = made.and_then(|()| place::stat(&self.base, &roots::content(number)));
        let stat = stat.inspect_err(|_| self.usage.remove_entry(BLOCK))?;
        let node = self.table().add_root(roots::content(number), stat.st_ino);
        Ok(Root { number, node })
    }

    /// Says where one is.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn name_root(
        &self,
        roots: &mut Roots,
        root: Root,
        path: WorkspacePath,
    ) -> Result<()> {
        roots::set_path(&self.base, root.number, &path)?;
        roots.by_path.insert(path, root);
        Ok(())
    }

    /// Puts entries into one that no program sees yet; directories come before what is in them.
    ///
    /// # Errors
    /// `ENOSPC`; as the system says.
    pub(crate) fn fill(&self, root: Root, entries: &[(PathBuf, Moved)]) -> Result<()> {
        for (path, entry) in entries {
            let path = roots::content(root.number).join(path);
            let (above, name) = place::split(&path)?;
            let above = place::directory(&self.base, above)?;
            self.usage.add_entry()?;
            match entry {
                Moved::Directory => mkdirat(above, name, Mode::from_raw_mode(0o755))?,
                Moved::Link(target) => symlinkat(target, above, name)?,
                Moved::File(bytes, mode) => {
                    self.usage.resize(0, bytes.len() as u64)?;
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                    let file = place::open(&self.base, &path, flags, Mode::RUSR | Mode::WUSR)?;
                    fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
                    File::from(file)
                        .write_all(bytes)
                        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                }
            }
        }
        Ok(())
    }

    /// Removes what [`Scratch::make_unnamed`] made, with what is in it.
    pub(crate) fn drop_root(&self, root: Root) {
        let content = roots::content(root.number);
        let _ = place::walk(&self.base, &content, false, &mut |_, stat| {
            self.usage.remove_entry(cost_of(stat));
            Ok(())
        });
        self.usage.remove_entry(BLOCK);
        // What stays has no path, and is removed at the next start.
        let _ = roots::remove(&self.base, root.number);
        self.table().remove_root(root.node);
    }

    /// Removes an empty one.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY`; as the system says.
    pub(crate) fn remove_root(&self, roots: &mut Roots, path: &WorkspacePath) -> Result<()> {
        let root = *roots.by_path.get(path).ok_or(Errno::NOENT)?;
        let mut table = self.table();
        let above = place::directory(&self.base, Path::new(&root.number.to_string()))?;
        rustix::fs::unlinkat(above, "d", AtFlags::REMOVEDIR)?;
        table.remove_root(root.node);
        self.usage.remove_entry(BLOCK);
        roots.by_path.remove(path);
        // What stays is without content, and removed at the next start.
        let _ = roots::remove(&self.base, root.number);
        Ok(())
    }

    /// One has another path.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn move_root(
        &self,
        roots: &mut Roots,
        from: &WorkspacePath,
        to: WorkspacePath,
    ) -> Result<()> {
        let root = *roots.by_path.get(from).ok_or(Errno::NOENT)?;
        roots::set_path(&self.base, root.number, &to)?;
        roots.by_path.remove(from);
        roots.by_path.insert(to, root);
        Ok(())
    }
}
