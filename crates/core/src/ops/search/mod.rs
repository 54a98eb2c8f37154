//! Searches: what one discloses, as `portcullis-search` found it.
//!
//! That crate walks and matches; what it is shown is decided on in `view`, and what it
//! found is made of what it was shown.

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
use view::{Place, View};

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
    pub const MAX_ENTRIES: u64 = MAX_ENTRIES;
}

/// What a search in content found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matches {
    /// The files that have lines that match, sorted by path. When the search
    /// stopped early, some of those there are.
    pub files: Vec<FileMatches>,
    /// What it passed over.
    pub summary: Summary,
}

impl Matches {
    /// Most matching lines that a search in content gives, whatever the query says.
    pub const MAX_LINES: u64 = MAX_LINES;
}

/// Where a search begins, as the gateway has decided.
#[derive(Debug)]
pub(crate) enum Start {
    /// At what was resolved and decided on.
    At(Permit),
    /// At a directory that nothing allows and beneath which something could be
    /// allowed: nothing is told of itself, not even whether it is there.
    Beneath(WorkspacePath),
    /// Nowhere: a person would have to be asked first.
    Asked,
}

/// Looks beneath the start for entries whose path, relative to it, matches.
///
/// # Errors
/// When the pattern is none, and when the start is no directory.
pub(crate) fn prepare_glob(
    context: &Context<'_>,
    start: &Start,
    query: &GlobQuery,
) -> Result<Sealed<Found>, Error> {
    let start = match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory => Some(Place::start(permit.path(), true)),
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(workspace::Error::NotADirectory.into()),
        },
        Start::Beneath(path) => Some(Place::start(path, false)),
        Start::Asked => None,
    };
    let base = start.as_ref().map(|start| start.as_ref().clone());
    let view = View::of(*context);
    let (entries, summary) = glob(&view, start, query, context.follower)?;
    let mut facts = facts(&view, &summary);
    let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    facts.counts.insert("entries".to_owned(), count);
    let entries = entries.into_iter().map(|found| found.0).collect();
    Ok(Sealed::names(Found { entries, summary, base }, facts))
}

/// Looks for lines that match in the start, or in the files beneath it. With
/// what is disclosed comes what the log is to say of it.
///
/// # Errors
/// When expression or pattern are none, when nothing is at the start, or when
/// it is a file that cannot be searched.
pub(crate) fn prepare_grep(
    context: &Context<'_>,
    start: &Start,
    query: &GrepQuery,
) -> Result<(Sealed<Matches>, Vec<Disclosure>), Error> {
    let beginning = match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory => Beginning::Beneath(Place::start(permit.path(), true)),
            ObjectKind::File => Beginning::At(View::start(permit.path().clone())),
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(Error::Invalid("this is neither a file nor a directory")),
        },
        Start::Beneath(path) => Beginning::Beneath(Place::start(path, false)),
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

/// What the record is told: what the agent is told, and what it is not.
fn facts(view: &View<'_>, summary: &Summary) -> Facts {
    let mut facts = Facts::default();
    facts.count("searched", summary.searched);
    for (why, count) in &summary.skipped {
        facts.count(why.as_str(), *count);
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
