//! A file system that answers anything, also what no file system should.

use std::{
    ffi::{OsStr, OsString},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use rustix::{
    fs::{FileType, OFlags},
    io::{Errno, Result},
};

use super::seeded_random::Random;
use crate::{
    Attributes, Caller, Data, Directory, Entry, FileSystem, Handle, NodeId, Opened, RenameMode,
    Seek, SetAttributes, Statistics, WriteFrom,
};

pub(super) struct Answers(Mutex<Random>);

impl Answers {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(Random::new(seed)))
    }

    /// Returns the generator, or any error: the kernel knows those up to 511.
    fn may(&self) -> Result<MutexGuard<'_, Random>> {
        let mut random = self.0.lock().unwrap();
        match random.below(4) {
            0 if random.below(4) == 0 => Err(Errno::NOSYS),
            0 => Err(Errno::from_raw_os_error(i32::try_from(1 + random.below(4_000)).unwrap())),
            _ => Ok(random),
        }
    }

    fn done(&self) -> Result<()> {
        self.may().map(drop)
    }
}

impl Random {
    fn duration(&mut self) -> Duration {
        Duration::new(self.below(u64::MAX), u32::try_from(self.below(1_000_000_000)).unwrap())
    }

    fn half(&mut self) -> u32 {
        u32::try_from(self.below(1 << 32)).unwrap()
    }

    fn attributes(&mut self) -> Attributes {
        let kinds = [
            FileType::RegularFile,
            FileType::RegularFile,
            FileType::Directory,
            FileType::Symlink,
            FileType::Fifo,
            FileType::CharacterDevice,
            FileType::Unknown,
        ];
        let mut time = || (i64::MIN.wrapping_add_unsigned(self.below(u64::MAX)), self.half());
        let (accessed, modified, changed) = (time(), time(), time());
        Attributes {
            inode: self.below(u64::MAX),
            kind: kinds[self.below(7) as usize],
            mode: self.half(),
            links: self.half(),
            uid: self.half(),
            gid: self.half(),
            size: self.below(u64::MAX),
            block_size: self.half(),
            accessed,
            modified,
            changed,
        }
    }

    fn entry(&mut self) -> Entry {
        Entry {
            node: NodeId(self.below(9)),
            generation: self.below(u64::MAX),
            attributes: self.attributes(),
            attribute_timeout: self.duration(),
            entry_timeout: self.duration(),
        }
    }

    fn opened(&mut self) -> Opened {
        let mut flag = || self.below(2) == 0;
        let (keep_cache, direct_io, cache_directory, no_flush) = (flag(), flag(), flag(), flag());
        let handle = Handle(self.below(u64::MAX));
        Opened { handle, keep_cache, direct_io, cache_directory, no_flush }
    }
}

