//! Searches with `portcullis-search`, and the seals of their results.
//!
//! That crate walks and matches; `view` decides on every entry before the crate sees its name or
//! content, and makes the results from the decided content.

mod names;
mod view;

use portcullis_search::{MAX_ENTRIES, MAX_LINES, Start as Beginning, Summary, glob, grep};
pub(crate) use view::Disclosure;
pub use view::FileMatches;

use super::{Context, Entry, Error, Facts, Sealed, Source};
use crate::{
    model::{GlobQuery, GrepQuery, WorkspacePath},
    policy::ObjectKind,
    workspace::{self, Permit},
};
use view::{SearchDirectory, View};

/// The result of a search by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchResult {
    /// The entries, sorted by path; incomplete if the search stopped early.
    pub entries: Vec<Entry>,
    /// Counts of the search, and of what it skipped.
    pub summary: Summary,
    /// The canonical path of its start; `None` if it did not start.
    pub base: Option<WorkspacePath>,
}

impl SearchResult {
    /// Maximum number of entries of a search by name, whatever the query asks for.
    pub const MAX_ENTRIES: u64 = MAX_ENTRIES;
}

/// The result of a search in content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matches {
    /// The files with lines that match, sorted by path; incomplete if the search stopped early.
    pub files: Vec<FileMatches>,
    /// Counts of the search, and of what it skipped.
    pub summary: Summary,
}

impl Matches {
    /// Maximum number of matching lines of a search in content, whatever the query asks for.
    pub const MAX_LINES: u64 = MAX_LINES;
}

/// The start of a search, as the gateway has decided.
#[derive(Debug)]
pub(crate) enum Start {
    /// The object that was resolved and decided on.
    At(Permit),
    /// A directory that nothing allows and beneath which something could be allowed: it is not
    /// revealed, not even its existence.
    Beneath(WorkspacePath),
    /// None: a person would have to approve it first.
    Asked,
}

/// Searches beneath the start for entries whose path, relative to it, matches.
///
/// # Errors
/// When the pattern is invalid, and when the start is no directory.
pub(crate) fn prepare_glob(
    context: &Context<'_>,
    start: &Start,
    query: &GlobQuery,
) -> Result<Sealed<SearchResult>, Error> {
    let start = match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory => Some(SearchDirectory::start(permit.path(), true)),
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(workspace::Error::NotADirectory.into()),
        },
        Start::Beneath(path) => Some(SearchDirectory::start(path, false)),
        Start::Asked => None,
    };
    let base = start.as_ref().map(|start| start.as_ref().clone());
    let view = View::of(*context);
    let (entries, summary) = glob(&view, start, query, context.follower)?;
    let mut facts = facts(&view, &summary);
    let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    facts.counts.insert("entries".to_owned(), count);
    let entries = entries.into_iter().map(|found| found.0).collect();
    Ok(Sealed::content(SearchResult { entries, summary, base }, facts, view.labels()))
}

/// Searches for lines that match in the start, or in the files beneath it. Returns them with the
/// facts for the records of the files.
///
/// # Errors
/// When expression or pattern are invalid, when the start is missing, or when it is a file that
/// cannot be searched.
pub(crate) fn prepare_grep(
    context: &Context<'_>,
    start: &Start,
    query: &GrepQuery,
) -> Result<(Sealed<Matches>, Vec<Disclosure>), Error> {
    let beginning = match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory => {
                Beginning::Beneath(SearchDirectory::start(permit.path(), true))
            }
            ObjectKind::File => Beginning::At(View::start(permit.path().clone())),
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(Error::Invalid("this is neither a file nor a directory")),
        },
        Start::Beneath(path) => Beginning::Beneath(SearchDirectory::start(path, false)),
        Start::Asked => Beginning::Asked,
    };
    let view = View::of(Context { source: Source::Disk, ..*context });
    let (found, summary) = grep(&view, beginning, query, context.follower)?;
    let (files, disclosures): (Vec<_>, Vec<_>) =
        found.into_iter().map(|found| found.parts()).unzip();
    let mut facts = facts(&view, &summary);
    let files_count = u64::try_from(files.len()).unwrap_or(u64::MAX);
    facts.counts.insert("files".to_owned(), files_count);
    facts.count("matches", disclosures.iter().map(|file| file.matches).sum());
    facts.bytes = Some(disclosures.iter().map(|file| file.bytes).sum());
    Ok((Sealed::content(Matches { files, summary }, facts, view.labels()), disclosures))
}

/// Returns the facts for the record: those that the agent gets, and those that it does not.
fn facts(view: &View<'_>, summary: &Summary) -> Facts {
    let mut facts = Facts::default();
    facts.count("searched", summary.searched);
    for (reason, count) in &summary.skipped {
        facts.count(reason.as_str(), *count);
    }
    let (asked, relaxed) = view.counts();
    facts.count("askHidden", asked);
    facts.count("wouldHide", relaxed);
    facts.count("stoppedEarly", u64::from(summary.stopped.is_some()));
    facts
}

impl From<portcullis_search::Error> for Error {
    fn from(error: portcullis_search::Error) -> Self {
        match error {
            portcullis_search::Error::Pattern(text) => Self::Pattern(text),
            portcullis_search::Error::Cancelled => Self::Cancelled,
        }
    }
}
