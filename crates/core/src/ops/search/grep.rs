//! Searching in content.

use std::{
    fs::File,
    sync::{Mutex, PoisonError},
};

use grep_regex::RegexMatcher;
use portcullis_audit::Hash;
use rustix::fs::OFlags;

use super::{
    super::{Context, Error, Findings, Sealed, Source},
    Limits, Start, Summary,
    lines::{Line, Tools, compile},
    page::{Room, begins, position},
    pattern,
    tally::{Skipped, Tally},
    walk::{Visitor, Walk},
};
use crate::{
    model::{Access, GrepQuery, Page, Position, WorkspacePath, is_text},
    policy::{Glob, ObjectKind, Query, SecretFinding, Sight},
    workspace::{self, Stat, read_bounded_into},
};

/// Most matching lines where the query says nothing.
const DEFAULT: u64 = 1_000;

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
    pub const MAX_LINES: u64 = 10_000;
}

/// What was found in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMatches {
    /// The file.
    pub path: WorkspacePath,
    /// Its lines that match, and those around them as far as asked for; none where
    /// only files were.
    pub lines: Vec<Line>,
    /// Whether secrets in the file were replaced by placeholders; lines are
    /// counted as a reader sees them.
    pub redacted: bool,
}

/// What the log may say of one file of which lines are disclosed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disclosure {
    /// The file.
    pub path: WorkspacePath,
    /// Hash of the whole file as it is.
    pub whole: Hash,
    /// Bytes disclosed.
    pub bytes: u64,
    /// Lines disclosed.
    pub lines: u64,
    /// Those of them that match.
    pub matches: u64,
    /// The secrets in the file.
    pub findings: Vec<SecretFinding>,
}

struct Seeker<'a> {
    context: &'a Context<'a>,
    tally: &'a Tally<'a>,
    query: &'a GrepQuery,
    matcher: RegexMatcher,
    include: Option<Glob>,
    found: Mutex<Vec<(FileMatches, Disclosure)>>,
}

/// Looks for lines that match in the start, or in the files beneath it. With
/// what is disclosed comes what the log is to say of it.
///
/// # Errors
/// When expression or pattern are none, when nothing is at the start, or when
/// it is a file that cannot be searched.
pub(crate) fn prepare(
    context: &Context<'_>,
    start: &Start,
    query: &GrepQuery,
) -> Result<(Sealed<Matches>, Vec<Disclosure>), Error> {
    let matcher = compile(query)?;
    let include = query.include.as_deref().map(included).transpose()?;
    let most = if query.page.is_some() { Matches::MAX_LINES } else { DEFAULT };
    let tally =
        Tally::new(Limits::new(query.max_results, most, Matches::MAX_LINES), context.follower);
    let context = &Context { source: Source::Disk, ..*context };
    let seeker =
        Seeker { context, tally: &tally, query, matcher, include, found: Mutex::default() };
    let walk = |path: &WorkspacePath| Walk::new(context, &tally, &seeker, path, query.ignored);
    match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory => walk(permit.path()).run(permit.path().clone(), true),
            // One that is named is searched, whatever else is to be left out.
            ObjectKind::File => {
                seeker.meet(&mut seeker.tools(), permit.path().clone(), ObjectKind::File);
            }
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(Error::Invalid("this is neither a file nor a directory")),
        },
        Start::Beneath(path) => walk(path).run(path.clone(), false),
        Start::Asked => tally.skip(Skipped::Ask),
    }
    if tally.is_cancelled() {
        return Err(Error::Cancelled);
    }
    let mut found = seeker.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by(|(one, _), (other, _)| one.path.cmp(&other.path));
    let mut summary = tally.summary();
    summary.next = query.page.as_deref().and_then(|page| cut(&mut found, page));
    let (files, disclosures): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let mut facts = tally.facts();
    let files_count = u64::try_from(files.len()).unwrap_or(u64::MAX);
    facts.counts.insert("files".to_owned(), files_count);
    facts.count("matches", disclosures.iter().map(|file| file.matches).sum());
    facts.bytes = Some(disclosures.iter().map(|file| file.bytes).sum());
    Ok((Sealed::new(Matches { files, summary }, facts), disclosures))
}

