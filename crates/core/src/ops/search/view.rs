//! The view of a search: decides on each entry before the search sees it, reads each content as a
//! reader would get it, and makes the results from what was read.

use std::{
    fs::File,
    ops::ControlFlow,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use portcullis_audit::Hash;
use portcullis_search::{
    Contents, Directory, Line, Matched, NameFilter, Names as ByName, Piece, Skipped, Visit,
    VisitedEntry,
};
use rustix::fs::OFlags;

use super::{
    super::{Context, Entry, Error, Findings, list::counts_unnamed},
    names::PendingNames,
};
use crate::{
    model::{Access, OperationKind, WorkspacePath, is_text},
    policy::{
        DirectoryVisibility, Disclosed, Labelled, Object, ObjectKind, Query, SecretFinding,
        Visibility,
    },
    workspace::{self, Stat, read_bounded, read_bounded_into, stream_names},
};

const IGNORE_FILE: &str = ".gitignore";
/// Capacity of a content's buffer that is reused, in bytes.
const MAX_REUSED_CAPACITY: usize = 64 << 10;
/// Number of buffers that are reused.
const MAX_REUSED_BUFFERS: usize = 8;

/// The workspace as an agent's search sees it.
pub(super) struct View<'a> {
    context: Context<'a>,
    /// Number of names that need an approval. It is hidden from the agent, which could find out
    /// with it which names exist.
    asked: AtomicU64,
    /// Number of entries that only observe mode shows.
    relaxed: AtomicU64,
    /// The labels of all contents that were looked through, also of those without a match:
    /// that there is none tells of them, too.
    labels: Mutex<Labelled>,
    /// Buffers for the next contents.
    buffers: Mutex<Vec<Vec<u8>>>,
}

/// A directory in which a search may look for entries that the agent may see.
#[derive(Debug)]
pub(super) struct SearchDirectory {
    path: WorkspacePath,
    is_shown: bool,
    /// True if its name is from a list.
    is_listed: bool,
}

/// Directories with names from a list.
pub(super) struct Waiting {
    parent: WorkspacePath,
    names: PendingNames,
}

/// An entry that the agent may list.
#[derive(Debug)]
pub(super) struct Listable(WorkspacePath);

/// An entry as a reply has it.
pub(super) struct Described(pub(super) Entry);

/// A file's content as a reader gets it.
pub(super) struct Text {
    path: WorkspacePath,
    content: Disclosed,
    findings: Vec<SecretFinding>,
}

/// The matches in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMatches {
    /// The file.
    pub path: WorkspacePath,
    /// Its lines that match, and the context that was asked for; none if only files were asked for.
    pub lines: Vec<Line>,
    /// True if secrets in the file were redacted; lines are counted as a reader sees them.
    pub redacted: bool,
}

/// The facts for the record of one file of which lines are disclosed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disclosure {
    /// The file.
    pub path: WorkspacePath,
    /// Hash of the complete file on the disk.
    pub whole: Hash,
    /// Bytes disclosed.
    pub bytes: u64,
    /// Lines disclosed.
    pub lines: u64,
    /// Disclosed lines that match.
    pub matches: u64,
    /// The secrets in the file.
    pub findings: Vec<SecretFinding>,
}

/// The matches in a file, and the facts for its record.
pub(super) struct RecordedMatches {
    file: FileMatches,
    disclosure: Disclosure,
}

impl<'a> View<'a> {
    pub(super) fn of(context: Context<'a>) -> Self {
        let (asked, relaxed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { context, asked, relaxed, labels: Mutex::default(), buffers: Mutex::default() }
    }

    /// Returns a file at which a search starts, decided on by the gateway.
    pub(super) fn start(path: WorkspacePath) -> Listable {
        Listable(path)
    }

    /// Returns the number of names that need an approval, and of those that only observe mode
    /// shows.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.asked.load(Ordering::Relaxed), self.relaxed.load(Ordering::Relaxed))
    }

