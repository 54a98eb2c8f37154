//! Disclosing the names in a directory, and what is known of one entry.

use super::{Context, Error, Facts, Sealed};
use crate::{
    model::{Access, WorkspacePath},
    policy::{Object, ObjectKind, Query, Sight},
    workspace::{Listing, Permit, Stat},
};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: WorkspacePath,
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes, of files.
    pub size: Option<u64>,
    /// Last change of content: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// What an entry is, as a door says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Something that is never served: FIFO, socket, device, mount point.
    Other,
}

impl EntryKind {
    /// The word in replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// What an agent may see of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    /// The entries, sorted by name.
    pub entries: Vec<Entry>,
    /// How many names are not UTF-8 and so are not served.
    pub not_utf8: u64,
}

impl Entry {
    pub(super) fn new(path: WorkspacePath, stat: Option<&Stat>) -> Self {
        Self::of_kind(path, stat.map(|stat| stat.kind), stat)
    }

    fn of_kind(path: WorkspacePath, kind: Option<ObjectKind>, stat: Option<&Stat>) -> Self {
        let kind = match kind {
            Some(ObjectKind::File) => EntryKind::File,
            Some(ObjectKind::Directory) => EntryKind::Directory,
            Some(ObjectKind::Symlink) => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
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

/// Reads the names and keeps those that the policy lets the agent see.
///
/// # Errors
/// When it is no directory or changed its place.
pub fn prepare(context: &Context<'_>, permit: &Permit) -> Result<Sealed<Entries>, Error> {
    let listing = Listing::read(open(context, permit)?)?;
    let found = listing.entries.into_iter();
    let found = found.map(|(name, stat)| (name, stat.as_ref().map(|stat| stat.kind), stat));
    Ok(seal(context, permit, found, listing.not_utf8))
}

/// The same without what only a look at each entry tells.
///
/// # Errors
/// As [`prepare`].
pub fn names(context: &Context<'_>, permit: &Permit) -> Result<Sealed<Entries>, Error> {
    let (kinds, not_utf8) = Listing::kinds(open(context, permit)?)?;
    let found = kinds.into_iter().map(|(name, kind)| (name, kind, None));
    Ok(seal(context, permit, found, not_utf8))
}

fn open(context: &Context<'_>, permit: &Permit) -> Result<OwnedFd, Error> {
    match permit.object().kind {
        ObjectKind::Directory => {}
        ObjectKind::Missing => return Err(crate::workspace::Error::NotFound.into()),
        _ => return Err(crate::workspace::Error::NotADirectory.into()),
    }
    Ok(permit.open(context.workspace, OFlags::RDONLY | OFlags::DIRECTORY)?)
}

fn seal(
    context: &Context<'_>,
    permit: &Permit,
    found: impl Iterator<Item = (String, Option<ObjectKind>, Option<Stat>)>,
    not_utf8: u64,
) -> Sealed<Entries> {
    let mut relaxed = 0;
    let mut entries = Vec::with_capacity(found.size_hint().0);
    for (name, kind, stat) in found {
        let Ok(path) = permit.path().join(&name) else { continue };
        match visible(context, &path, kind) {
            Sight::Shown { relaxed: would_deny } => relaxed += u64::from(would_deny),
            Sight::Asked | Sight::Closed | Sight::Denied => continue,
        }
        entries.push(Entry::of_kind(path, kind, stat.as_ref()));
    }
    let mut facts = Facts::default();
    facts.counts.insert("entries".to_owned(), u64::try_from(entries.len()).unwrap_or(u64::MAX));
    facts.count("notUtf8", not_utf8);
    facts.count("wouldHide", relaxed);
    Sealed::new(Entries { entries, not_utf8 }, facts)
}

/// What a person must be asked about is not shown unasked.
fn visible(context: &Context<'_>, path: &WorkspacePath, kind: Option<ObjectKind>) -> Sight {
    let query =
        Query { agent: context.agent, operation: context.operation, access: Access::List, path };
    let kind = kind.unwrap_or(ObjectKind::Missing);
    context.policy.sight(&query, &Object { kind, links: 1, through_symlink: false })
}
