//! The operation `list`: disclosure of the names in a directory with their attributes.

use super::{Context, Error, Facts, Sealed};
use crate::{
    model::{Access, WorkspacePath},
    policy::{DirectoryVisibility, Object, ObjectKind, Query, Visibility},
    workspace::{self, Listing, Permit, Stat},
};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;

/// Maximum memory of the entries of one list, in bytes: some 100,000 entries. Hidden entries take
/// none, so the limit reveals nothing of them.
pub const MAX_LIST: usize = 16 << 20;

/// The name in place of one that is not UTF-8: that of `String::from_utf8_lossy`.
const UNNAMED: &str = "\u{fffd}";

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: WorkspacePath,
    /// Its kind.
    pub kind: EntryKind,
    /// Size in bytes, of files.
    pub size: Option<u64>,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// The kind of an entry in replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A kind that is never served: FIFO, socket, device, mount point.
    Other,
}

impl EntryKind {
    /// Returns the kind for replies; `None` is an object that cannot be looked at.
    pub(super) fn of(kind: Option<ObjectKind>) -> Self {
        match kind {
            Some(ObjectKind::File) => Self::File,
            Some(ObjectKind::Directory) => Self::Directory,
            Some(ObjectKind::Symlink) => Self::Symlink,
            _ => Self::Other,
        }
    }

    /// Returns the word in replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// The part of a directory that an agent may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    /// The entries, sorted by name.
    pub entries: Vec<Entry>,
    /// Number of names that are not UTF-8 and so are not served.
    pub not_utf8: u64,
}

impl Entry {
    pub(super) fn new(path: WorkspacePath, stat: Option<&Stat>) -> Self {
        let kind = EntryKind::of(stat.map(|stat| stat.kind));
        let size = stat.filter(|_| kind == EntryKind::File).map(|stat| stat.size);
        let shown = stat.filter(|_| kind != EntryKind::Other);
        Self {
            path,
            kind,
            size,
            modified: shown.map(|stat| stat.modified),
            mode: shown.map(|stat| stat.mode),
        }
    }
}

/// Lists the entries that the policy lets the agent see.
///
/// # Errors
/// When the object is no directory or moved, or a list takes more than [`MAX_LIST`].
pub(crate) fn prepare(context: &Context<'_>, permit: &Permit) -> Result<Sealed<Entries>, Error> {
    let (mut entries, mut relaxed, mut taken) = (Vec::new(), 0, 0_usize);
    let directory_visibility = context.policy.directory_visibility(&query(context, permit.path()));
    let not_utf8 = Listing::visit(open(context, permit)?, |name, stat| {
        let Ok(path) = permit.path().join(name) else { return Ok(()) };
        let kind = stat.as_ref().map(|stat| stat.kind);
        if visible(&directory_visibility, name, || Some(&path), kind, &mut relaxed) {
            taken = taken.saturating_add(size_of::<Entry>()).saturating_add(path.as_str().len());
            if taken > MAX_LIST {
                return Err(workspace::Error::TooLarge);
            }
            entries.push(Entry::new(path, stat.as_ref()));
        }
        Ok(())
    })?;
    entries.sort_unstable_by(|a, b| a.path.as_str().cmp(b.path.as_str()));
    let not_utf8 = if counts_unnamed(&directory_visibility, permit.path()) { not_utf8 } else { 0 };
    let facts = facts(entries.len(), not_utf8, relaxed);
    Ok(Sealed::names(Entries { entries, not_utf8 }, facts))
}

/// Opens the listed directory.
pub(super) fn open(context: &Context<'_>, permit: &Permit) -> Result<OwnedFd, Error> {
    match permit.object().kind {
        ObjectKind::Directory => {}
        ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
        _ => return Err(workspace::Error::NotADirectory.into()),
    }
    Ok(permit.open(context.workspace, OFlags::RDONLY | OFlags::DIRECTORY)?)
}

/// Returns the query for the entries of a directory.
pub(super) fn query<'a>(context: &Context<'a>, path: &'a WorkspacePath) -> Query<'a> {
    Query { agent: context.agent, operation: context.operation, access: Access::List, path }
}

/// True if entries of `directory` whose names are not UTF-8 are counted: where an entry is shown
/// whose name matches no pattern.
pub(super) fn counts_unnamed(
    directory_visibility: &DirectoryVisibility<'_>,
    directory: &WorkspacePath,
) -> bool {
    let path = directory.join(UNNAMED).ok();
    visible(directory_visibility, UNNAMED, || path.as_ref(), Some(ObjectKind::File), &mut 0)
}

/// Returns the facts of a list with this many entries.
pub(super) fn facts(entries: usize, not_utf8: u64, relaxed: u64) -> Facts {
    let mut facts = Facts::default();
    facts.counts.insert("entries".to_owned(), u64::try_from(entries).unwrap_or(u64::MAX));
    facts.count("notUtf8", not_utf8);
    facts.count("wouldHide", relaxed);
    facts
}

/// True if an entry is shown; its path is made only where a rule needs it. Counts the entry in
/// `relaxed` if only observe mode shows it. An entry that needs an approval is not shown.
pub(super) fn visible<'n>(
    directory_visibility: &DirectoryVisibility<'_>,
    name: &str,
    path: impl FnOnce() -> Option<&'n WorkspacePath>,
    kind: Option<ObjectKind>,
    relaxed: &mut u64,
) -> bool {
    let kind = kind.unwrap_or(ObjectKind::Missing);
    match directory_visibility.of(name, path, &Object { kind, links: 1, through_symlink: false }) {
        Some(Visibility::Shown { relaxed: would_deny }) => {
            *relaxed += u64::from(would_deny);
            true
        }
        Some(Visibility::Asked | Visibility::Closed | Visibility::Denied) | None => false,
    }
}
