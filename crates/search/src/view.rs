//! The view of a workspace that a search has.

use std::ops::Range;

use crate::{
    Skipped,
    model::WorkspacePath,
    policy::{GlobPattern, ObjectKind},
};

/// The directories and entries that an agent may see, each decided on before it is shown. Only a
/// view makes values of its types.
pub trait View: Sync {
    /// A directory that may be entered.
    type Directory: Directory;
    /// Directories that wait to be entered. It is small, since there may be a million.
    type Waiting: Send;
    /// An entry that the agent may see.
    type Entry: AsRef<WorkspacePath> + Send;

    /// Shows the wanted entries of a directory, and the directories in it that lead to wanted
    /// entries, in no order. Returns those to enter, if any, and the number of names that are not
    /// UTF-8, as far as the agent may know of them.
    ///
    /// # Errors
    /// If the directory cannot be read and the agent may know of it.
    fn list(
        &self,
        directory: &Self::Directory,
        wanted: &NameFilter,
        visit: &mut dyn Visit<Self::Entry>,
    ) -> Result<(Option<Self::Waiting>, u64), Skipped>;

    /// Takes one of the waiting directories.
    fn next(&self, waiting: &mut Self::Waiting) -> Option<Self::Directory>;

    /// Returns the directories above the start of a search, from the root on.
    fn above(&self, directory: &Self::Directory) -> Vec<Self::Directory>;

    /// Returns the `.gitignore` of a directory as the agent may read it; `None` if it may not, or
    /// if there is none.
    ///
    /// # Errors
    /// If it has more than `most` bytes, or content that may not be read.
    fn ignore_file(
        &self,
        directory: &Self::Directory,
        most: u64,
    ) -> Result<Option<Vec<u8>>, Skipped>;
}

/// A directory that may be entered.
pub trait Directory: AsRef<WorkspacePath> + Send + Sync {
    /// True if the agent may know of it; otherwise nothing about it is reported.
    fn is_shown(&self) -> bool;
}

/// The view of a search by name.
pub trait Names: View {
    /// An entry with the properties that a reply contains.
    type FoundEntry: AsRef<WorkspacePath> + Send;

    /// Returns the properties of an entry.
    ///
    /// # Errors
    /// If it is gone.
    fn look(&self, entry: Self::Entry) -> Result<Self::FoundEntry, Skipped>;
}

/// The view of a search in content.
pub trait Contents: View {
    /// The text of a file as a reader gets it, in UTF-8.
    type Text: AsRef<[u8]>;
    /// A matching file as a reply contains it.
    type Matched: Matched;

    /// Reads a file.
    ///
    /// # Errors
    /// If it may not be read, is not text or is gone.
    fn read(&self, entry: Self::Entry) -> Result<Self::Text, Skipped>;

    /// Returns a text without matches to the view.
    fn leave(&self, text: Self::Text);

    /// Cuts pieces out of a text in which `matches` lines match.
    fn matched(&self, text: Self::Text, pieces: Vec<Piece>, matches: u64) -> Self::Matched;
}

/// A file with matching lines.
pub trait Matched: AsRef<WorkspacePath> + Send {
    /// Returns the lines.
    fn lines(&self) -> &[Line];

    /// Keeps the first `count` of them.
    fn truncate(&mut self, count: usize);
}

/// The start of a search in content.
#[derive(Debug)]
pub enum Start<V: View> {
    /// The files beneath a directory.
    Beneath(V::Directory),
    /// A single file.
    At(V::Entry),
    /// None: reading it requires an approval.
    Asked,
}

/// The names that a search wants. It is data, since it is applied to names before they are decided
/// on.
#[derive(Debug)]
pub struct NameFilter {
    /// The pattern for the path relative to the start.
    pub pattern: Option<GlobPattern>,
    /// True if directories are wanted themselves.
    pub directories: bool,
    /// Length of the start's path with the slash after it.
    pub start: usize,
}

/// A receiver of the entries of a directory.
pub trait Visit<E> {
    /// True if the listing is to continue; called for each name, also for those that are not shown.
    fn may_continue(&mut self) -> bool;

    /// Takes an entry. True if it is a directory to enter.
    fn visit_name(&mut self, visited: VisitedEntry<'_, E>) -> bool;
}

/// An entry that a search encounters.
#[derive(Debug)]
pub enum VisitedEntry<'a, E> {
    /// An entry that the agent may see.
    Shown {
        /// The entry.
        entry: E,
        /// Its kind.
        kind: ObjectKind,
        /// True if it is wanted itself.
        wanted: bool,
        /// True if it is a directory and something beneath it could be wanted.
        enter: bool,
    },
    /// A directory that the agent may not know of, beneath which it may see something.
    Passed(&'a WorkspacePath),
}

/// A line of a text, or a piece of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The line number, from 1.
    pub number: u64,
    /// The byte range in the text, without the end of the line.
    pub bytes: Range<usize>,
    /// True if the line matches; otherwise it is near one that does.
    pub matches: bool,
    /// True if it is only a piece of the line.
    pub cut: bool,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The line number, from 1.
    pub number: u64,
    /// The text without the end of the line; of a long line a piece with the first match.
    pub text: String,
    /// True if it matches; otherwise it is near a line that does.
    pub matches: bool,
    /// True if it is only a piece of the line.
    pub cut: bool,
}

impl Line {
    /// Maximum number of lines that a search in content returns on either side of a match.
    pub const MAX_CONTEXT: u64 = 100;
}
