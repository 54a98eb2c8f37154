//! The file name of a backup, which has everything that retention needs, so that
//! it never opens backups.
//!
//! `PATH.ID.GROUP.SIZE`: the first 128 bits of the path's SHA-256 in hex, the
//! backup's id, 64 bits that name a run of versions (see [`VersionRun`]), and the
//! backup's size on disk in hex. `PATH.ID.GROUP.SIZE.OBJECT` if the content is in
//! the [object](super::object) with that SHA-256. Backups are spread over 256
//! directories by the first two digits of the path's hash, so that those of one
//! path are found by reading one small directory.

use std::{fmt, str::FromStr};

use portcullis_audit::Hash;

use super::{BackupId, id::is_hex};
use crate::model::{Session, Transport, WorkspacePath};

/// The key of a path in file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PathKey(u128);

impl PathKey {
    pub(super) fn of(path: &WorkspacePath) -> Self {
        let hash = Hash::of(path.as_str().as_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 16], &[]));
        Self(u128::from_be_bytes(*first))
    }

    /// Returns the prefix of the names of the path's backups.
    pub(super) fn prefix(self) -> String {
        format!("{:032x}.", self.0)
    }
}

/// A run of versions of one path: the first is the content that a session found there, regardless
/// of who made it; each later one is the content that the session had stored there itself just
/// before. Retention never deletes the first of a run.
///
/// Backups of earlier versions have one run for each session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct VersionRun(u64);

impl VersionRun {
    /// Returns the session's run that begins with the backup `first`.
    ///
    /// A command such as `portcullis fs write` is a session of its own; all of one agent's count as
    /// one here, or every version that a script makes would be the first of some run and could
    /// never be deleted.
    pub(super) fn of(session: &Session, first: BackupId) -> Self {
        let text = match session.transport {
            Transport::Cli => format!("agent {} {first}", session.agent),
            Transport::Acp
            | Transport::Mcp
            | Transport::Files
            | Transport::Mount
            | Transport::Proxy
            | Transport::Serve => {
                format!("session {} {first}", session.recorded_id())
            }
        };
        let hash = Hash::of(text.as_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 8], &[]));
        Self(u64::from_be_bytes(*first))
    }
}

/// The file name of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) key: PathKey,
    pub(super) id: BackupId,
    pub(super) group: VersionRun,
    /// Bytes on disk, without those of the object.
    pub(super) size: u64,
    /// The object with the content.
    pub(super) object: Option<Hash>,
}

/// Backups up to this size fill one block of most file systems: packing them saves nothing.
const MIN_PACKED: u64 = 4096;

impl Name {
    /// True if packing could make the backup smaller.
    pub(super) fn is_packable(&self) -> bool {
        self.object.is_none() && self.size > MIN_PACKED
    }

    /// Returns the bytes on disk, and those of them that packing could save.
    pub(super) fn account(&self) -> (u64, u64) {
        (self.size, if self.is_packable() { self.size } else { 0 })
    }

    /// True if both are of the same backup: one has its content, the other names the object with
    /// it.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        (self.key, self.id, self.group) == (other.key, other.id, other.group)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}.{}.{:016x}.{:x}", self.key.0, self.id, self.group.0, self.size)?;
        self.object.map_or(Ok(()), |object| write!(f, ".{object}"))
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or(());
        let (key, id, group, size) = (part()?, part()?, part()?, part()?);
        let object = parts.next().map(str::parse).transpose().map_err(|_| ())?;
        // Each backup has one name.
        let digits = [(key, 32), (group, 16), (size, size.len())];
        if parts.next().is_some()
            || (size.starts_with('0') && size != "0")
            || digits
                .iter()
                .any(|(text, length)| text.len() != *length || !text.bytes().all(is_hex))
        {
            return Err(());
        }
        Ok(Self {
            key: PathKey(u128::from_str_radix(key, 16).map_err(|_| ())?),
            id: id.parse().map_err(|_| ())?,
            group: VersionRun(u64::from_str_radix(group, 16).map_err(|_| ())?),
            size: u64::from_str_radix(size, 16).map_err(|_| ())?,
            object,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_name_are_inverse() {
        let path = WorkspacePath::parse("src/main.rs").unwrap();
        let name = Name {
            key: PathKey::of(&path),
            id: BackupId::new(1_793_707_262_123_456).unwrap(),
            group: VersionRun(7),
            size: 4321,
            object: None,
        };
        assert_eq!(name.to_string().parse(), Ok(name));
        let packed = Name { object: Some(Hash::of(b"content")), ..name };
        assert_eq!(packed.to_string().parse(), Ok(packed));
        assert!(packed.is_twin(&name) && packed != name);
        assert!(format!("{packed}.x").parse::<Name>().is_err());
        assert!(name.to_string().starts_with(&name.key.prefix()));
        assert!(format!("{name}.x").parse::<Name>().is_err());
        for other in [
            "..".to_owned(),
            name.to_string().to_uppercase(),
            name.to_string().replace(".10e1", ".010e1"),
            name.to_string().replace(".10e1", ".+10e1"),
            name.to_string().replace(".10e1", "."),
            format!("0{name}"),
            packed.to_string().to_uppercase(),
        ] {
            assert!(other.parse::<Name>().is_err(), "{other}");
        }
        let empty = Name { size: 0, ..name };
        assert_eq!(empty.to_string().parse(), Ok(empty));
    }
}
