//! Packs backups: contents move from backups into objects, once for each content, compressed, and
//! as deltas if a path has many versions.
//!
//! No request waits for it: a save is a copy, and [`BackupStore::pack`] is called later. Content is
//! compared with its hash before it is packed, and the object is read back before the backup's own
//! bytes are removed, so that a defect here can cost time, not content.
//!
//! The order makes a kill at any moment harmless: the object is durable before the backup that
//! names it appears, and that is durable before the old one is removed. A kill leaves an object
//! that nothing names or two complete files of one backup; the next packing removes either.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Write as _},
    ops::ControlFlow,
    os::fd::AsFd,
};

use portcullis_audit::Hash;
use rustix::fs::{FlockOperation, fdatasync, flock};
use sha2::{Digest, Sha256};

use super::{
    BackupKind, BackupStore, Error, format,
    format::Trailer,
    name::{Name, PathKey},
    object::{Form, LockedObject, MAX_DELTA, ObjectName},
    range::Range,
    read::Backup,
    temp::Temp,
};

/// The zstd level: a good ratio at some 200 MB/s.
const LEVEL: i32 = 6;
/// The zstd level of deltas, which are made often and are small, with a prefix that must be read
/// first.
const DELTA_LEVEL: i32 = 3;
/// Bytes of content below which an object is not worthwhile.
const MIN_CONTENT: u64 = 1024;

/// The result of packing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packed {
    /// Backups packed.
    pub entries: u64,
    /// Their bytes before.
    pub before: u64,
    /// Their bytes after, with the objects that were made for them.
    pub after: u64,
    /// Bytes of removed objects, which nothing needed any more.
    pub collected: u64,
    /// Backups that were not packed because they, or their objects, are damaged.
    pub damaged: u64,
    /// True if another process packs the store at the moment; nothing was done.
    pub busy: bool,
}

/// The progress of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of backups that were looked at.
    pub done: u64,
    /// Bytes of all backups to look at.
    pub total: u64,
}

impl BackupStore {
    /// Packs the backups that are not packed yet, oldest first, and removes objects that nothing
    /// needs any more. `observe` gets the progress and may stop the packing between two backups.
    ///
    /// # Errors
    /// Of the system; what was packed until then stays packed.
    pub(crate) fn pack(
        &self,
        observe: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Packed, Error> {
        let mut done = Packed::default();
        let lock = self.objects.lockable()?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(Packed { busy: true, ..done });
        }
        self.remove_twins()?;
        let names = self.names()?;
        let mut bases = Bases::new(&self.objects.list()?);
        let total = names.iter().filter(|name| name.is_packable()).map(|name| name.size).sum();
        let mut progress = Progress { done: 0, total };
        let mut whole = true;
        for name in &names {
            if let Some(object) = name.object {
                bases.add_path(name.key, object);
                continue;
            }
            if !name.is_packable() {
                continue;
            }
            if observe(progress).is_break() {
                whole = false;
                break;
            }
            match self.pack_one(name, &mut bases) {
                Ok(Some(after)) => {
                    done.entries += 1;
                    done.before = done.before.saturating_add(name.size);
                    done.after = done.after.saturating_add(after);
                }
                Ok(None) => {}
                Err(Error::Damaged(_)) => done.damaged += 1,
                Err(error) => return Err(error),
            }
            progress.done = progress.done.saturating_add(name.size);
        }
        if whole {
            // The end is reported, and can no longer be stopped.
            let _ = observe(progress);
            self.set_packed()?;
        }
        done.collected = self.collect()?;
        Ok(done)
    }

    /// Removes one of two files of a backup that a kill during packing left.
    fn remove_twins(&self) -> Result<(), Error> {
        let names = self.names()?;
        for (one, two) in names.iter().zip(names.iter().skip(1)) {
            if !one.is_twin(two) {
                continue;
            }
            let (inline, packed) = if one.object.is_none() { (one, two) } else { (two, one) };
            let whole = match self.describe(packed) {
                Ok(Some(entry)) => self.verify(&entry).is_ok(),
                _ => false,
            };
            self.unlink(if whole { inline } else { packed })?;
        }
        Ok(())
    }

