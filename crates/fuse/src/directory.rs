//! The entries in a reply to READDIR or READDIRPLUS.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use rustix::fs::FileType;
use zerocopy::IntoBytes as _;

use crate::{
    abi::{Dirent, EntryOut},
    reply,
    types::{Entry, NodeId},
};

/// Longest name that the kernel accepts, in bytes.
const MAX_NAME: usize = 1024;

/// Collects the entries of a directory for a reply, up to its size.
#[derive(Debug)]
pub struct Directory<'a> {
    bytes: &'a mut Vec<u8>,
    size: usize,
    is_plus: bool,
    references: Vec<NodeId>,
}

impl<'a> Directory<'a> {
    /// Returns a collector that adds at most `size` bytes to `bytes`, which must be empty.
    pub(crate) fn new(bytes: &'a mut Vec<u8>, size: usize, is_plus: bool) -> Self {
        Self { bytes, size, is_plus, references: Vec::new() }
    }

    /// Returns the nodes that the entries refer to.
    pub(crate) fn into_references(self) -> Vec<NodeId> {
        self.references
    }

    /// Returns true if the kernel asks for attributes of the entries, too
    /// ([`Directory::add_entry`]).
    pub fn is_plus(&self) -> bool {
        self.is_plus
    }

    /// Adds a name with inode number and type; `offset`, which must not be 0, is the offset of
    /// the next one. Returns false if there is no room for it.
    pub fn add(&mut self, name: &OsStr, inode: u64, kind: FileType, offset: u64) -> bool {
        let room = self.has_room(name);
        if room && is_name(name) {
            if self.is_plus {
                // Without a node the kernel uses name and type only, and looks up the name
                // later.
                self.bytes.extend_from_slice(EntryOut::default().as_bytes());
            }
            self.push(name, inode, kind, offset);
        }
        room
    }

    /// Adds an entry with its attributes, as a lookup returns it. `entry` is called only where
    /// there is room. If [`Directory::is_plus`], each entry is a reference to its node;
    /// otherwise the kernel takes none, nor for `.` and `..`, which [`Directory::add`] adds.
    /// If `entry` returns `None`, the name is left out. Returns false if there is no room.
    pub fn add_entry(
        &mut self,
        name: &OsStr,
        offset: u64,
        entry: impl FnOnce() -> Option<Entry>,
    ) -> bool {
        let room = self.has_room(name);
        if room
            && is_name(name)
            && let Some(entry) = entry()
        {
            if self.is_plus {
                self.bytes.extend_from_slice(reply::entry(&entry).as_bytes());
                self.references.push(entry.node);
            }
            self.push(name, entry.attributes.inode, entry.attributes.kind, offset);
        }
        room
    }

    fn has_room(&self, name: &OsStr) -> bool {
        let entry = if self.is_plus { size_of::<EntryOut>() } else { 0 };
        let dirent = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        self.bytes.len().saturating_add(entry + dirent) <= self.size
    }

    fn push(&mut self, name: &OsStr, ino: u64, kind: FileType, off: u64) {
        let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
        let kind = kind.as_raw_mode() >> 12;
        self.bytes.extend_from_slice(Dirent { ino, off, namelen, kind }.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }
}

/// Checks a name: an invalid one would make the kernel discard the whole list, with its
/// references.
fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && bytes.len() <= MAX_NAME && !bytes.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_goes_past_the_size() {
        for (is_plus, one) in [(false, 32), (true, 160)] {
            let mut bytes = Vec::new();
            let mut directory = Directory::new(&mut bytes, 2 * one, is_plus);
            let file = FileType::RegularFile;
            assert!(directory.add(OsStr::new("a"), 7, file, 1));
            assert!(!directory.add(OsStr::new("123456789"), 7, file, 2), "eight bytes more");
            assert!(directory.add(OsStr::new("12345678"), 7, file, 2));
            assert!(!directory.add_entry(OsStr::new("b"), 3, || unreachable!("no room")));
            assert_eq!(bytes.len(), 2 * one);
        }
    }
}