/// Leaves what fits on the page; gives the last of it where there is more.
fn cut(found: &mut Vec<(FileMatches, Disclosure)>, page: &Page) -> Option<Position> {
    let mut room = Room::of(page);
    let mut last = None;
    for (number, (file, disclosure)) in found.iter_mut().enumerate() {
        let path = file.path.as_str().len();
        let fit = file.lines.iter().take_while(|line| room.take(path + line.text.len())).count();
        let more = fit < file.lines.len();
        file.lines.truncate(fit);
        last = file.lines.last().map(|line| position(&file.path, line.number)).or(last);
        if more {
            disclosure.count(&file.lines);
            found.truncate(number + usize::from(fit > 0));
            return last;
        }
    }
    None
}

impl Disclosure {
    /// Counts the lines that are disclosed.
    fn count(&mut self, lines: &[Line]) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.bytes = lines.iter().map(|line| number(line.text.len())).sum();
        self.lines = number(lines.len());
        self.matches = number(lines.iter().filter(|line| line.matches).count());
    }
}

/// Which files are searched: a pattern without `/` is about names.
fn included(text: &str) -> Result<Glob, Error> {
    if text.contains('/') { pattern(text) } else { pattern(&format!("**/{text}")) }
}

impl Visitor for Seeker<'_> {
    type Tools = Tools;

    fn tools(&self) -> Tools {
        Tools::new(&self.matcher, self.query)
    }

    fn enters(&self, relative: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.reaches_beneath(relative))
    }

    fn wants(&self, relative: &str, kind: ObjectKind) -> bool {
        kind != ObjectKind::Directory
            && self.include.as_ref().is_none_or(|include| include.matches(relative))
    }

    fn meet(&self, tools: &mut Tools, path: WorkspacePath, kind: ObjectKind) {
        let Some(after) = begins(self.query.page.as_deref(), &path) else { return };
        let searched = match kind {
            ObjectKind::File => self.search(tools, path, after),
            ObjectKind::Symlink => Err(Skipped::Symlink),
            _ => Err(Skipped::Special),
        };
        match searched {
            Ok(None) => {}
            Ok(Some(found)) => {
                self.found.lock().unwrap_or_else(PoisonError::into_inner).push(found);
            }
            Err(why) => self.tally.skip(why),
        }
    }
}

impl Seeker<'_> {
    /// Reads a file as any reader would get it, and searches that.
    fn search(
        &self,
        tools: &mut Tools,
        path: WorkspacePath,
        after: u64,
    ) -> Result<Option<(FileMatches, Disclosure)>, Skipped> {
        let (policy, most) = (self.context.policy, self.context.policy.max_size(Access::Read));
        let query = Query {
            agent: self.context.agent,
            operation: self.context.operation,
            access: Access::Read,
            path: &path,
        };
        let broken = |error: workspace::Error| Skipped::from(&error);
        let file = self.context.workspace.open_listed(&path, OFlags::RDONLY).map_err(broken)?;
        let stat = Stat::of(&file).map_err(broken)?;
        if stat.kind != ObjectKind::File {
            return Err(Skipped::Changed);
        }
        match policy.sight(&query, &stat.object(false)) {
            Sight::Shown { .. } => {}
            Sight::Asked => return Err(Skipped::Ask),
            Sight::Closed | Sight::Denied => return Err(Skipped::Denied),
        }
        if stat.size > most {
            return Err(Skipped::TooLarge);
        }
        let whole = read_bounded_into(&File::from(file), stat.size, most, tools.room());
        let whole = whole.map_err(broken)?;
        if u64::try_from(whole.len()).unwrap_or(u64::MAX) > most {
            return Err(Skipped::TooLarge);
        }
        if !is_text(&whole) {
            return Err(Skipped::Binary);
        }
        let findings = Findings::default();
        let context = Context { findings: &findings, ..*self.context };
        let view = context.disclose_text(&path, whole).map_err(|error| match error {
            Error::Refused(decision) if decision.rule().starts_with("secrets.") => Skipped::Secret,
            _ => Skipped::Denied,
        })?;
        self.tally.searched();
        let (lines, matches) = tools.search(self.tally, &view.bytes, after);
        if matches == 0 {
            tools.keep(view.bytes);
            return Ok(None);
        }
        let mut disclosure = Disclosure {
            whole: Hash::of(view.whole.as_ref().map_or(&view.bytes, |whole| &whole.0)),
            bytes: 0,
            lines: 0,
            matches: 0,
            findings: findings.take(),
            path: path.clone(),
        };
        disclosure.count(&lines);
        // Of a file alone no line is shown.
        disclosure.matches = matches;
        Ok(Some((FileMatches { path, lines, redacted: view.redacted }, disclosure)))
    }
}
