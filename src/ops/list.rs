//! Disclosing the names in a directory, and what is known of one entry.

use super::{Context, Error, Facts, Sealed};
use crate::{
    model::{Access, WorkspacePath},
    policy::{Object, ObjectKind, Query, Sight},
    workspace::{Listing, Permit, Stat},
};
use rustix::fs::OFlags;

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
        let kind = match stat.map(|stat| stat.kind) {
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
    match permit.object().kind {
        ObjectKind::Directory => {}
        ObjectKind::Missing => return Err(crate::workspace::Error::NotFound.into()),
        _ => return Err(crate::workspace::Error::NotADirectory.into()),
    }
    let directory = permit.open(context.workspace, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let listing = Listing::read(directory)?;
    let mut relaxed = 0;
    let entries: Vec<Entry> = listing
        .entries
        .iter()
        .filter_map(|(name, stat)| Some((permit.path().join(name).ok()?, stat.as_ref())))
        .filter(|(path, stat)| match visible(context, path, *stat) {
            Sight::Shown { relaxed: would_deny } => {
                relaxed += u64::from(would_deny);
                true
            }
            Sight::Asked | Sight::Closed | Sight::Denied => false,
        })
        .map(|(path, stat)| Entry::new(path, stat))
        .collect();
    let mut facts = Facts::default();
    facts.counts.insert("entries".to_owned(), u64::try_from(entries.len()).unwrap_or(u64::MAX));
    facts.count("notUtf8", listing.not_utf8);
    facts.count("wouldHide", relaxed);
    Ok(Sealed::new(Entries { entries, not_utf8: listing.not_utf8 }, facts))
}

/// What a person must be asked about is not shown unasked.
fn visible(context: &Context<'_>, path: &WorkspacePath, stat: Option<&Stat>) -> Sight {
    let query =
        Query { agent: context.agent, operation: context.operation, access: Access::List, path };
    let kind = stat.map_or(ObjectKind::Missing, |stat| stat.kind);
    context.policy.sight(&query, &Object { kind, links: 1, through_symlink: false })
}
