//! Trees.

use std::collections::BTreeMap;

use super::{Error, Format, Object, ObjectId, ObjectKind, Source};

/// Maximum size of a tree, in bytes.
pub(super) const MAX_TREE: u64 = 16 << 20;

/// Kinds of entries in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A file that may be executed.
    Executable,
    /// A symbolic link.
    Link,
    /// A commit of another repository.
    Submodule,
    /// A file with other permission bits, as old versions of git wrote it.
    Old(u32),
}

impl Mode {
    fn parse(digits: &[u8]) -> Option<Self> {
        Some(match digits {
            b"40000" => Self::Directory,
            b"100644" => Self::File,
            b"100755" => Self::Executable,
            b"120000" => Self::Link,
            b"160000" => Self::Submodule,
            b"100664" => Self::Old(0o100_664),
            _ => return None,
        })
    }

    fn number(self) -> u32 {
        match self {
            Self::Directory => 0o40_000,
            Self::File => 0o100_644,
            Self::Executable => 0o100_755,
            Self::Link => 0o120_000,
            Self::Submodule => 0o160_000,
            Self::Old(number) => number,
        }
    }

    /// Returns the permission bits of a file.
    pub(super) fn permissions(self) -> u32 {
        self.number() & 0o777
    }

    /// True if it is a file with content.
    pub fn is_file(self) -> bool {
        matches!(self, Self::File | Self::Executable | Self::Old(_))
    }
}

/// An entry of a tree, without its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its kind.
    pub mode: Mode,
    /// Its object.
    pub id: ObjectId,
}

/// A directory. The names are unchecked; those that are written are checked as paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(pub(super) BTreeMap<Vec<u8>, Entry>);

/// Returns the key by which entries are sorted: a directory's name is followed by `/`.
fn key(name: &[u8], mode: Mode) -> Vec<u8> {
    let end: &[u8] = if mode == Mode::Directory { b"/" } else { b"" };
    [name, end].concat()
}

impl Tree {
    /// Parses a tree's content, in the form and order in which git writes it.
    ///
    /// # Errors
    /// If the form or the order differs.
    pub fn parse(format: Format, mut bytes: &[u8]) -> Result<Self, Error> {
        let mut tree = Self::default();
        let mut last = Vec::new();
        while !bytes.is_empty() {
            let malformed = || Error::Malformed("an entry of a tree is cut off");
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let (mode, rest) = bytes.split_at(space);
            let rest = rest.get(1..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == 0).ok_or_else(malformed)?;
            let (name, rest) = rest.split_at(end);
            let rest = rest.get(1..).unwrap_or_default();
            let (id, rest) = rest.split_at_checked(format.length()).ok_or_else(malformed)?;
            let mode = Mode::parse(mode);
            let mode = mode.ok_or(Error::Malformed("an entry of a tree has an unknown mode"))?;
            if name.is_empty() || name.contains(&b'/') {
                return Err(Error::Malformed("an entry of a tree has no name, or a path"));
            }
            let this = key(name, mode);
            if this <= last {
                return Err(Error::Malformed("the entries of a tree are not in order"));
            }
            last = this;
            let entry = Entry { mode, id: ObjectId::from_bytes(id) };
            if tree.0.insert(name.to_vec(), entry).is_some() {
                return Err(Error::Malformed("a name stands twice in a tree"));
            }
            bytes = rest;
        }
        Ok(tree)
    }

    /// Reads the tree with that name; `None` is the empty tree.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(source: &mut dyn Source, id: Option<&ObjectId>) -> Result<Self, Error> {
        let Some(id) = id else { return Ok(Self::default()) };
        Self::parse(id.format(), &source.read(id, ObjectKind::Tree, MAX_TREE)?)
    }

    /// Makes the object with this content.
    pub fn object(&self, format: Format) -> Object {
        let mut entries: Vec<_> =
            self.0.iter().map(|(name, entry)| (key(name, entry.mode), name, entry)).collect();
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        let mut bytes = Vec::new();
        for (_, name, entry) in entries {
            bytes.extend_from_slice(format!("{:o} ", entry.mode.number()).as_bytes());
            bytes.extend_from_slice(name);
            bytes.push(0);
            bytes.extend_from_slice(entry.id.as_bytes());
        }
        Object::new(format, ObjectKind::Tree, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(&str, &str)]) -> Result<Tree, Error> {
        let mut bytes = Vec::new();
        for (mode, name) in entries {
            bytes.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            bytes.extend_from_slice(&[7; 20]);
        }
        let tree = Tree::parse(Format::Sha1, &bytes)?;
        assert_eq!(tree.object(Format::Sha1).bytes, bytes);
        Ok(tree)
    }

    #[test]
    fn trees_are_read_in_the_order_of_git_alone() {
        assert!(parse(&[("100644", "a.b"), ("40000", "a"), ("120000", "a0")]).is_ok());
        for entries in [
            [("40000", "a"), ("100644", "a.b")],
            [("100644", "a"), ("100644", "a")],
            [("100644", "a"), ("40000", "a")],
            [("100644", "a"), ("100640", "b")],
            [("100644", "a"), ("0100644", "b")],
            [("100644", "a"), ("100644", "b/c")],
            [("100644", ""), ("100644", "b")],
        ] {
            assert!(parse(&entries).is_err(), "{entries:?}");
        }
        assert!(Tree::parse(Format::Sha1, b"100644 a\0short").is_err());
    }
}