impl FileSystem for Answers {
    fn lookup(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<Option<Entry>> {
        self.may().map(|mut random| (random.below(4) > 0).then(|| random.entry()))
    }

    fn missing_timeout(&self, _: NodeId) -> Duration {
        self.may().map_or(Duration::ZERO, |mut random| random.duration())
    }

    fn attributes(
        &self,
        _: Caller,
        _: NodeId,
        _: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        self.may().map(|mut random| (random.attributes(), random.duration()))
    }

    fn set_attributes(
        &self,
        _: Caller,
        _: NodeId,
        _: SetAttributes,
    ) -> Result<(Attributes, Duration)> {
        self.may().map(|mut random| (random.attributes(), random.duration()))
    }

    fn read_link(&self, _: Caller, _: NodeId) -> Result<OsString> {
        self.may().map(|mut random| random.text(4_000))
    }

    fn symlink(&self, _: Caller, _: NodeId, _: &OsStr, _: &OsStr) -> Result<Entry> {
        self.may().map(|mut random| random.entry())
    }

    fn make_file(&self, _: Caller, _: NodeId, _: &OsStr, _: u32) -> Result<Entry> {
        self.may().map(|mut random| random.entry())
    }

    fn make_directory(&self, _: Caller, _: NodeId, _: &OsStr, _: u32) -> Result<Entry> {
        self.may().map(|mut random| random.entry())
    }

    fn unlink(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<()> {
        self.done()
    }

    fn remove_directory(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<()> {
        self.done()
    }

    fn rename(
        &self,
        _: Caller,
        _: (NodeId, &OsStr),
        _: (NodeId, &OsStr),
        _: RenameMode,
    ) -> Result<()> {
        self.done()
    }

    fn link(&self, _: Caller, _: NodeId, _: NodeId, _: &OsStr) -> Result<Entry> {
        self.may().map(|mut random| random.entry())
    }

    fn open(&self, _: Caller, _: NodeId, _: OFlags) -> Result<Opened> {
        self.may().map(|mut random| random.opened())
    }

    fn create(
        &self,
        _: Caller,
        _: NodeId,
        _: &OsStr,
        _: u32,
        _: OFlags,
    ) -> Result<(Entry, Opened)> {
        self.may().map(|mut random| (random.entry(), random.opened()))
    }

    fn temporary(&self, _: Caller, _: NodeId, _: u32, _: OFlags) -> Result<(Entry, Opened)> {
        self.may().map(|mut random| (random.entry(), random.opened()))
    }

    fn read(&self, _: Caller, _: NodeId, _: Handle, _: u64, size: u32) -> Result<Data> {
        let mut random = self.may()?;
        // More than was asked for, too.
        let bytes = random.bytes((size as usize).min(4_000) + 50);
        let (start, end) = (random.below(60) as usize, random.below(60) as usize);
        Ok(match random.below(2) {
            0 => Data::Owned(bytes),
            _ => Data::Shared(bytes.into(), start..end),
        })
    }

    fn write(
        &self,
        _: Caller,
        _: NodeId,
        _: Handle,
        _: u64,
        data: &[u8],
        _: WriteFrom,
    ) -> Result<u32> {
        self.may().map(|mut random| random.below(data.len() as u64 + 1) as u32)
    }

    fn flush(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        self.done()
    }

    fn sync(&self, _: Caller, _: NodeId, _: Handle, _: bool) -> Result<()> {
        self.done()
    }

    fn allocate(&self, _: Caller, _: NodeId, _: Handle, _: u32, _: u64, _: u64) -> Result<()> {
        self.done()
    }

    fn seek(&self, _: NodeId, _: Handle, offset: u64, _: Seek) -> Result<u64> {
        self.may().map(|_| offset)
    }

    fn open_directory(&self, _: Caller, _: NodeId, _: OFlags) -> Result<Opened> {
        self.may().map(|mut random| random.opened())
    }

    fn read_directory(
        &self,
        _: Caller,
        _: NodeId,
        _: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        let mut random = self.may()?;
        for _ in 0..random.below(40) {
            let name = random.text(1_500);
            // It goes on even where there is no room.
            if random.below(4) == 0 {
                directory.add(&name, random.below(9), FileType::RegularFile, offset | 1);
            } else {
                directory
                    .add_entry(&name, offset | 1, || (random.below(8) > 0).then(|| random.entry()));
            }
        }
        if random.below(8) == 0 { Err(Errno::IO) } else { Ok(()) }
    }

    fn sync_directory(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        self.done()
    }

    fn statistics(&self, _: NodeId) -> Result<Statistics> {
        self.may().map(|mut random| Statistics {
            blocks: random.below(u64::MAX),
            blocks_free: random.below(u64::MAX),
            blocks_available: random.below(u64::MAX),
            files: random.below(u64::MAX),
            files_free: random.below(u64::MAX),
            block_size: random.half(),
            name_length: random.half(),
        })
    }

    fn extended(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<Vec<u8>> {
        self.may().map(|mut random| random.bytes(300))
    }

    fn extended_names(&self, _: Caller, _: NodeId) -> Result<Vec<OsString>> {
        let mut random = self.may()?;
        Ok((0..random.below(5)).map(|_| random.text(60)).collect())
    }

    fn set_extended(&self, _: Caller, _: NodeId, _: &OsStr, _: &[u8]) -> Result<()> {
        self.done()
    }

    fn remove_extended(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<()> {
        self.done()
    }
}
