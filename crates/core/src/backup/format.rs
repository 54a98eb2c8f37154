//! The file format of a backup: one file that describes itself.
//!
//! ```text
//! content      of a file its bytes, of a link its target, of a tree the
//!              contents of its files one after the other
//! manifest     of a tree one JSON line per node (see `tree`), else nothing
//! trailer      one JSON object: `Trailer`
//! footer       length of the trailer, 8 bytes little-endian; SHA-256 of the
//!              trailer, 32 bytes; `MAGIC`, 16 bytes
//! ```
//!
//! The description comes last, because content is hashed while it is copied.
//!
//! When a backup is packed (see `pack`), its content moves to an object and a
//! tree's manifest is compressed. The rest is the same without content: version
//! 2, whose trailer names the object.

use std::{fs::File, os::unix::fs::FileExt};

use portcullis_audit::Hash;
use rustix::{
    fs::{Stat, fgetxattr, fstat},
    io::Errno,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Error, NodeKind};
use crate::policy::Object;

/// The end of a backup's footer.
const MAGIC: &[u8; 16] = b"PORTCULLIS-BAK1\n";
/// The end of an object's footer.
pub(super) const OBJECT_MAGIC: &[u8; 16] = b"PORTCULLIS-OBJ1\n";
const FOOTER: u64 = 8 + 32 + 16;
/// Maximum size of a trailer in bytes: a path and two access control lists.
const MAX_TRAILER: u64 = 1024 * 1024;

/// The kind of object of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackupKind {
    /// A regular file.
    File,
    /// A symbolic link itself.
    Link,
    /// A directory with everything in it.
    Tree,
    /// An editor's unsaved buffer.
    Buffer,
}

impl BackupKind {
    /// Returns the facts about the restored object that the policy needs.
    pub(crate) fn object(self) -> Object {
        match self {
            Self::File | Self::Buffer => NodeKind::File,
            Self::Link => NodeKind::Link,
            Self::Tree => NodeKind::Directory,
        }
        .object()
    }

    /// Returns the word in backups and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Link => "link",
            Self::Tree => "tree",
            Self::Buffer => "buffer",
        }
    }
}

/// Attributes of a backed up object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attributes {
    /// Permission bits, set-id and sticky bits included (`07777`).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Modification time: seconds since 1970.
    pub mtime: i64,
    /// The nanoseconds of `mtime`.
    pub mtime_nanos: u32,
    /// The access control list as the kernel encodes it (`system.posix_acl_access`), if there is
    /// one besides the mode.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "bytes")]
    pub acl: Option<Vec<u8>>,
    /// The access control list that new entries of a directory inherit
    /// (`system.posix_acl_default`).
    #[serde(default, skip_serializing_if = "Option::is_none", with = "bytes")]
    pub default_acl: Option<Vec<u8>>,
}

impl Attributes {
    /// Reads the attributes of an open file or directory.
    pub(super) fn read(fd: impl std::os::fd::AsFd, stat: &Stat) -> Result<Self, Error> {
        let directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        let list = |name| access_list(&fd, name).map_err(Error::os("read the access control list"));
        Ok(Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            mtime_nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            acl: list(ACL_ACCESS)?,
            default_acl: if directory { list(ACL_DEFAULT)? } else { None },
        })
    }
}

/// The extended attribute with a POSIX access control list (acl(5)).
pub(crate) const ACL_ACCESS: &str = "system.posix_acl_access";
/// The extended attribute with a directory's default list.
pub(crate) const ACL_DEFAULT: &str = "system.posix_acl_default";

/// Reads an access control list; `None` if there is none besides the mode.
pub(crate) fn access_list(
    fd: impl std::os::fd::AsFd,
    name: &str,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut small = [0_u8; 512];
    let found = match fgetxattr(&fd, name, &mut small) {
        Ok(length) => Ok(small.get(..length).unwrap_or_default().to_vec()),
        Err(Errno::RANGE) => {
            // The kernel's own limit on a value (XATTR_SIZE_MAX).
            let mut large = vec![0_u8; 65536];
            fgetxattr(&fd, name, large.as_mut_slice()).map(|length| {
                large.truncate(length);
                large
            })
        }
        Err(errno) => Err(errno),
    };
    match found {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The description of a backup in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trailer {
    /// Version of the format: 1, or 2 with `packed`.
    pub(super) v: u32,
    pub(super) id: String,
    pub(super) path: String,
    pub(super) kind: BackupKind,
    pub(super) operation: String,
    pub(super) session: String,
    pub(super) agent: String,
    /// The lifetime of the gateway that made the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) boot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) attributes: Option<Attributes>,
    /// SHA-256 of the content; of a tree its fingerprint.
    pub(super) sha256: Hash,
    /// SHA-256 of the content that the agent stores in its place, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Hash>,
    /// Bytes of content.
    pub(super) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tree: Option<TreeTrailer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) packed: Option<ObjectReference>,
}

/// The part of a [`Trailer`] that only trees have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TreeTrailer {
    /// Nodes in the tree, its root included.
    pub(super) nodes: u64,
    /// Bytes of the manifest.
    pub(super) manifest: u64,
    /// SHA-256 of the manifest.
    pub(super) manifest_sha256: Hash,
}