    /// Returns the labels of all contents that were searched.
    pub(super) fn labels(&self) -> Labelled {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_labels(&self, path: &WorkspacePath) {
        let labels = self.context.labels_of(path);
        if !labels.is_empty() {
            self.labels.lock().unwrap_or_else(PoisonError::into_inner).unite(labels);
        }
    }

    /// Returns the query for listing an entry.
    fn query<'q>(&'q self, path: &'q WorkspacePath) -> Query<'q> {
        let Context { agent, operation, .. } = self.context;
        Query { agent, operation, access: Access::List, path }
    }

    /// Returns the kind of an entry if its directory does not report it.
    fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind> {
        let fd = self.context.workspace.open_listed(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        Some(Stat::of(fd).ok()?.kind)
    }

    /// Decides on one name in a directory, and shows it if it may be seen. Adds a directory that is
    /// to be searched to `waiting`.
    fn visit_name(
        &self,
        directory: &WorkspacePath,
        (name, kind): (&str, Option<ObjectKind>),
        (wanted, directory_visibility): (&NameFilter, &DirectoryVisibility<'_>),
        visit: &mut dyn Visit<Listable>,
        waiting: &mut PendingNames,
    ) {
        // The policy does not decide on such long paths, and a denied name does not count.
        let Ok(path) = directory.join(name) else { return };
        let Some(kind) = kind.or_else(|| self.kind(&path)) else { return };
        let is_directory = kind == ObjectKind::Directory;
        // Most names do not match, and a match is cheaper than a decision.
        let relative = path.as_str().get(wanted.start..).unwrap_or_default();
        let pattern = wanted.pattern.as_ref();
        let itself = (wanted.directories || !is_directory)
            && pattern.is_none_or(|pattern| pattern.matches(relative));
        let enter = is_directory && pattern.is_none_or(|pattern| pattern.reaches_beneath(relative));
        if !itself && !enter {
            return;
        }
        let object = Object { kind, links: 1, through_symlink: false };
        let visited = match directory_visibility.of(name, || Some(&path), &object) {
            Some(Visibility::Shown { relaxed }) => {
                self.relaxed.fetch_add(u64::from(relaxed), Ordering::Relaxed);
                VisitedEntry::Shown { entry: Listable(path), kind, wanted: itself, enter }
            }
            Some(Visibility::Closed)
                if enter && self.context.policy.may_allow_beneath(&self.query(&path)) =>
            {
                VisitedEntry::Passed(&path)
            }
            Some(Visibility::Asked) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Some(Visibility::Closed | Visibility::Denied) | None => return,
        };
        let is_shown = matches!(visited, VisitedEntry::Shown { .. });
        if visit.visit_name(visited) && enter {
            waiting.push(name, is_shown);
        }
    }

    fn disclosed(&self, path: WorkspacePath, whole: Vec<u8>) -> Result<Text, Error> {
        let findings = Findings::default();
        let context = Context { findings: &findings, ..self.context };
        let content = context.disclose_text(&path, whole)?;
        Ok(Text { path, content, findings: findings.take() })
    }
}

impl portcullis_search::View for View<'_> {
    type Directory = SearchDirectory;
    type Waiting = Waiting;
    type Entry = Listable;

    fn list(
        &self,
        directory: &SearchDirectory,
        wanted: &NameFilter,
        visit: &mut dyn Visit<Listable>,
    ) -> Result<(Option<Waiting>, u64), Skipped> {
        let path = &directory.path;
        // A hidden directory is not revealed, nor why it cannot be read.
        let failed = |error| match directory.is_shown {
            true => Err(skipped(&error)),
            false => Ok((None, 0)),
        };
        let (workspace, flags) = (self.context.workspace, OFlags::RDONLY | OFlags::DIRECTORY);
        let opened = match directory.is_listed {
            true => workspace.open_listed(path, flags),
            false => workspace.open_at(path, flags),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => return failed(error),
        };
        let directory_visibility = self.context.policy.directory_visibility(&self.query(path));
        let mut names = PendingNames::default();
        let read = stream_names(opened, |name, kind| {
            if !visit.may_continue() {
                return ControlFlow::Break(());
            }
            self.visit_name(path, (name, kind), (wanted, &directory_visibility), visit, &mut names);
            ControlFlow::Continue(())
        });
        let not_utf8 = match read {
            Ok(count) if directory.is_shown && counts_unnamed(&directory_visibility, path) => count,
            Ok(_) => 0,
            Err(error) => failed(error)?.1,
        };
        let waiting = (names.len() > 0).then(|| Waiting { parent: path.clone(), names });
        Ok((waiting, not_utf8))
    }

    fn next(&self, waiting: &mut Waiting) -> Option<SearchDirectory> {
        loop {
            let (name, is_shown) = waiting.names.pop()?;
            if let Ok(path) = waiting.parent.join(&name) {
                return Some(SearchDirectory { path, is_shown, is_listed: true });
            }
        }
    }

    fn above(&self, directory: &SearchDirectory) -> Vec<SearchDirectory> {
        directory.path.ancestors().iter().map(|path| SearchDirectory::start(path, true)).collect()
    }

    fn ignore_file(
        &self,
        directory: &SearchDirectory,
        most: u64,
    ) -> Result<Option<Vec<u8>>, Skipped> {
        let Some((path, text)) = self.read_ignore_file(&directory.path, most) else {
            return Ok(None);
        };
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > most {
            return Err(Skipped::Gitignore);
        }
        // No line of it is disclosed, so the record has no findings.
        let findings = Findings::default();
        let context = Context { findings: &findings, ..self.context };
        let disclosed = context.disclose(&path, text).map_err(|_| Skipped::Gitignore)?;
        // What is left out tells of its content.
        self.note_labels(&path);
        Ok(Some(disclosed.bytes))
    }
}

impl View<'_> {
    /// Reads a directory's `.gitignore` if the agent may read it, at most one byte more than
    /// `most`.
    fn read_ignore_file(
        &self,
        directory: &WorkspacePath,
        most: u64,
    ) -> Option<(WorkspacePath, Vec<u8>)> {
        let path = directory.join(IGNORE_FILE).ok()?;
        // A file found by an alias would ignore entries and disclose nothing.
        let file = self.context.workspace.open_listed(&path, OFlags::RDONLY).ok()?;
        let stat = Stat::of(&file).ok()?;
        if stat.kind != ObjectKind::File {
            return None;
        }
        let (operation, access) = (OperationKind::Read, Access::Read);
        let query = Query { agent: self.context.agent, operation, access, path: &path };
        match self.context.policy.visibility(&query, &stat.object(false)) {
            Visibility::Shown { .. } => {
                let text = read_bounded(&File::from(file), stat.size, most).ok()?;
                Some((path, text))
            }
            _ => None,
        }
    }
}

impl ByName for View<'_> {
    type FoundEntry = Described;

