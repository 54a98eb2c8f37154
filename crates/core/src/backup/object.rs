//! Objects: contents that backups share, once for each content, compressed.
//!
//! ```text
//! payload      the content itself, or a zstd frame of it (RFC 8878)
//! trailer      one JSON object: `ObjectTrailer`
//! footer       as that of a backup, with another magic
//! ```
//!
//! An object is named `SHA256.SIZE.FORM` in `objects/`, spread over 256
//! directories by the first two digits: the content's hash, bytes on disk in
//! hex, and `raw`, `zstd` or `delta-BASE`. A delta is a frame that needs the content of another
//! object, its base, as prefix (`zstd --patch-from`); a base is never a delta
//! itself, so two objects are all that a content ever needs.

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Read, Write},
    os::fd::{AsFd, OwnedFd},
    str::FromStr,
    sync::Arc,
};

use portcullis_audit::Hash;
use rustix::{
    fs::{FlockOperation, MemfdFlags, fdatasync, flock, fstat, fsync, memfd_create},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    Error,
    directory::open_directory,
    format::{self, OBJECT_MAGIC},
    range::Range,
    shards::Shards,
    temp::Temp,
};

/// Maximum size of a content in a delta, in bytes: both sides are in memory to make and to read
/// one.
pub(super) const MAX_DELTA: u64 = 16 * 1024 * 1024;

/// The encoding of an object's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The content itself.
    Raw,
    /// A zstd frame.
    Zstd,
    /// A zstd frame with the content of this object as prefix.
    Delta(Hash),
}

impl Form {
    /// Returns the object that this one needs.
    pub(super) fn base(self) -> Option<Hash> {
        if let Self::Delta(base) = self { Some(base) } else { None }
    }
}

/// The file name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectName {
    /// SHA-256 of the content.
    pub(super) hash: Hash,
    /// Bytes on disk.
    pub(super) size: u64,
    pub(super) form: Form,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}.", self.hash, self.size)?;
        match self.form {
            Form::Raw => f.write_str("raw"),
            Form::Zstd => f.write_str("zstd"),
            Form::Delta(base) => write!(f, "delta-{base}"),
        }
    }
}

impl FromStr for ObjectName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '.');
        let mut part = || parts.next().ok_or(());
        let (hash, size, form) = (part()?, part()?, part()?);
        let name = Self {
            hash: hash.parse().map_err(|_| ())?,
            size: u64::from_str_radix(size, 16).map_err(|_| ())?,
            form: match form {
                "raw" => Form::Raw,
                "zstd" => Form::Zstd,
                form => {
                    let base = form.strip_prefix("delta-").ok_or(())?;
                    Form::Delta(base.parse().map_err(|_| ())?)
                }
            },
        };
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

/// The description of an object in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectTrailer {
    /// Version of the format: 1.
    v: u32,
    /// SHA-256 of the content.
    object: Hash,
    /// Bytes of content.
    size: u64,
    /// `raw`, `zstd` or `delta`.
    form: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<Hash>,
}

/// The objects of a backup store.
#[derive(Debug)]
pub(super) struct Objects {
    shards: Shards,
    tmp: Arc<OwnedFd>,
}

/// An object that nothing removes while this value exists.
#[derive(Debug)]
pub(super) struct LockedObject {
    pub(super) name: ObjectName,
    /// Open for its lock.
    _file: File,
    /// The base of a delta, open for its lock: a sweep that listed the objects before the delta
    /// existed would remove the base.
    _base: Option<File>,
}

impl Objects {
    /// Returns the objects in `dir`, of a store that makes its files in `tmp`.
    pub(super) fn new(dir: OwnedFd, tmp: Arc<OwnedFd>) -> Self {
        Self { shards: Shards { dir, shown: "backups/objects" }, tmp }
    }

    /// Opens a descriptor of the directory for the lock of a packing.
    pub(super) fn lockable(&self) -> Result<OwnedFd, Error> {
        open_directory(self.shards.dir.as_fd(), ".").map_err(Error::os("lock the backup store"))
    }

    /// Returns the names of all objects.
    pub(super) fn list(&self) -> Result<Vec<ObjectName>, Error> {
        self.shards.names()
    }

