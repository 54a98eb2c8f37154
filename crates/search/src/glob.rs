//! Searches by name.

use std::sync::{Mutex, PoisonError};

use crate::{
    Error, Follower, Summary,
    model::{GlobQuery, Page, Position, WorkspacePath},
    page::{PageSpace, json_bytes, position},
    pattern,
    policy::ObjectKind,
    tally::{Limits, Skipped, Tally},
    view::Names,
    walk::{Visitor, Walk},
};

/// Default maximum of entries.
const DEFAULT_MAX_ENTRIES: u64 = 10_000;

/// Maximum number of entries that a search by name returns, whatever the query requests.
pub const MAX_ENTRIES: u64 = 100_000;

struct Finder<'a, V: Names> {
    view: &'a V,
    tally: &'a Tally<'a>,
    after: Option<&'a WorkspacePath>,
    found: Mutex<Vec<V::FoundEntry>>,
}

/// Searches beneath the start for entries whose path, relative to it, matches. They are sorted by
/// path. If the search stopped early, they are some of the matches. `start` is `None` if it
/// requires an approval.
///
/// # Errors
/// If the pattern is invalid, or if the follower cancels the search.
pub fn glob<V: Names>(
    view: &V,
    start: Option<V::Directory>,
    query: &GlobQuery,
    follower: &dyn Follower,
) -> Result<(Vec<V::FoundEntry>, Summary), Error> {
    let pattern = pattern(&query.pattern)?;
    let page = query.page.as_deref();
    let most = if page.is_some() { MAX_ENTRIES } else { DEFAULT_MAX_ENTRIES };
    let tally = Tally::new(Limits::new(query.max_results, most, MAX_ENTRIES), follower);
    let after = page.and_then(|page| Some(&page.after.as_ref()?.path));
    let finder = Finder { view, tally: &tally, after, found: Mutex::default() };
    match start {
        Some(start) => {
            Walk::new(view, &tally, &finder, query.ignored).run(start, Some(pattern), true);
        }
        None => tally.skip(Skipped::Ask),
    }
    if tally.is_cancelled() {
        return Err(Error::Cancelled);
    }
    let mut entries = finder.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    entries.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
    let mut summary = tally.summary();
    summary.next = page.and_then(|page| cut(&mut entries, page));
    Ok((entries, summary))
}

/// Keeps the entries that fit on the page; returns the position of the last one if there are more.
fn cut<F: AsRef<WorkspacePath>>(entries: &mut Vec<F>, page: &Page) -> Option<Position> {
    let mut room = PageSpace::of(page);
    let fit =
        entries.iter().take_while(|entry| room.take(json_bytes(entry.as_ref().as_str()))).count();
    let more = fit < entries.len();
    entries.truncate(fit);
    entries.last().filter(|_| more).map(|last| position(last.as_ref(), 0))
}

impl<V: Names> Visitor<V> for Finder<'_, V> {
    type Tools = ();

    fn tools(&self) {}

    fn visit_name(&self, (): &mut (), entry: V::Entry, _: ObjectKind) {
        if self.after.is_some_and(|after| entry.as_ref() <= after) {
            return;
        }
        match self.view.look(entry) {
            Ok(found) => {
                if self.tally.result(found.as_ref().as_str().len()) {
                    self.found.lock().unwrap_or_else(PoisonError::into_inner).push(found);
                }
            }
            Err(reason) => self.tally.skip(reason),
        }
    }
}