    fn look(&self, Listable(path): Listable) -> Result<Described, Skipped> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let stat = match self.context.workspace.open_listed(&path, flags) {
            Ok(handle) => Stat::of(handle).ok(),
            Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => {
                return Err(Skipped::Changed);
            }
            // A mount point exists, and cannot be looked at.
            Err(_) => None,
        };
        Ok(Described(Entry::new(path, stat.as_ref())))
    }
}

impl Contents for View<'_> {
    type Text = Text;
    type Matched = RecordedMatches;

    fn read(&self, Listable(path): Listable) -> Result<Text, Skipped> {
        let Context { workspace, policy, agent, operation, .. } = self.context;
        let (access, most) = (Access::Read, self.context.max_size(Access::Read));
        let query = Query { agent, operation, access, path: &path };
        let broken = |error: workspace::Error| skipped(&error);
        let file = workspace.open_listed(&path, OFlags::RDONLY).map_err(broken)?;
        let stat = Stat::of(&file).map_err(broken)?;
        if stat.kind != ObjectKind::File {
            return Err(Skipped::Changed);
        }
        match policy.visibility(&query, &stat.object(false)) {
            Visibility::Shown { .. } => {}
            Visibility::Asked => return Err(Skipped::Ask),
            Visibility::Closed | Visibility::Denied => return Err(Skipped::Denied),
        }
        if stat.size > most {
            return Err(Skipped::TooLarge);
        }
        let room = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let room = room.unwrap_or_default();
        let whole = read_bounded_into(&File::from(file), stat.size, most, room).map_err(broken)?;
        if u64::try_from(whole.len()).unwrap_or(u64::MAX) > most {
            return Err(Skipped::TooLarge);
        }
        self.note_labels(&path);
        if !is_text(&whole) {
            return Err(Skipped::Binary);
        }
        self.disclosed(path, whole).map_err(|error| match error {
            Error::Refused(decision) if decision.is_about_text() => Skipped::Secret,
            _ => Skipped::Denied,
        })
    }

    fn leave(&self, text: Text) {
        let room = text.content.bytes;
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if room.capacity() <= MAX_REUSED_CAPACITY && buffers.len() < MAX_REUSED_BUFFERS {
            buffers.push(room);
        }
    }

    fn matched(&self, text: Text, pieces: Vec<Piece>, matches: u64) -> RecordedMatches {
        let Text { path, content, findings } = text;
        let lines = pieces.into_iter().map(|piece| {
            let Piece { number, bytes, matches, cut } = piece;
            let bytes = content.bytes.get(bytes).unwrap_or_default();
            Line { number, text: String::from_utf8_lossy(bytes).into_owned(), matches, cut }
        });
        let lines = lines.collect();
        let whole = Hash::of(content.whole.as_ref().map_or(&content.bytes, |whole| &whole.0));
        let file = FileMatches { path: path.clone(), lines, redacted: content.redacted };
        let mut disclosure = Disclosure { path, whole, bytes: 0, lines: 0, matches: 0, findings };
        disclosure.count(&file.lines);
        // Without lines, a file still has matches.
        disclosure.matches = matches;
        RecordedMatches { file, disclosure }
    }
}