    /// Finds the object with this content.
    pub(super) fn find(&self, hash: Hash) -> Result<Option<ObjectName>, Error> {
        let names: Vec<ObjectName> = self.shards.names_of(&hash.to_string())?;
        Ok(names.into_iter().min_by_key(|name| (name.form.base().is_some(), name.size)))
    }

    /// Locks an object, so that nothing removes it.
    pub(super) fn hold(&self, hash: Hash) -> Result<Option<LockedObject>, Error> {
        let Some((name, file)) = self.locked(hash)? else { return Ok(None) };
        Ok(Some(LockedObject { name, _file: file, _base: self.locked_base(name.form)? }))
    }

    fn locked_base(&self, form: Form) -> Result<Option<File>, Error> {
        let base = form.base().map(|base| self.locked(base)).transpose()?.flatten();
        Ok(base.map(|(_, file)| file))
    }

    fn locked(&self, hash: Hash) -> Result<Option<(ObjectName, File)>, Error> {
        let Some(name) = self.find(hash)? else { return Ok(None) };
        let Some(file) = self.shards.file(&name.to_string())? else { return Ok(None) };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            return Ok(None);
        }
        let stat = fstat(&file).map_err(Error::os("look at an object"))?;
        Ok((stat.st_nlink > 0).then_some((name, file)))
    }

    /// Stores a payload as the object with this content, durably, and locks it. `reserve` gets its
    /// size before the object appears.
    pub(super) fn put(
        &self,
        hash: Hash,
        size: u64,
        form: Form,
        payload: &mut dyn Read,
        reserve: &dyn Fn(u64) -> Result<(), Error>,
    ) -> Result<LockedObject, Error> {
        const ACTION: &str = "write an object";
        let mut temp = Temp::new(&self.tmp)?;
        let stored = io::copy(payload, &mut &temp.file).map_err(Error::io(ACTION))?;
        let word = match form {
            Form::Raw => "raw",
            Form::Zstd => "zstd",
            Form::Delta(_) => "delta",
        };
        let trailer =
            ObjectTrailer { v: 1, object: hash, size, form: word.to_owned(), base: form.base() };
        let total = format::write(&temp.file, stored, &trailer, OBJECT_MAGIC)?;
        fdatasync(&temp.file).map_err(Error::os("sync an object"))?;
        reserve(total)?;
        let name = ObjectName { hash, size: total, form };
        let text = name.to_string();
        let shard = self.shards.make(&text)?;
        match temp.publish(shard.as_fd(), &text) {
            // An object of the same name has the same content, or is damaged; this one is known to
            // be good.
            Err(Errno::EXIST) => temp.replace(shard.as_fd(), &text),
            other => other,
        }
        .map_err(Error::os("store an object"))?;
        fsync(&shard).map_err(Error::os("sync the backup store"))?;
        let file = temp.file.try_clone().map_err(Error::io(ACTION))?;
        Ok(LockedObject { name, _file: file, _base: self.locked_base(form)? })
    }

    /// Removes an object unless it is locked; true if it is gone.
    pub(super) fn remove(&self, name: &ObjectName) -> Result<bool, Error> {
        let text = name.to_string();
        let Some(file) = self.shards.file(&text)? else { return Ok(true) };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        self.shards.unlink(&text)?;
        Ok(true)
    }

    /// Returns the content of an object as a file; `None` if it is missing or cannot be unpacked.
    /// The reader compares it with its hash.
    pub(super) fn unpack(&self, hash: Hash) -> Result<Option<File>, Error> {
        const ACTION: &str = "unpack the backup";
        let Some(object) = self.read(hash)? else { return Ok(None) };
        if object.form == Form::Raw {
            return Ok(Some(object.file));
        }
        let mut out = self.scratch()?;
        match self.decode(&object, &mut out) {
            Ok(true) => Ok(Some(out)),
            Ok(false) => Ok(None),
            Err(error) => Err(Error::io(ACTION)(error)),
        }
    }

    /// Returns the content of an object in a delta, if it matches its name.
    pub(super) fn content(&self, hash: Hash) -> Result<Option<Vec<u8>>, Error> {
        let Some(object) = self.read(hash)?.filter(|object| object.size <= MAX_DELTA) else {
            return Ok(None);
        };
        let mut out = Vec::new();
        let whole = self.decode(&object, &mut out).map_err(Error::io("unpack the backup"))?;
        Ok((whole && Hash::of(&out) == hash).then_some(out))
    }

    /// True if an object has the content of its name.
    pub(super) fn verify(&self, hash: Hash) -> Result<bool, Error> {
        let Some(object) = self.read(hash)? else { return Ok(false) };
        let mut hasher = Hasher(sha2::Digest::new());
        let whole = self.decode(&object, &mut hasher).map_err(Error::io("unpack the backup"))?;
        Ok(whole && Hash::from_bytes(sha2::Digest::finalize(hasher.0).into()) == hash)
    }

    /// Makes a file without a name: it vanishes with its descriptor, and most of its data never
    /// reaches the disk.
    pub(super) fn scratch(&self) -> Result<File, Error> {
        const ACTION: &str = "make a file for the backup";
        match Temp::new(&self.tmp) {
            // The dropped temporary file loses its name; this descriptor keeps it.
            Ok(temp) => temp.file.try_clone().map_err(Error::io(ACTION)),
            // A store that was opened read-only has no place for files.
            Err(Error::Io { source, .. }) if is_closed_to_us(&source) => {
                let file = memfd_create("backup", MemfdFlags::CLOEXEC);
                file.map(File::from).map_err(Error::os(ACTION))
            }
            Err(error) => Err(error),
        }
    }

    fn read(&self, hash: Hash) -> Result<Option<Object>, Error> {
        let Some(name) = self.find(hash)? else { return Ok(None) };
        let Some(file) = self.shards.file(&name.to_string())? else { return Ok(None) };
        let Some((trailer, payload)) = format::read::<ObjectTrailer>(&file, OBJECT_MAGIC)? else {
            return Ok(None);
        };
        let agrees = trailer.v == 1 && trailer.object == hash && trailer.base == name.form.base();
        let size = trailer.size;
        Ok(agrees.then_some(Object { file, payload, size, form: name.form }))
    }

    /// Writes the content to `out`; false if the payload does not decode to the expected size.
    fn decode(&self, object: &Object, out: &mut dyn Write) -> io::Result<bool> {
        let payload =
            BufReader::with_capacity(128 * 1024, Range::new(&object.file, object.payload));
        // A byte past the expected size shows that there are more.
        let bound = object.size.saturating_add(1);
        let copied = match object.form {
            Form::Raw => io::copy(&mut payload.take(bound), out),
            Form::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(payload)?;
                io::copy(&mut decoder.take(bound), out)
            }
            Form::Delta(base) => {
                let flat = |error: Error| io::Error::other(error.to_string());
                if self.find(base).map_err(flat)?.is_none_or(|base| base.form.base().is_some()) {
                    return Ok(false);
                }
                let Some(base) = self.content(base).map_err(flat)? else { return Ok(false) };
                let decoder = zstd::stream::read::Decoder::with_ref_prefix(payload, &base)?;
                io::copy(&mut decoder.take(bound), out)
            }
        };
        match copied {
            Ok(copied) => Ok(copied == object.size),
            // An error of the decoder is none of the system.
            Err(error) if error.raw_os_error().is_none() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// An open object.
struct Object {
    file: File,
    /// Bytes of payload.
    payload: u64,
    /// Bytes of content.
    size: u64,
    form: Form,
}

/// Hashes bytes without storing them.
struct Hasher(sha2::Sha256);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sha2::Digest::update(&mut self.0, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True if files cannot be made because the store is on a read-only file system, or another user's.
fn is_closed_to_us(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ROFS | Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_name_are_inverse() {
        let (hash, base) = (Hash::of(b"content"), Hash::of(b"base"));
        for form in [Form::Raw, Form::Zstd, Form::Delta(base)] {
            let name = ObjectName { hash, size: 0x1234, form };
            assert_eq!(name.to_string().parse(), Ok(name));
            assert!(
                name.to_string().len() < 255 && name.to_string().starts_with(&hash.to_string())
            );
            assert!(format!("{name}.tmp").parse::<ObjectName>().is_err());
        }
        assert!("..".parse::<ObjectName>().is_err());
    }
}
