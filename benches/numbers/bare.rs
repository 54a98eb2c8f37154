//! The system calls of one read and of one overwrite, made bare: those that
//! `strace` shows of the gateway, in its order, with nothing in between. The
//! overwrite is the baseline of the gateway, so it must not do less:
//!
//! ```text
//! strace -f -o calls target/release/deps/numbers-… overwrite-once /some/directory
//! ```
//!
//! shows both, between calls that open `/the/gateway/begins`, `/bare/begins` and
//! `/the/end`.
#![expect(clippy::disallowed_methods, reason = "opens the directories that it works in")]

use std::{
    fs::File,
    hint::black_box,
    os::fd::{AsFd, OwnedFd},
};

use portcullis_audit::Hash;
use rustix::{
    fs::{
        Advice, AtFlags, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, fadvise, fchmod,
        fdatasync, fgetxattr, flock, fremovexattr, fstat, fstatvfs, fsync, ftruncate,
        ioctl_ficlone, linkat, openat, openat2, renameat_with, statat, unlinkat,
    },
    io::{Errno, pread, pwrite, write},
    rand::{GetRandomFlags, getrandom},
};

use crate::{
    Outcome,
    world::{CONTENT, World},
};

const ACL: &str = "system.posix_acl_access";
/// Bytes of an entry's description, of an intent and of its outcome.
const TRAILER: usize = 399;
const INTENT: usize = 783;
const OUTCOME: usize = 351;
/// Bytes of the record of a read.
const DECISION: usize = 700;

/// Open directories and files as a gateway has them.
pub(crate) struct Bare {
    root: OwnedFd,
    state: OwnedFd,
    audit: OwnedFd,
    lock: OwnedFd,
    log: OwnedFd,
    backup_store: OwnedFd,
    spare: OwnedFd,
    usage: OwnedFd,
    made: u64,
}

impl Bare {
    pub(crate) fn open(world: &World) -> Outcome<Self> {
        let state = directory(File::open(world.state())?, ".")?;
        for name in ["audit", "backups", "backups/tmp"] {
            std::fs::create_dir_all(world.state().join(name))?;
        }
        // The gateway's entries are spread over as many directories.
        for number in 0..=u8::MAX {
            std::fs::create_dir(world.state().join(format!("backups/{number:02x}")))?;
        }
        let (audit, backup_store) = (directory(&state, "audit")?, directory(&state, "backups")?);
        let log = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        let usage = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let bare = Self {
            root: openat(File::open(world.root())?, ".", OFlags::PATH, Mode::empty())?,
            lock: openat(&audit, "lock", log, mode)?,
            log: openat(&audit, "seg-000000.jsonl", log, mode)?,
            spare: directory(&backup_store, "tmp")?,
            usage: openat(&backup_store, "usage", usage, mode)?,
            state,
            audit,
            backup_store,
            made: 0,
        };
        pwrite(&bare.usage, &[b'0'; 44], 0)?;
        Ok(bare)
    }

    /// Reads the file `name` into `buffer`, and hashes content and record too
    /// when `hashed`: the least that a gateway needs.
    pub(crate) fn read(&self, name: &str, buffer: &mut [u8], hashed: bool) -> Outcome<()> {
        let seen = beneath(&self.root, name, OFlags::PATH | OFlags::NOFOLLOW)?;
        fstat(&seen)?;
        let file = beneath(&self.root, name, OFlags::RDONLY)?;
        fstat(&file)?;
        let count = pread(&file, &mut *buffer, 0)?;
        if hashed {
            black_box(Hash::of(buffer.get(..count).unwrap_or_default()));
            black_box(Hash::leaf(black_box(&[b'x'; DECISION][..])));
        }
        self.record(DECISION)
    }

