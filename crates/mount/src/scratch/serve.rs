//! The kernel's requests on scratch directories.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use portcullis_fuse::{
    Attributes, Caller, Data, Directory, Entry, Errno, FileSystem, FileType, Handle, NodeId,
    OFlags, Opened, RenameMode, Seek, SetAttributes, SetTime, Statistics, WriteFrom,
};
use rustix::{
    buffer::spare_capacity,
    fs::{
        AtFlags, FallocateFlags, Mode, SeekFrom, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
        chmodat, fallocate, fchmod, fstat, ftruncate, futimens, readlinkat, seek, utimensat,
    },
    io::{Result, pread, pwrite},
};

use crate::budget::BudgetPart;

use super::{
    CACHE_TIMEOUT, Scratch,
    beneath::{self, is_served, kind},
    names::SET_ID,
    table::{OpenScratchDirectory, Opened as Open},
    usage::{BLOCK, cost_of},
};

/// `FALLOC_FL_KEEP_SIZE` of `fallocate(2)`: the size stays.
const KEEP_SIZE: u32 = 1;
/// `FALLOC_FL_PUNCH_HOLE`: the range becomes a hole.
const PUNCH_HOLE: u32 = 2;
/// Maximum of entries of a listed directory, as in the workspace.
const MAX_ENTRIES: u64 = 1_000_000;

impl Scratch {
    /// Returns the status of a node: of an open descriptor, or of its path.
    fn facts(&self, id: u64) -> Result<Stat> {
        let table = self.table();
        if let Some(file) = table.open_file(id) {
            return fstat(file);
        }
        let stat = beneath::stat(&self.base, &table.path(id)?)?;
        if is_served(kind(&stat)) && kind(&stat) == table.get(id)?.kind {
            Ok(stat)
        } else {
            Err(Errno::STALE)
        }
    }

    fn resize(&self, id: u64, handle: Option<Handle>, to: u64) -> Result<()> {
        let file = {
            let table = self.table();
            match handle {
                Some(handle) => table.file(handle.0)?,
                None => Arc::new(self.open_path(&table.path(id)?, OFlags::WRONLY)?),
            }
        };
        self.usage.change_size(&file, to, || ftruncate(&file, to))
    }

