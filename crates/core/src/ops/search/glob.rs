//! Searching by name.

use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::{
    super::{Context, Entry, Error, Sealed},
    Limits, Start, Summary,
    page::{Room, position},
    pattern,
    tally::{Skipped, Tally},
    walk::{Visitor, Walk},
};
use crate::{
    model::{GlobQuery, Page, Position, WorkspacePath},
    policy::{Glob, ObjectKind},
    workspace::{self, Stat},
};

/// Most entries where the query says nothing.
const DEFAULT: u64 = 10_000;

/// What a search by name found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The entries, sorted by path. When the search stopped early, some of
    /// those there are.
    pub entries: Vec<Entry>,
    /// What it passed over.
    pub summary: Summary,
    /// The canonical path of where it began, `None` where it did not.
    pub base: Option<WorkspacePath>,
}

impl Found {
    /// Most entries that a search by name gives, whatever the query says.
    pub const MAX_ENTRIES: u64 = 100_000;
}

struct Finder<'a> {
    context: &'a Context<'a>,
    tally: &'a Tally<'a>,
    pattern: Glob,
    after: Option<&'a WorkspacePath>,
    found: Mutex<Vec<Entry>>,
}

/// Looks beneath the start for entries whose path, relative to it, matches.
///
/// # Errors
/// When the pattern is none, and when the start is no directory.
pub(crate) fn prepare(
    context: &Context<'_>,
    start: &Start,
    query: &GlobQuery,
) -> Result<Sealed<Found>, Error> {
    let pattern = pattern(&query.pattern)?;
    let page = query.page.as_deref();
    let most = if page.is_some() { Found::MAX_ENTRIES } else { DEFAULT };
    let tally =
        Tally::new(Limits::new(query.max_results, most, Found::MAX_ENTRIES), context.follower);
    let after = page.and_then(|page| Some(&page.after.as_ref()?.path));
    let finder = Finder { context, tally: &tally, pattern, after, found: Mutex::default() };
    let (path, seen) = match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory => (Some(permit.path().clone()), true),
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(workspace::Error::NotADirectory.into()),
        },
        Start::Beneath(path) => (Some(path.clone()), false),
        Start::Asked => (None, false),
    };
    let base = path.clone();
    match path {
        Some(path) => Walk::new(context, &tally, &finder, &path, query.ignored).run(path, seen),
        None => tally.skip(Skipped::Ask),
    }
    if tally.is_cancelled() {
        return Err(Error::Cancelled);
    }
    let mut entries = finder.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let mut summary = tally.summary();
    summary.next = page.and_then(|page| cut(&mut entries, page));
    let mut facts = tally.facts();
    let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    facts.counts.insert("entries".to_owned(), count);
    Ok(Sealed::new(Found { entries, summary, base }, facts))
}

/// Leaves what fits on the page; gives the last of it where there is more.
fn cut(entries: &mut Vec<Entry>, page: &Page) -> Option<Position> {
    let mut room = Room::of(page);
    let fit = entries.iter().take_while(|entry| room.take(entry.path.as_str().len())).count();
    let more = fit < entries.len();
    entries.truncate(fit);
    entries.last().filter(|_| more).map(|last| position(&last.path, 0))
}

impl Visitor for Finder<'_> {
    type Tools = ();

    fn tools(&self) {}

    fn enters(&self, relative: &str) -> bool {
        self.pattern.reaches_beneath(relative)
    }

    fn wants(&self, relative: &str, _: ObjectKind) -> bool {
        self.pattern.matches(relative)
    }

    fn meet(&self, (): &mut (), path: WorkspacePath, _: ObjectKind) {
        if self.after.is_some_and(|after| path <= *after) {
            return;
        }
        let stat = match self.context.workspace.open_listed(&path, OFlags::PATH | OFlags::NOFOLLOW)
        {
            Ok(handle) => Stat::of(handle).ok(),
            Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => {
                return self.tally.skip(Skipped::Changed);
            }
            // There, and not to be looked at: a mount point.
            Err(_) => None,
        };
        if self.tally.result(path.as_str().len()) {
            let entry = Entry::new(path, stat.as_ref());
            self.found.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        }
    }
}