    /// Replaces the file `name`.
    pub(crate) fn replace(&mut self, name: &str, content: &[u8]) -> Outcome<()> {
        self.made += 1;
        let random = || -> Outcome<()> {
            getrandom(&mut [0_u8; 16][..], GetRandomFlags::empty())?;
            Ok(())
        };
        let seen = beneath(&self.root, name, OFlags::PATH | OFlags::NOFOLLOW)?;
        fstat(&seen)?;
        let old = beneath(&self.root, name, OFlags::RDONLY)?;
        fstat(&old)?;
        random()?;
        let kept = self.keep(&old, name)?;

        let (parent, name) = name.rsplit_once('/').ok_or("the file is in no directory")?;
        let dir = beneath(&self.root, parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let new = openat(&dir, ".", flags, Mode::RUSR | Mode::WUSR)?;
        nothing(linkat(&new, "", &dir, ".", AtFlags::EMPTY_PATH))?;
        let again = rustix::io::fcntl_dupfd_cloexec(&new, 3)?;
        write(&again, content)?;
        fstat(&new)?;
        fchmod(&new, Mode::from_raw_mode(0o644))?;
        nothing(fgetxattr(&old, ACL, &mut [0_u8; 512][..]))?;
        nothing(fremovexattr(&new, ACL))?;
        drop(again);
        fadvise(&new, 0, None, Advice::DontNeed)?;
        self.record(INTENT)?;
        fdatasync(&self.log)?;
        statat(&self.audit, "seg-000000.jsonl", AtFlags::SYMLINK_NOFOLLOW)?;
        self.settle(kept)?;

        fsync(&new)?;
        let temp = format!(".portcullis-{:032x}.tmp", self.made);
        let now = beneath(&self.root, parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        fstat(&now)?;
        fstat(&dir)?;
        drop(now);
        linkat(&new, "", &dir, &temp, AtFlags::EMPTY_PATH)?;
        let staged = format!(".portcullis-{:032x}.tmp", !self.made);
        renameat_with(&dir, &temp, &dir, &staged, RenameFlags::NOREPLACE)?;
        let temp = staged;
        renameat_with(&dir, &temp, &dir, name, RenameFlags::EXCHANGE)?;
        let out = beneath(&dir, &temp, OFlags::PATH | OFlags::NOFOLLOW)?;
        fstat(&out)?;
        drop(out);
        let out = beneath(&dir, &temp, OFlags::RDONLY)?;
        fstat(&out)?;
        let mut buffer = [0; CONTENT + 1];
        pread(&out, &mut buffer[..], 0)?;
        pread(&out, &mut buffer[..], CONTENT as u64)?;
        drop(out);
        let now = beneath(&self.root, parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        fstat(&now)?;
        fstat(&dir)?;
        drop(now);
        let out = beneath(&dir, &temp, OFlags::PATH | OFlags::NOFOLLOW)?;
        fstat(&out)?;
        drop(out);
        unlinkat(&dir, &temp, AtFlags::empty())?;
        fsync(&dir)?;
        drop((new, dir, seen, old));
        self.record(OUTCOME)
    }

    /// Makes the calls of the backup store before the intent; returns the copy,
    /// its name and its place.
    fn keep(&self, old: &OwnedFd, name: &str) -> Outcome<(OwnedFd, String, u8)> {
        let place = name.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let listed = directory(&self.backup_store, &format!("{place:02x}"))?;
        let mut room = Vec::with_capacity(768);
        let mut entries = rustix::fs::RawDir::new(&listed, room.spare_capacity_mut());
        while entries.next().is_some() {}
        drop(listed);
        getrandom(&mut [0_u8; 16][..], GetRandomFlags::empty())?;
        let temp = format!("{:032x}", self.made);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let copy = openat(&self.spare, &temp, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        flock(&copy, FlockOperation::NonBlockingLockExclusive)?;
        fstat(&copy)?;
        fstat(old)?;
        nothing(fgetxattr(old, ACL, &mut [0_u8; 512][..]))?;
        fstat(old)?;
        nothing(ioctl_ficlone(&copy, old))?;
        fstat(old)?;
        let mut buffer = [0; CONTENT + 1];
        let count = pread(old, &mut buffer[..], 0)?;
        fstatvfs(&copy)?;
        pwrite(&copy, buffer.get(..count).unwrap_or_default(), 0)?;
        pread(old, &mut buffer[..], count as u64)?;
        getrandom(&mut [0_u8; 4][..], GetRandomFlags::empty())?;
        pwrite(&copy, &[b'x'; TRAILER], count as u64)?;
        ftruncate(&copy, (count + TRAILER) as u64)?;
        fadvise(&copy, 0, None, Advice::DontNeed)?;
        flock(&self.usage, FlockOperation::LockExclusive)?;
        let mut usage = [0; 44];
        pread(&self.usage, &mut usage[..], 0)?;
        pwrite(&self.usage, &usage, 0)?;
        flock(&self.usage, FlockOperation::Unlock)?;
        let kept =
            format!("{:032x}.20261121T091758585722Z-eedd0aba.{:016x}.118f", place, self.made);
        renameat_with(&self.spare, &temp, &self.spare, &kept, RenameFlags::NOREPLACE)?;
        Ok((copy, kept, place))
    }

    /// Makes the calls of the backup store after the change.
    fn settle(&self, (copy, kept, place): (OwnedFd, String, u8)) -> Outcome<()> {
        fdatasync(&copy)?;
        fsync(&self.spare)?;
        let shard = directory(&self.backup_store, &format!("{place:02x}"))?;
        renameat_with(&self.spare, &kept, &shard, &kept, RenameFlags::NOREPLACE)?;
        Ok(())
    }

    /// Makes the calls of the log.
    fn record(&self, length: usize) -> Outcome<()> {
        let name = "seg-000000.jsonl";
        flock(&self.lock, FlockOperation::LockExclusive)?;
        statat(&self.state, "audit/lock", AtFlags::SYMLINK_NOFOLLOW)?;
        statat(&self.audit, name, AtFlags::SYMLINK_NOFOLLOW)?;
        write(&self.log, [b'x'; INTENT].get(..length).unwrap_or_default())?;
        fstat(&self.log)?;
        flock(&self.lock, FlockOperation::Unlock)?;
        Ok(())
    }
}

fn directory(parent: impl AsFd, name: &str) -> Outcome<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn beneath(dir: &OwnedFd, name: &str, flags: OFlags) -> Outcome<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV
        | ResolveFlags::NO_SYMLINKS;
    let flags = match flags.contains(OFlags::PATH) {
        true => flags | OFlags::CLOEXEC,
        false => flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
    };
    Ok(openat2(dir, name, flags, Mode::empty(), resolve)?)
}

/// Ignores errors of features that the file system lacks, and of entries that
/// exist.
fn nothing<T>(result: Result<T, Errno>) -> Outcome<()> {
    match result {
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