    /// Packs one backup; returns its new bytes, `None` if it is gone or packing saves nothing.
    fn pack_one(&self, name: &Name, bases: &mut Bases) -> Result<Option<u64>, Error> {
        let Some(entry) = self.describe(name)? else { return Ok(None) };
        if entry.bytes < MIN_CONTENT {
            return Ok(None);
        }
        let (file, mut trailer, _) = self.reopen(&entry)?;
        let (object, made) = if entry.kind == BackupKind::Tree || entry.bytes > MAX_DELTA {
            self.pack_large(&entry, &file)?
        } else {
            self.pack_small(&entry, name.key, bases)?
        };
        bases.add_path(name.key, object.name.hash);
        let mut temp = Temp::new(&self.tmp)?;
        let manifest = match &trailer.tree {
            Some(tree) => compress_manifest(&file, trailer.size, tree.manifest, &temp.file)?,
            None => 0,
        };
        trailer.v = 2;
        trailer.packed = Some(format::ObjectReference { object: object.name.hash, manifest });
        let size = trailer.write(&temp.file, manifest)?;
        fdatasync(&temp.file).map_err(Error::os("sync the backup"))?;
        self.prove(&trailer, &temp.file, entry.id)?;
        let packed = Name { size, object: Some(object.name.hash), ..*name };
        let text = packed.to_string();
        let shard = self.shards.make(&text)?;
        let there = self.exchange(name, &packed, || {
            temp.publish(shard.as_fd(), &text).map_err(Error::os("store the backup"))
        })?;
        Ok(there.then_some(size.saturating_add(made)))
    }

