//! Searches in content.

use std::sync::{Mutex, PoisonError};

use grep_regex::RegexMatcher;

use crate::{
    Error, Follower, Summary,
    lines::{Tools, compile},
    model::{GrepQuery, Page, Position},
    page::{PageSpace, begins, json_bytes, position},
    pattern,
    policy::{GlobPattern, ObjectKind},
    tally::{Limits, Skipped, Tally},
    view::{Contents, Matched, Start},
    walk::{Visitor, Walk},
};

/// Default maximum of matching lines.
const DEFAULT_MAX_LINES: u64 = 1_000;

/// Maximum number of matching lines that a search in content returns, whatever the query requests.
pub const MAX_LINES: u64 = 10_000;

struct Seeker<'a, V: Contents> {
    view: &'a V,
    tally: &'a Tally<'a>,
    query: &'a GrepQuery,
    matcher: RegexMatcher,
    found: Mutex<Vec<V::Matched>>,
}

/// Searches for matching lines in the start, or in the files beneath it. The files are sorted by
/// path. If the search stopped early, they are some of the matches.
///
/// # Errors
/// If the expression or the pattern is invalid, or if the follower cancels the search.
pub fn grep<V: Contents>(
    view: &V,
    start: Start<V>,
    query: &GrepQuery,
    follower: &dyn Follower,
) -> Result<(Vec<V::Matched>, Summary), Error> {
    let matcher = compile(query)?;
    let include = query.include.as_deref().map(included).transpose()?;
    let most = if query.page.is_some() { MAX_LINES } else { DEFAULT_MAX_LINES };
    let tally = Tally::new(Limits::new(query.max_results, most, MAX_LINES), follower);
    let seeker = Seeker { view, tally: &tally, query, matcher, found: Mutex::default() };
    match start {
        Start::Beneath(directory) => {
            Walk::new(view, &tally, &seeker, query.ignored).run(directory, include, false);
        }
        // A named file is searched even if it is ignored.
        Start::At(entry) => seeker.visit_name(&mut seeker.tools(), entry, ObjectKind::File),
        Start::Asked => tally.skip(Skipped::Ask),
    }
    if tally.is_cancelled() {
        return Err(Error::Cancelled);
    }
    let mut found = seeker.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
    let mut summary = tally.summary();
    summary.next = query.page.as_deref().and_then(|page| cut(&mut found, page));
    Ok((found, summary))
}

/// Keeps the lines that fit on the page; returns the position of the last one if there are more.
fn cut<M: Matched>(found: &mut Vec<M>, page: &Page) -> Option<Position> {
    let mut room = PageSpace::of(page);
    let mut last = None;
    for (number, file) in found.iter_mut().enumerate() {
        let path = json_bytes(file.as_ref().as_str());
        let lines = file.lines();
        let fit = lines.iter().take_while(|line| room.take(path + json_bytes(&line.text))).count();
        let more = fit < lines.len();
        let shown = lines.iter().take(fit).next_back();
        last = shown.map(|line| position(file.as_ref(), line.number)).or(last);
        if more {
            file.truncate(fit);
            found.truncate(number + usize::from(fit > 0));
            return last;
        }
    }
    None
}

/// Parses the pattern of the files to search; without `/` it is about names.
fn included(text: &str) -> Result<GlobPattern, Error> {
    if text.contains('/') { pattern(text) } else { pattern(&format!("**/{text}")) }
}

impl<V: Contents> Visitor<V> for Seeker<'_, V> {
    type Tools = Tools;

    fn tools(&self) -> Tools {
        Tools::new(&self.matcher, self.query)
    }

    fn visit_name(&self, tools: &mut Tools, entry: V::Entry, kind: ObjectKind) {
        let Some(after) = begins(self.query.page.as_deref(), entry.as_ref()) else { return };
        let searched = match kind {
            ObjectKind::File => self.search(tools, entry, after),
            ObjectKind::Symlink => Err(Skipped::Symlink),
            _ => Err(Skipped::Special),
        };
        match searched {
            Ok(None) => {}
            Ok(Some(found)) => {
                self.found.lock().unwrap_or_else(PoisonError::into_inner).push(found);
            }
            Err(reason) => self.tally.skip(reason),
        }
    }
}

impl<V: Contents> Seeker<'_, V> {
    /// Searches a file with the content that a reader gets.
    fn search(
        &self,
        tools: &mut Tools,
        entry: V::Entry,
        after: u64,
    ) -> Result<Option<V::Matched>, Skipped> {
        let text = self.view.read(entry)?;
        self.tally.searched();
        let (pieces, matches) = tools.search(self.tally, text.as_ref(), after);
        if matches == 0 {
            self.view.leave(text);
            return Ok(None);
        }
        Ok(Some(self.view.matched(text, pieces, matches)))
    }
}
