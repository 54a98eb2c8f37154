//! Attributes of entries, as programs get them.

use portcullis_core::Stat;
use portcullis_policy::ObjectKind;

use crate::staged::{StagedAttributes, Time};

/// Attributes of a node, without its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) node: u64,
    pub(crate) kind: ObjectKind,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
}

/// The mode of a directory that can be traversed but not listed. The gateway decides on what is made
/// or removed in it, and records a denial; the kernel would deny it by itself.
const TRAVERSABLE: u32 = 0o333;

impl Attr {
    /// Returns the attributes of a workspace entry; `size` is the size that a reader gets.
    /// The real link count and directory size would disclose hidden entries.
    pub(crate) fn new(node: u64, stat: &Stat, traverse: bool, size: u64) -> Self {
        let is_directory = stat.kind == ObjectKind::Directory;
        let mode = match stat.kind {
            ObjectKind::Symlink => 0o777,
            _ if traverse => TRAVERSABLE,
            _ => stat.mode & 0o777,
        };
        Self {
            node,
            kind: stat.kind,
            mode,
            links: if is_directory { 2 } else { 1 },
            size: if is_directory { 4096 } else { size },
            modified: stat.modified,
            changed: stat.changed,
        }
    }

    /// Returns the attributes while a version is staged.
    pub(crate) fn staged(self, shows: &StagedAttributes) -> Self {
        Self {
            size: shows.size,
            modified: shows.modified,
            changed: shows.changed,
            mode: shows.mode.unwrap_or(self.mode),
            ..self
        }
    }
}
