//! Names in scratch directories: creation, removal, rename, links.

use std::{
    ffi::OsStr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use portcullis_fuse::{Entry, RenameMode};
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, chmodat, fchmod, fstat, linkat,
        mkdirat, renameat_with, symlinkat, unlinkat,
    },
    io::{Errno, Result},
};

use super::{
    Scratch,
    beneath::{self, is_name, is_served, kind},
    table::Table,
    usage::{BLOCK, cost_of},
};

/// Set-user-ID and set-group-ID, which change the rights of a program.
pub(crate) const SET_ID: u32 = 0o6000;

/// An open directory, with the path of one of its entries.
struct EntryLocation {
    directory: OwnedFd,
    path: PathBuf,
}

impl Scratch {
    /// Returns the path of an entry.
    pub(super) fn path(&self, table: &Table, parent: u64, name: &OsStr) -> Result<PathBuf> {
        if is_name(name) { Ok(table.path(parent)?.join(name)) } else { Err(Errno::INVAL) }
    }

    fn at(&self, table: &Table, parent: u64, name: &OsStr) -> Result<EntryLocation> {
        let path = self.path(table, parent, name)?;
        let directory = beneath::directory(&self.base, path.parent().ok_or(Errno::INVAL)?)?;
        Ok(EntryLocation { directory, path })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let stat = beneath::stat(&self.base, path)?;
        if is_served(kind(&stat)) { Ok(stat) } else { Err(Errno::NOENT) }
    }

    /// Looks up a name; the kernel gets a reference to its node.
    pub(super) fn find(&self, parent: u64, name: &OsStr) -> Result<Entry> {
        let mut table = self.table();
        let path = self.path(&table, parent, name)?;
        let stat = self.stat(&path)?;
        let id = table.found(parent, name, (kind(&stat), stat.st_ino))?;
        Ok(self.entry(id, &stat))
    }

    /// Creates an entry, whose space is reserved first.
    fn make(
        &self,
        parent: u64,
        name: &OsStr,
        make: impl FnOnce(&EntryLocation) -> Result<()>,
    ) -> Result<Entry> {
        let mut table = self.table();
        let at = self.at(&table, parent, name)?;
        self.usage.add_entry()?;
        make(&at).inspect_err(|_| self.usage.remove_entry(BLOCK))?;
        let stat = self.stat(&at.path)?;
        let id = table.found(parent, name, (kind(&stat), stat.st_ino))?;
        Ok(self.entry(id, &stat))
    }

    pub(super) fn add_directory(&self, parent: u64, name: &OsStr, mode: u32) -> Result<Entry> {
        let mode = Mode::from_raw_mode(mode & 0o1777);
        self.make(parent, name, |at| {
            mkdirat(&at.directory, name, mode)?;
            // The umask of this process must not apply.
            chmodat(&at.directory, name, mode, AtFlags::empty())
        })
    }

    pub(super) fn add_symlink(&self, parent: u64, name: &OsStr, target: &OsStr) -> Result<Entry> {
        self.make(parent, name, |at| symlinkat(target, &at.directory, name))
    }

    /// Creates a file, or opens an existing one unless `flags` contain `O_EXCL`.
    pub(super) fn add_file(
        &self,
        table: &mut Table,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<OwnedFd>)> {
        if mode & SET_ID != 0 {
            return Err(Errno::PERM);
        }
        let mode = Mode::from_raw_mode(mode & 0o1777);
        table.room()?;
        let path = self.path(table, parent, name)?;
        self.usage.add_entry()?;
        let made = OFlags::CREATE | OFlags::EXCL | (flags & OFlags::RWMODE);
        let file = match beneath::open(&self.base, &path, made, mode) {
            Ok(file) => {
                fchmod(&file, mode)?;
                file
            }
            Err(error) => {
                self.usage.remove_entry(BLOCK);
                if error != Errno::EXIST || flags.contains(OFlags::EXCL) {
                    return Err(error);
                }
                self.open_path(&path, flags)?
            }
        };
        let stat = fstat(&file)?;
        let id = table.found(parent, name, (kind(&stat), stat.st_ino))?;
        Ok((self.entry(id, &stat), Arc::new(file)))
    }

    /// Opens a regular file, and truncates it if `flags` say so.
    pub(super) fn open_path(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        // An open of any other kind could block.
        let facts = self.stat(path)?;
        match kind(&facts) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::LOOP),
        }
        let open = |flags| beneath::open(&self.base, path, flags | OFlags::NONBLOCK, Mode::empty());
        let file = open(flags & OFlags::RWMODE)?;
        if flags.contains(OFlags::TRUNC) {
            let truncate = || open(OFlags::WRONLY | OFlags::TRUNC).map(drop);
            self.usage.change_size(&file, 0, truncate)?;
        }
        Ok(file)
    }

    /// Updates table and usage after an object has lost a name.
    fn lost(&self, table: &mut Table, parent: u64, name: &OsStr, stat: &Stat) {
        let is_last = kind(stat) == FileType::Directory || stat.st_nlink <= 1;
        let is_open = table.unname(parent, name, stat.st_ino, is_last);
        if !is_last {
            self.usage.remove_entry(BLOCK);
        } else if !is_open {
            self.usage.remove_entry(cost_of(stat));
        }
    }

    /// Removes a name: of a directory if `directory`, otherwise of any other entry.
    pub(super) fn remove_name(&self, parent: u64, name: &OsStr, directory: bool) -> Result<()> {
        let mut table = self.table();
        let at = self.at(&table, parent, name)?;
        let stat = self.stat(&at.path)?;
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        unlinkat(&at.directory, name, flags)?;
        self.lost(&mut table, parent, name, &stat);
        Ok(())
    }

    /// Renames an entry beneath the same root.
    pub(super) fn rename_name(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        let mut table = self.table();
        if table.get(from.0)?.root != table.get(to.0)?.root {
            return Err(Errno::XDEV);
        }
        let (old, new) = (self.at(&table, from.0, from.1)?, self.at(&table, to.0, to.1)?);
        let source = self.stat(&old.path)?;
        let target = match self.stat(&new.path) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        renameat_with(&old.directory, from.1, &new.directory, to.1, flags)?;
        match target {
            // A rename between two names of one file does nothing.
            Some(target) if target.st_ino == source.st_ino => return Ok(()),
            Some(target) if mode == RenameMode::Exchange => {
                table.renamed(target.st_ino, to, from);
            }
            Some(target) => self.lost(&mut table, to.0, to.1, &target),
            None => {}
        }
        table.renamed(source.st_ino, from, to);
        Ok(())
    }

    /// Creates a further name for a file beneath the same root.
    pub(super) fn add_link(&self, id: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let mut table = self.table();
        if table.get(id)?.root != table.get(parent)?.root {
            return Err(Errno::XDEV);
        }
        if table.get(id)?.kind == FileType::Directory {
            return Err(Errno::PERM);
        }
        let source = table.path(id)?;
        let at = self.at(&table, parent, name)?;
        let (above, old) = beneath::split(&source)?;
        let above = beneath::directory(&self.base, above)?;
        table.name_room()?;
        self.usage.add_entry()?;
        linkat(above, old, &at.directory, name, AtFlags::empty())
            .inspect_err(|_| self.usage.remove_entry(BLOCK))?;
        let stat = self.stat(&at.path)?;
        let id = table.found(parent, name, (kind(&stat), stat.st_ino))?;
        Ok(self.entry(id, &stat))
    }
}
