//! What a search is shown of a workspace, and nothing else.

use std::ops::Range;

use crate::{
    Skipped,
    model::WorkspacePath,
    policy::{GlobPattern, ObjectKind},
};

/// The directories and entries that an agent may see, for whom each was decided on before
/// it is shown. Only a view makes values of its types.
pub trait View: Sync {
    /// A directory that may be entered.
    type Directory: Directory;
    /// Directories that wait to be entered: small, for there may be a million.
    type Waiting: Send;
    /// An entry that the agent may see.
    type Entry: AsRef<WorkspacePath> + Send;

    /// Shows what is wanted in a directory, and the directories in it that lead to
    /// something that is wanted, in no order. Gives those that are to be entered, if there
    /// are any, and how many names are not UTF-8, as far as the agent may know of them.
    ///
    /// # Errors
    /// When the directory cannot be read and the agent may know of it.
    fn list(
        &self,
        directory: &Self::Directory,
        wanted: &Wanted,
        visit: &mut dyn Visit<Self::Entry>,
    ) -> Result<(Option<Self::Waiting>, u64), Skipped>;

    /// Takes one of the directories that wait.
    fn next(&self, waiting: &mut Self::Waiting) -> Option<Self::Directory>;

    /// The directories above the one in which a search begins, from the root on.
    fn above(&self, directory: &Self::Directory) -> Vec<Self::Directory>;

    /// The `.gitignore` of a directory as the agent may read it; `None` if it may not, or
    /// there is none.
    ///
    /// # Errors
    /// When it has more than `most` bytes, or content that may not be read.
    fn ignore_file(
        &self,
        directory: &Self::Directory,
        most: u64,
    ) -> Result<Option<Vec<u8>>, Skipped>;
}

/// A directory that may be entered.
pub trait Directory: AsRef<WorkspacePath> + Send + Sync {
    /// Whether the agent may know of it; else nothing is told of itself.
    fn is_shown(&self) -> bool;
}

/// What a search by name is shown.
pub trait Names: View {
    /// An entry with what a reply says of it.
    type Found: AsRef<WorkspacePath> + Send;

    /// Looks at an entry.
    ///
    /// # Errors
    /// When it has gone.
    fn look(&self, entry: Self::Entry) -> Result<Self::Found, Skipped>;
}

/// What a search in content is shown.
pub trait Contents: View {
    /// The text of a file as a reader gets it, in UTF-8.
    type Text: AsRef<[u8]>;
    /// What a reply says of a file that matches.
    type Matched: Matched;

    /// Reads a file.
    ///
    /// # Errors
    /// When it may not be read, is no text or has gone.
    fn read(&self, entry: Self::Entry) -> Result<Self::Text, Skipped>;

    /// Takes a text back in which nothing was found.
    fn leave(&self, text: Self::Text);

    /// Cuts pieces out of a text, in which `matches` lines match.
    fn matched(&self, text: Self::Text, pieces: Vec<Piece>, matches: u64) -> Self::Matched;
}

/// A file with lines that match.
pub trait Matched: AsRef<WorkspacePath> + Send {
    /// The lines.
    fn lines(&self) -> &[Line];

    /// Leaves the first `count` of them.
    fn truncate(&mut self, count: usize);
}

/// Where a search in content begins.
#[derive(Debug)]
pub enum Start<V: View> {
    /// Beneath a directory.
    Beneath(V::Directory),
    /// At a file.
    At(V::Entry),
    /// Nowhere: a person would have to be asked first.
    Asked,
}

/// The names that a search wants. It is data, for it is applied to names before they are
/// decided on.
#[derive(Debug)]
pub struct Wanted {
    /// What the path relative to the start matches.
    pub pattern: Option<GlobPattern>,
    /// Whether directories are wanted themselves.
    pub directories: bool,
    /// Length of the start's path with the slash after it.
    pub start: usize,
}

/// Who is shown the entries of a directory.
pub trait Visit<E> {
    /// Whether to go on; asked for each name, also for those that are not shown.
    fn goes_on(&mut self) -> bool;

    /// Takes an entry. True where it is a directory that is to be entered.
    fn meet(&mut self, met: Met<'_, E>) -> bool;
}

/// An entry that a search meets.
#[derive(Debug)]
pub enum Met<'a, E> {
    /// One that the agent may see.
    Shown {
        /// The entry.
        entry: E,
        /// What it is.
        kind: ObjectKind,
        /// Whether it is wanted itself.
        wanted: bool,
        /// Whether it is a directory, and something beneath it could be wanted.
        enter: bool,
    },
    /// A directory of which the agent may not know, beneath which it may see something.
    Passed(&'a WorkspacePath),
}

/// A line of a text, or a piece of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Counted from 1.
    pub number: u64,
    /// The bytes of the text, without the line's end.
    pub bytes: Range<usize>,
    /// Whether the line matches; else it stands near one that does.
    pub matches: bool,
    /// Whether it is only a piece of the line.
    pub cut: bool,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1.
    pub number: u64,
    /// Its text without its end; of a long line a piece with the first match.
    pub text: String,
    /// Whether it matches; else it stands near one that does.
    pub matches: bool,
    /// Whether it is only a piece of the line.
    pub cut: bool,
}

impl Line {
    /// Most lines that a search in content gives on either side of a match.
    pub const MAX_CONTEXT: u64 = 100;
}