    fn set_mode_and_times(&self, id: u64, set: &SetAttributes) -> Result<()> {
        let time = |set: Option<SetTime>| match set {
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Some(SetTime::At(tv_sec, nanos)) => Timespec { tv_sec, tv_nsec: nanos.into() },
        };
        let times =
            Timestamps { last_access: time(set.accessed), last_modification: time(set.modified) };
        let sets_times = set.accessed.is_some() || set.modified.is_some();
        let mode = set.mode.map(|mode| Mode::from_raw_mode(mode & 0o1777));
        let table = self.table();
        if let Some(file) = table.open_file(id) {
            mode.map_or(Ok(()), |mode| fchmod(&file, mode))?;
            return if sets_times { futimens(&file, &times) } else { Ok(()) };
        }
        let path = table.path(id)?;
        let is_link = kind(&beneath::stat(&self.base, &path)?) == FileType::Symlink;
        let (parent, name) = beneath::split(&path)?;
        let parent = beneath::directory(&self.base, parent)?;
        if let Some(mode) = mode {
            if is_link {
                return Err(Errno::OPNOTSUPP);
            }
            // The entry is no link, and names do not change while the table is
            // locked.
            chmodat(&parent, name, mode, AtFlags::empty())?;
        }
        if sets_times {
            utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn list(
        &self,
        directory: &OpenScratchDirectory,
    ) -> Result<(Vec<beneath::ListedEntry>, BudgetPart)> {
        let (mut taken, mut left) = (BudgetPart::nothing(&self.lists), MAX_ENTRIES);
        let list = beneath::list_within(directory.descriptor.as_fd(), |length| {
            left = left.checked_sub(1).ok_or(Errno::OVERFLOW)?;
            taken.add_name(length, 1)
        })?;
        Ok((list, taken))
    }
}

impl FileSystem for Scratch {
    fn lookup(&self, _: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        match self.find(parent.0, name) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn missing_timeout(&self, _: NodeId) -> Duration {
        CACHE_TIMEOUT
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.table().forget(node.0, count);
    }

    fn attributes(
        &self,
        _: Caller,
        node: NodeId,
        _: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        let stat = self.facts(node.0)?;
        Ok((self.attributes_of(node.0, &stat), CACHE_TIMEOUT))
    }

    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        set: SetAttributes,
    ) -> Result<(Attributes, Duration)> {
        let gives_away = set.uid.is_some_and(|uid| uid != self.owner.0)
            || set.gid.is_some_and(|gid| gid != self.owner.1);
        if gives_away || set.mode.is_some_and(|mode| mode & SET_ID != 0) {
            return Err(Errno::PERM);
        }
        if let Some(size) = set.size {
            self.resize(node.0, set.handle, size)?;
        }
        if set.mode.is_some() || set.accessed.is_some() || set.modified.is_some() {
            self.set_mode_and_times(node.0, &set)?;
        }
        self.attributes(caller, node, None)
    }

    fn read_link(&self, _: Caller, node: NodeId) -> Result<OsString> {
        let table = self.table();
        let flags = OFlags::PATH;
        let link = beneath::open(&self.base, &table.path(node.0)?, flags, Mode::empty())?;
        let target = readlinkat(link, Path::new(""), Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn symlink(&self, _: Caller, parent: NodeId, name: &OsStr, target: &OsStr) -> Result<Entry> {
        self.add_symlink(parent.0, name, target)
    }

    fn make_file(&self, _: Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        let flags = OFlags::WRONLY | OFlags::EXCL;
        let (entry, _) = self.add_file(&mut self.table(), parent.0, name, mode, flags)?;
        Ok(entry)
    }

    fn make_directory(&self, _: Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        self.add_directory(parent.0, name, mode)
    }

    fn unlink(&self, _: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        self.remove_name(parent.0, name, false)
    }

    fn remove_directory(&self, _: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        self.remove_name(parent.0, name, true)
    }

    fn rename(
        &self,
        _: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_name((from.0.0, from.1), (to.0.0, to.1), mode)
    }

    fn link(&self, _: Caller, node: NodeId, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.add_link(node.0, parent.0, name)
    }

    fn open(&self, _: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        let mut table = self.table();
        table.room()?;
        let file = Arc::new(self.open_path(&table.path(node.0)?, flags)?);
        let handle = Handle(table.open(node.0, Open::File(file)));
        Ok(Opened { keep_cache: true, no_flush: true, ..Opened::new(handle) })
    }

    fn create(
        &self,
        _: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        let mut table = self.table();
        let (entry, file) = self.add_file(&mut table, parent.0, name, mode, flags)?;
        // The table is still locked: a removal of the name must see the open file.
        let handle = Handle(table.open(entry.node.0, Open::File(file)));
        Ok((entry, Opened { keep_cache: true, no_flush: true, ..Opened::new(handle) }))
    }

    fn temporary(&self, _: Caller, _: NodeId, _: u32, _: OFlags) -> Result<(Entry, Opened)> {
        Err(Errno::OPNOTSUPP)
    }

    fn read(&self, _: Caller, _: NodeId, handle: Handle, offset: u64, count: u32) -> Result<Data> {
        let file = self.table().file(handle.0)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(1 << 20);
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let at = offset.checked_add(bytes.len() as u64).ok_or(Errno::INVAL)?;
            match pread(&file, spare_capacity(&mut bytes), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(count);
        Ok(Data::Owned(bytes))
    }

    fn write(
        &self,
        _: Caller,
        _: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        _: WriteFrom,
    ) -> Result<u32> {
        let file = self.table().file(handle.0)?;
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let write = || {
            let mut written = 0;
            loop {
                let rest = data.get(written..).unwrap_or_default();
                if rest.is_empty() {
                    return Ok(written);
                }
                match pwrite(&file, rest, offset.saturating_add(written as u64)) {
                    Ok(count) if count > 0 => written += count,
                    Err(Errno::INTR) => {}
                    Ok(_) | Err(_) if written > 0 => return Ok(written),
                    Ok(_) => return Err(Errno::IO),
                    Err(error) => return Err(error),
                }
            }
        };
        let written = self.usage.change_size(&file, end, write)?;
        u32::try_from(written).map_err(|_| Errno::INVAL)
    }

    fn flush(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }

    fn release(&self, _: NodeId, handle: Handle) {
        let gone = self.table().close(handle.0);
        if let Some(stat) = gone.and_then(|file| fstat(file).ok()) {
            self.usage.remove_entry(cost_of(&stat));
        }
    }

    fn sync(&self, _: Caller, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn allocate(
        &self,
        _: Caller,
        _: NodeId,
        handle: Handle,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let file = self.table().file(handle.0)?;
        if mode == KEEP_SIZE | PUNCH_HOLE {
            let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            return fallocate(&file, flags, offset, length);
        }
        // Space behind the end of a file would not be counted.
        if mode != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        self.usage
            .change_size(&file, end, || fallocate(&file, FallocateFlags::empty(), offset, length))
    }

    fn seek(&self, _: NodeId, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        let file = self.table().file(handle.0)?;
        seek(
            &file,
            match to {
                Seek::Data => SeekFrom::Data(offset),
                Seek::Hole => SeekFrom::Hole(offset),
            },
        )
    }

    fn open_directory(&self, _: Caller, node: NodeId, _: OFlags) -> Result<Opened> {
        let descriptor: OwnedFd = {
            let table = self.table();
            table.room()?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            beneath::open(&self.base, &table.path(node.0)?, flags, Mode::empty())?
        };
        let open =
            Open::Directory(Arc::new(OpenScratchDirectory { descriptor, list: Mutex::new(None) }));
        Ok(Opened::new(Handle(self.table().open(node.0, open))))
    }

    fn read_directory(
        &self,
        caller: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        let open = self.table().directory(handle.0)?;
        let mut list = open.list.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 || list.is_none() {
            // The old list is freed first, because memory is limited.
            *list = None;
            *list = Some(self.list(&open)?);
        }
        for (index, name) in [".", ".."].into_iter().enumerate() {
            let next = index as u64 + 1;
            if offset < next && !directory.add(OsStr::new(name), node.0, FileType::Directory, next)
            {
                return Ok(());
            }
        }
        let skip = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
        for (index, entry) in list.iter().flat_map(|(list, _)| list).enumerate().skip(skip) {
            let next = index as u64 + 3;
            let has_room = if directory.is_plus() {
                directory.add_entry(&entry.name, next, || {
                    self.lookup(caller, node, &entry.name).ok().flatten()
                })
            } else {
                directory.add(&entry.name, entry.inode, entry.kind, next)
            };
            if !has_room {
                break;
            }
        }
        Ok(())
    }

    fn release_directory(&self, _: NodeId, handle: Handle) {
        self.table().close(handle.0);
    }

    fn sync_directory(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }

    fn statistics(&self, _: NodeId) -> Result<Statistics> {
        let (limit, used) = self.usage.space();
        let free = limit.saturating_sub(used) / BLOCK;
        Ok(Statistics {
            blocks: limit / BLOCK,
            blocks_free: free,
            blocks_available: free,
            files: limit / BLOCK,
            files_free: free,
            block_size: 4096,
            name_length: 255,
        })
    }

    fn extended(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP)
    }

    fn extended_names(&self, _: Caller, _: NodeId) -> Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    fn set_extended(&self, _: Caller, _: NodeId, _: &OsStr, _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn remove_extended(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