/// The place of a content that is not in the backup's own file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference {
    /// The object.
    pub(super) object: Hash,
    /// Bytes of the compressed manifest of a tree in the backup's file.
    pub(super) manifest: u64,
}

impl Trailer {
    /// Returns the offset of the trailer.
    fn offset(&self) -> Option<u64> {
        match &self.packed {
            Some(packed) => Some(packed.manifest),
            None => self.size.checked_add(self.tree.as_ref().map_or(0, |tree| tree.manifest)),
        }
    }

    /// Writes trailer and footer at `offset` and cuts the rest. Returns the size of the file.
    pub(super) fn write(&self, file: &File, offset: u64) -> Result<u64, Error> {
        write(file, offset, self, MAGIC)
    }

    /// Reads the description of a backup; `None` if the file is incomplete or damaged.
    pub(super) fn read(file: &File) -> Result<Option<Self>, Error> {
        let Some((trailer, start)) = read::<Self>(file, MAGIC)? else { return Ok(None) };
        let version = if trailer.packed.is_some() { 2 } else { 1 };
        Ok((trailer.v == version && trailer.offset() == Some(start)).then_some(trailer))
    }
}

/// Writes a description and its footer at `offset` and cuts the rest. Returns the size of the file.
pub(super) fn write(
    file: &File,
    offset: u64,
    description: &impl Serialize,
    magic: &[u8; 16],
) -> Result<u64, Error> {
    const ACTION: &str = "describe the backup";
    let mut bytes =
        serde_json::to_vec(description).map_err(|error| Error::io(ACTION)(error.into()))?;
    let length = bytes.len() as u64;
    let hash = Hash::of(&bytes);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(hash.as_bytes());
    bytes.extend_from_slice(magic);
    let end = offset + bytes.len() as u64;
    file.write_all_at(&bytes, offset).map_err(Error::io(ACTION))?;
    file.set_len(end).map_err(Error::io(ACTION))?;
    Ok(end)
}

/// Reads the description at the end of a file and its offset; `None` if the file is incomplete or
/// damaged.
pub(super) fn read<T: DeserializeOwned>(
    file: &File,
    magic: &[u8; 16],
) -> Result<Option<(T, u64)>, Error> {
    const ACTION: &str = "read the backup";
    let stat = fstat(file).map_err(Error::os(ACTION))?;
    let total = u64::try_from(stat.st_size).unwrap_or(0);
    let Some(end) = total.checked_sub(FOOTER) else { return Ok(None) };
    let mut footer = [0_u8; FOOTER as usize];
    file.read_exact_at(&mut footer, end).map_err(Error::io(ACTION))?;
    let Some((length, rest)) = footer.split_first_chunk::<8>() else { return Ok(None) };
    let Some((hash, found)) = rest.split_first_chunk::<32>() else { return Ok(None) };
    let length = u64::from_le_bytes(*length);
    if found != magic || length > MAX_TRAILER {
        return Ok(None);
    }
    let Some(start) = end.checked_sub(length) else { return Ok(None) };
    let mut bytes = vec![0_u8; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, start).map_err(Error::io(ACTION))?;
    if Hash::of(&bytes).as_bytes() != hash {
        return Ok(None);
    }
    Ok(serde_json::from_slice(&bytes).ok().map(|description| (description, start)))
}

/// Serializes bytes as base64 in JSON.
pub(super) mod bytes {
    use data_encoding::BASE64;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => serializer.serialize_str(&BASE64.encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| BASE64.decode(text.as_bytes()).map_err(D::Error::custom)).transpose()
    }
}