impl SearchDirectory {
    /// Returns a directory with a name that is not from a list.
    pub(super) fn start(path: &WorkspacePath, is_shown: bool) -> Self {
        Self { path: path.clone(), is_shown, is_listed: false }
    }
}

impl Directory for SearchDirectory {
    fn is_shown(&self) -> bool {
        self.is_shown
    }
}

impl AsRef<WorkspacePath> for SearchDirectory {
    fn as_ref(&self) -> &WorkspacePath {
        &self.path
    }
}

impl AsRef<WorkspacePath> for Listable {
    fn as_ref(&self) -> &WorkspacePath {
        &self.0
    }
}

impl AsRef<WorkspacePath> for Described {
    fn as_ref(&self) -> &WorkspacePath {
        &self.0.path
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.content.bytes
    }
}

impl AsRef<WorkspacePath> for RecordedMatches {
    fn as_ref(&self) -> &WorkspacePath {
        &self.file.path
    }
}

impl Matched for RecordedMatches {
    fn lines(&self) -> &[Line] {
        &self.file.lines
    }

    fn truncate(&mut self, count: usize) {
        self.file.lines.truncate(count);
        self.disclosure.count(&self.file.lines);
    }
}

impl RecordedMatches {
    pub(super) fn parts(self) -> (FileMatches, Disclosure) {
        (self.file, self.disclosure)
    }
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

/// Returns why an entry that could not be opened or read was skipped.
fn skipped(error: &workspace::Error) -> Skipped {
    use workspace::Error as E;
    match error {
        E::Mount => Skipped::Mount,
        E::NotUtf8 => Skipped::NotUtf8,
        E::TooLong | E::TooLarge => Skipped::TooDeep,
        E::Os { .. } => Skipped::Unreadable,
        E::NotFound | E::NotADirectory | E::IsADirectory | E::Outside | E::Loop | E::Moved => {
            Skipped::Changed
        }
    }
}