    /// Reads a tree's new manifest back.
    fn prove(&self, trailer: &Trailer, file: &File, id: super::BackupId) -> Result<(), Error> {
        let (Some(tree), Some(packed)) = (&trailer.tree, &trailer.packed) else { return Ok(()) };
        let read = |error| Error::io("read the backup")(error);
        let mut hasher = Sha256::new();
        let decoder = zstd::stream::read::Decoder::new(Range::new(file, packed.manifest));
        copy(decoder.map_err(read)?, |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        let good = Hash::from_bytes(hasher.finalize().into()) == tree.manifest_sha256;
        if good { Ok(()) } else { Err(Error::Damaged(id)) }
    }

    /// Finds or makes the object for a content that fits in memory; returns the bytes that it took
    /// if it was made.
    fn pack_small(
        &self,
        entry: &Backup,
        key: PathKey,
        bases: &mut Bases,
    ) -> Result<(LockedObject, u64), Error> {
        let mut bytes = Vec::new();
        let mut content = self.content(entry)?;
        let read = content.read_to_end(&mut bytes);
        read.map_err(|error| content.failed(error))?;
        let hash = entry.sha256;
        if let Some(there) = self.existing(hash, entry)? {
            return Ok((there, 0));
        }
        let reserve = |bytes| self.reserve_object(bytes);
        let size = bytes.len() as u64;
        if let Some(base) = bases.of(key)
            && let Some(held) = self.objects.hold(base)?
            && let Some(prefix) = self.objects.content(base)?
        {
            let delta = delta(&bytes, &prefix)?;
            if bases.takes(&held.name, delta.len() as u64) {
                let form = Form::Delta(base);
                let made = self.objects.put(hash, size, form, &mut delta.as_slice(), &reserve)?;
                return self.proven(made, entry, bases);
            }
        }
        let frame = zstd::bulk::compress(&bytes, LEVEL).map_err(Error::io("pack the backup"))?;
        let made = if is_worth_it(frame.len() as u64, size) {
            self.objects.put(hash, size, Form::Zstd, &mut frame.as_slice(), &reserve)?
        } else {
            self.objects.put(hash, size, Form::Raw, &mut bytes.as_slice(), &reserve)?
        };
        self.proven(made, entry, bases)
    }

    fn proven(
        &self,
        made: LockedObject,
        entry: &Backup,
        bases: &mut Bases,
    ) -> Result<(LockedObject, u64), Error> {
        if !self.objects.verify(made.name.hash)? {
            return Err(Error::Damaged(entry.id));
        }
        bases.made(&made.name);
        let size = made.name.size;
        Ok((made, size))
    }

    /// Finds or makes the object for a tree or a large file, in bounded memory.
    fn pack_large(&self, entry: &Backup, file: &File) -> Result<(LockedObject, u64), Error> {
        if entry.kind == BackupKind::Tree {
            self.verify(entry)?;
        }
        let mut hasher = Sha256::new();
        copy(Range::new(file, entry.bytes), |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        let hash = Hash::from_bytes(hasher.finalize().into());
        if entry.kind != BackupKind::Tree && hash != entry.sha256 {
            return Err(Error::Damaged(entry.id));
        }
        if let Some(there) = self.existing(hash, entry)? {
            return Ok((there, 0));
        }
        const ACTION: &str = "pack the backup";
        let frame = Temp::new(&self.tmp)?;
        let mut encoder =
            zstd::stream::write::Encoder::new(&frame.file, LEVEL).map_err(Error::io(ACTION))?;
        copy(Range::new(file, entry.bytes), |piece| encoder.write_all(piece))?;
        encoder.finish().map_err(Error::io(ACTION))?;
        let length = rustix::fs::fstat(&frame.file).map_err(Error::os(ACTION))?.st_size;
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        let reserve = |bytes| self.reserve_object(bytes);
        let made = if is_worth_it(length, entry.bytes) {
            let mut payload = Range::new(&frame.file, length);
            self.objects.put(hash, entry.bytes, Form::Zstd, &mut payload, &reserve)?
        } else {
            let mut payload = Range::new(file, entry.bytes);
            self.objects.put(hash, entry.bytes, Form::Raw, &mut payload, &reserve)?
        };
        if !self.objects.verify(hash)? {
            return Err(Error::Damaged(entry.id));
        }
        let size = made.name.size;
        Ok((made, size))
    }

    /// Finds an existing object, and verifies it: the backup will have no other content.
    fn existing(&self, hash: Hash, entry: &Backup) -> Result<Option<LockedObject>, Error> {
        let Some(there) = self.objects.hold(hash)? else { return Ok(None) };
        if self.objects.verify(hash)? { Ok(Some(there)) } else { Err(Error::Damaged(entry.id)) }
    }
}

/// Possible bases of deltas.
struct Bases {
    objects: HashMap<Hash, ObjectName>,
    /// Bytes of the deltas of an object.
    weight: HashMap<Hash, u64>,
    /// The content of the last version of a path.
    last: HashMap<PathKey, Hash>,
}

impl Bases {
    fn new(objects: &[ObjectName]) -> Self {
        let mut bases =
            Self { objects: HashMap::new(), weight: HashMap::new(), last: HashMap::new() };
        objects.iter().for_each(|object| bases.made(object));
        bases
    }

    fn made(&mut self, object: &ObjectName) {
        self.objects.insert(object.hash, *object);
        if let Some(base) = object.form.base() {
            let weight = self.weight.entry(base).or_default();
            *weight = weight.saturating_add(object.size);
        }
    }

    fn add_path(&mut self, key: PathKey, object: Hash) {
        self.last.insert(key, object);
    }

    /// Returns the base for the next version of a path: that of the version before, or that version
    /// itself.
    fn of(&self, key: PathKey) -> Option<Hash> {
        let last = self.last.get(&key)?;
        Some(self.objects.get(last)?.form.base().unwrap_or(*last))
    }

    /// True if a delta of `size` bytes saves space. The more a file differs from its base, the
    /// larger its deltas get; when together they are as large as the base, a new base is cheaper.
    fn takes(&self, base: &ObjectName, size: u64) -> bool {
        let weight = self.weight.get(&base.hash).copied().unwrap_or(0);
        size < base.size / 2 && weight.saturating_add(size) <= base.size
    }
}

/// True if a frame saves enough to be unpacked each time.
fn is_worth_it(frame: u64, content: u64) -> bool {
    frame < content - content / 16
}

/// Makes a frame of `bytes` that needs `prefix` to be read.
fn delta(bytes: &[u8], prefix: &[u8]) -> Result<Vec<u8>, Error> {
    const ACTION: &str = "pack the backup";
    let make = || -> std::io::Result<Vec<u8>> {
        let mut encoder =
            zstd::stream::write::Encoder::with_ref_prefix(Vec::new(), DELTA_LEVEL, prefix)?;
        // Both must fit in the window; 2^26 bytes are enough for the largest two.
        let both = (bytes.len() + prefix.len()).max(1 << 17);
        encoder.window_log(both.next_power_of_two().trailing_zeros())?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    make().map_err(Error::io(ACTION))
}

/// Compresses the manifest at `offset`, and returns its new size.
fn compress_manifest(file: &File, offset: u64, length: u64, out: &File) -> Result<u64, Error> {
    const ACTION: &str = "pack the backup";
    let mut encoder = zstd::stream::write::Encoder::new(out, LEVEL).map_err(Error::io(ACTION))?;
    copy(Range::between(file, offset, offset.saturating_add(length)), |piece| {
        encoder.write_all(piece)
    })?;
    encoder.finish().map_err(Error::io(ACTION))?;
    let stat = rustix::fs::fstat(out).map_err(Error::os(ACTION))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Passes all bytes of `from` to `each`.
fn copy(
    mut from: impl Read,
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), Error> {
    const ACTION: &str = "read the backup";
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = from.read(&mut buffer).map_err(Error::io(ACTION))?;
        let piece = buffer.get(..count).unwrap_or_default();
        if piece.is_empty() {
            return Ok(());
        }
        each(piece).map_err(Error::io("pack the backup"))?;
    }
}
