//! Objects and their names.

use std::fmt;

use data_encoding::HEXLOWER;
use sha1::Sha1;
use sha2::Sha256;

/// The hash by which a repository names its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
}

impl Format {
    /// Returns the length of a name in bytes.
    pub fn length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Returns the name in a repository's configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// Hashes the concatenation of `parts`.
    pub(super) fn hash(self, parts: &[&[u8]]) -> Vec<u8> {
        fn of<D: sha1::Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut hash = D::new();
            parts.iter().for_each(|part| hash.update(part));
            hash.finalize().to_vec()
        }
        match self {
            Self::Sha1 => of::<Sha1>(parts),
            Self::Sha256 => of::<Sha256>(parts),
        }
    }
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(Vec<u8>);

impl ObjectId {
    /// Parses the hex digits of a name in either format.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        matches!(bytes.len(), 20 | 32).then_some(Self(bytes))
    }

    /// Makes the name of these bytes; the caller checked their number.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Returns its bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the format to which its length belongs.
    pub fn format(&self) -> Format {
        if self.0.len() == 20 { Format::Sha1 } else { Format::Sha256 }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A directory.
    Tree,
    /// The content of a file, or the target of a link.
    Blob,
}

impl ObjectKind {
    /// Returns the name in an object's header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An object with its name, which is the hash of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub id: ObjectId,
    /// Its content.
    pub bytes: Vec<u8>,
}

impl Object {
    /// Makes the object of this content.
    pub fn new(format: Format, kind: ObjectKind, bytes: Vec<u8>) -> Self {
        let header = format!("{kind} {}\0", bytes.len());
        let id = ObjectId(format.hash(&[header.as_bytes(), &bytes]));
        Self { kind, id, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_the_names_that_git_gives_them() {
        let empty = |format, kind| Object::new(format, kind, Vec::new()).id.to_string();
        assert_eq!(
            empty(Format::Sha1, ObjectKind::Blob),
            "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
        );
        assert_eq!(
            empty(Format::Sha1, ObjectKind::Tree),
            "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        );
        assert_eq!(
            empty(Format::Sha256, ObjectKind::Blob),
            "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"
        );
    }
}
